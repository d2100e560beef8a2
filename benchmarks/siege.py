"""What one request, one slow client or many clients can do to a running service and its stored state.

Starts `cotenant serve` from a checkout (this one, or `--checkout DIR` for another version), attacks it on
127.0.0.1 for a few minutes, and prints a table of outcomes. Every loop is bounded in count and time.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.processes import free_port
from benchmarks.record import record

SET: dict[str, Any] = {
    "device": "v100",
    "jobs": ["resnet18-cifar:batch_size=64", "lstm-wikitext2:batch_size=20"],
}
NODE = {"nodes": [{"name": "a", "gpus": [{"id": "0", "device": "v100"}]}]}


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add `--checkout` and `--workers`, of which a benchmark makes its `Target`."""
    parser.add_argument(
        "--checkout",
        type=Path,
        default=Path(__file__).resolve().parents[1],
        help="version of the service to run (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes of the service (default: %(default)s)"
    )


class Target:
    """A running service and ways to query it."""

    def __init__(
        self, checkout: Path, folder: Path, workers: int, database: str | None = None, *options: str
    ) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "serving.cli.main", "serve", "--port", str(self.port), "--workers", str(workers),
                   "--database", database or f"sqlite:///{folder}/store.db", "--log-level", "error", *options]  # fmt: skip
        # Captured graphs are cached on disk; those meant to be new must not be there.
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(checkout),
            "XDG_CACHE_HOME": f"{folder}/cache",
        }
        self.process = subprocess.Popen(command, env=environment, cwd=checkout, stderr=subprocess.DEVNULL)
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 900.0
        while self.seconds("GET", "/v1/health/ready", most=5)[1] != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit("the service did not get ready")
            time.sleep(0.2)

    def ask(
        self, method: str, path: str, body: Any = None, most: float = 30.0, **headers: str
    ) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        return httpx.request(method, url, json=body, timeout=most, headers=named, trust_env=False)

    def seconds(
        self, method: str, path: str, body: Any = None, most: float = 30.0, **headers: str
    ) -> tuple[float, int]:
        """Duration of a request and its status; 0 if there was no answer."""
        started = time.monotonic()
        try:
            status = self.ask(method, path, body, most, **headers).status_code
        except httpx.HTTPError:
            status = 0
        return time.monotonic() - started, status

    def meanwhile(self, attack: Callable[[], Any], most: float = 60.0) -> str:
        """Run `attack` in a thread; return the slowest answers of health and of a known set until it ends."""
        thread = threading.Thread(target=attack, daemon=True)
        thread.start()
        worst = {"/v1/health/live": 0.0, "/v1/predict": 0.0}
        deadline = time.monotonic() + most
        while True:
            last = not thread.is_alive() or time.monotonic() > deadline
            for path in worst:
                body = None if "health" in path else SET
                took, status = self.seconds("POST" if body else "GET", path, body, most=most)
                worst[path] = max(worst[path], took if status == 200 else most)
            if last:
                return f"health {worst['/v1/health/live']:.2f} s, known set {worst['/v1/predict']:.2f} s at worst"


def siege(target: Target, only: str) -> dict[str, str]:
    """Run every item whose name contains `only`, the mildest first; each value states the outcome."""
    items: dict[str, str] = {}
    deadline, met = time.monotonic() + 300, 0
    # Connections reach workers at random, and the first capture of each imports for seconds.
    while met < 8 and time.monotonic() < deadline:
        met += target.seconds("POST", "/v1/predict", SET, most=60)[1] == 200
    for name, attack in (
        ("GET, then PUT of the same cluster", keeps_reservations),
        ("budget of a placed job", keeps_budgets),
        ("workload in use deleted", keeps_workloads),
        ("16 clients place 200 jobs", places_many),
        ("batch of 10,000 x 16", large_batch),
        ("two batches of 2,000 new SPECs, given up after 1 s; then one new SPEC", abandoned_work),
        ("24 connections: 92 % known, 7 % place, 1 % new", mixed_load),
        ("twice the rated load (see overload.json)", twice_the_rated_load),
        ("counts of 1.6 million nodes in 1 KB", counts),
        ("one head of 16 MB", long_head),
        ("1,100 half-open connections", half_open),
        ("600 slow POST /login", slow_logins),
        ("step_time_s=5e-324", denormal),
        ("SIGTERM afterwards", terminates),
    ):
        if only not in name:
            continue
        try:
            items[name] = attack(target)
        except (httpx.HTTPError, OSError, KeyError, AssertionError) as error:
            items[name] = f"failed: {type(error).__name__}"
        print(f"{name}: {items[name]}", flush=True)
    return items


def keeps_reservations(target: Target) -> str:
    nodes = {"nodes": [{"name": "n", "count": 50, "gpus": [{"device": "v100", "count": 4}]}]}
    target.ask("PUT", "/v1/cluster", nodes)
    placed = target.ask("POST", "/v1/placements", {"job": SET["jobs"][1], "iterations": 1e6}).json()
    target.ask("PUT", "/v1/cluster", target.ask("GET", "/v1/cluster").json()["cluster"])
    status = target.ask("POST", f"/v1/placements/{placed['id']}/progress", {"iterations_left": 5}).status_code
    return "the reservation is kept" if status == 200 else f"the reservation is lost ({status})"


def keeps_budgets(target: Target) -> str:
    body = {"job": SET["jobs"][1], "iterations": 1e6, "max_slowdown": 1.0}
    placed = target.ask("POST", "/v1/placements", body).json()
    nodes = target.ask("GET", "/v1/cluster").json()["cluster"]["nodes"]
    tenants = [t for n in nodes if n["name"] == placed["node"] for g in n["gpus"] if g["id"] == placed["gpu"]
               for t in g["tenants"]]  # fmt: skip
    return "stored with the tenant" if any(t.get("max_slowdown") == 1.0 for t in tenants) else "forgotten"


def keeps_workloads(target: Target) -> str:
    entry = target.ask(
        "POST", "/v1/workloads", {"workload": "lstm-wikitext2", "batch_size": 21}, most=60
    ).json()
    target.ask("POST", "/v1/placements", {"job": entry["workload"], "iterations": 10})
    status = target.ask("DELETE", f"/v1/workloads/{entry['hash']}").status_code
    after = target.ask("POST", "/v1/placements", {"job": SET["jobs"][1], "iterations": 10}).status_code
    return f"DELETE {status}, the next placement {after}"


def places_many(target: Target) -> str:
    started = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        body = {"job": SET["jobs"][1], "iterations": 1000}
        statuses = Counter(pool.map(lambda _: target.seconds("POST", "/v1/placements", body)[1], range(200)))
    rate = 200 / (time.monotonic() - started)
    return f"{statuses[409]} of 200 refused with 409, {rate:.0f} /s ({dict(statuses)})"


def large_batch(target: Target) -> str:
    sets = [{"device": "v100", "jobs": SET["jobs"] * 8}] * 10_000
    return target.meanwhile(lambda: target.seconds("POST", "/v1/predict/batch", {"sets": sets}, most=60))


def abandoned_work(target: Target) -> str:
    for first in (100_000, 200_000):
        sets = [{"device": "v100", "jobs": [f"resnet18-cifar:batch_size={first + n}"]} for n in range(2_000)]
        target.seconds("POST", "/v1/predict/batch", {"sets": sets}, most=5, X_Timeout_S="1")
    took, status = target.seconds(
        "POST", "/v1/predict", {"device": "v100", "jobs": ["lstm-wikitext2:batch_size=77"]}
    )
    return f"{status} after {took:.1f} s"


def mixed_load(target: Target) -> str:
    times: dict[str, list[float]] = {"known": [], "new": [], "other": []}
    until = time.monotonic() + 20

    def client(number: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{target.port}", trust_env=False, timeout=30) as http:
            count = number
            while time.monotonic() < until:
                count += 24
                path, body, kind = "/v1/predict", SET, "known"
                if count % 100 == 50:
                    body, kind = (
                        {"device": "v100", "jobs": [f"resnet18-cifar:batch_size={300 + count}"]},
                        "new",
                    )
                elif count % 14 == 0:
                    path, body, kind = "/v1/place", {"job": SET["jobs"][0], "iterations": 10}, "other"
                started = time.monotonic()
                try:
                    if http.post(path, json=body).status_code == 200:
                        times[kind].append(time.monotonic() - started)
                except httpx.HTTPError:
                    times[kind].append(30.0)

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    known, new = (sorted(times[kind]) or [float("nan")] for kind in ("known", "new"))
    p = [known[min(len(known) - 1, int(q * len(known)))] for q in (0.5, 0.9, 0.99)]
    return (
        f"known sets p50 {p[0]:.3f}, p90 {p[1]:.3f}, p99 {p[2]:.3f} s ({len(known)} answers in 20 s); "
        f"new ones at most {new[-1]:.3f} s ({len(new)} answers)"
    )


def twice_the_rated_load(_target: Target) -> str:
    """Use a separate service, always of this checkout's version."""
    from benchmarks import overload

    figures = overload.run(6)
    record("overload", figures)
    known, both = figures["known"], figures["known_and_new"]
    return (
        f"goodput {known['goodput_over_rated']:.0%} of the rated one at {known['offered_over_rated']:.1f} times the load; "
        f"p99 of known sets {known['known']['p99_ms']:.0f} ms, of health {known['health']['p99_ms']:.0f} ms; "
        f"with a new SPEC a second {both['known']['p99_ms']:.0f} ms, {both['health']['p99_ms']:.0f} ms, "
        f"and of new ones {both['new']['p99_ms']:.0f} ms"
    )


def counts(target: Target) -> str:
    body = {"nodes": [{"name": f"n{k}", "count": 100_000, "gpus": []} for k in range(16)]}
    return target.meanwhile(lambda: target.seconds("PUT", "/v1/cluster", body, most=60))


def long_head(target: Target) -> str:
    statuses: list[str] = []

    def attack() -> None:
        with socket.create_connection(("127.0.0.1", target.port), timeout=60) as connection:
            try:
                connection.sendall(
                    b"GET /v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"y" * 2**24 + b"\r\n\r\n"
                )
                statuses.append(connection.recv(100).split(b" ")[1].decode())
            except (OSError, IndexError):
                statuses.append("closed")

    return f"{target.meanwhile(attack)}; answered {', '.join(statuses) or 'nothing'}"


def half_open(target: Target) -> str:
    opened = [socket.create_connection(("127.0.0.1", target.port), timeout=5) for _ in range(1_100)]
    took, status = target.seconds("POST", "/v1/predict", SET, most=20)
    deadline, ended = time.monotonic() + 20, 0
    for connection in opened:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            while connection.recv(1000):
                pass
            ended += 1
        except TimeoutError:
            pass
        connection.close()
    return f"another client: {status} after {took:.2f} s; ended within 20 s: {ended}"


def slow_logins(target: Target) -> str:
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nt"
    opened = []
    for _ in range(600 * 2):  # for two workers
        connection = socket.create_connection(("127.0.0.1", target.port), timeout=5)
        connection.sendall(head)
        opened.append(connection)
    answers = Counter(target.seconds("POST", "/v1/predict", SET, most=20)[1] for _ in range(10))
    for connection in opened:
        connection.close()
    return f"another client, ten times: {dict(answers)}"


def denormal(target: Target) -> str:
    tenants = [{"job": "lstm-wikitext2:batch_size=20", "iterations_left": 1e6}]
    busy = {"nodes": [{"name": "a", "gpus": [{"id": "0", "device": "v100", "tenants": tenants}]}]}
    body = {"job": "resnet18-cifar:batch_size=64,step_time_s=5e-324", "cluster": busy}
    statuses = [target.seconds("POST", "/v1/place", body, most=5, X_Timeout_S="2")[1] for _ in range(8)]
    after = Counter(
        target.seconds("POST", "/v1/place", {"job": "resnet18-cifar", "cluster": NODE}, most=5)[1]
        for _ in range(4)
    )
    ready = target.seconds("GET", "/v1/health/ready", most=5)[1]
    return f"answered {dict(Counter(statuses))}; later placements {dict(after)}; ready {ready}"


def terminates(target: Target) -> str:
    target.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    try:
        target.process.wait(45)
    except subprocess.TimeoutExpired:
        return "still runs after 45 s"
    return f"ended after {time.monotonic() - started:.1f} s"


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    add_service(parser)
    parser.add_argument("--only", default="", metavar="TEXT", help="only items whose name contains this")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "siege", "only", "checkout", "workers")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    with tempfile.TemporaryDirectory(prefix="cotenant-siege-") as folder:
        target = Target(options.checkout.resolve(), Path(folder), options.workers)
        try:
            items = siege(target, options.only)
        finally:
            target.process.kill()
    record(stem, {"workers": options.workers, "items": items})
    print("\n| attack | outcome |\n|---|---|")
    for name, outcome in items.items():
        print(f"| {name} | {outcome} |")


if __name__ == "__main__":
    run_benchmark(__file__, main)
