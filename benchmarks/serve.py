"""The service under load: rate and latency of predict and place, and behaviour beyond capacity.

Starts `cotenant serve --workers 2`, stores a cluster of 1,000 GPUs, and sends requests with wrk on the same
cores:

* predict, seen: 500 different sets in turn, all requested before (a scheduler keeps asking about the same
  jobs);
* predict, new: every set for the first time (known jobs in new combinations);
* place: jobs in turn on the stored cluster;
* the same with a second service that has `--observations N` observed step times, whose posterior corrects
  every answer. The two alternate, because the speed of a virtual machine varies from minute to minute;
* overload (`--overload SECONDS`): many more connections than requests may be in flight; memory before and
  after.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.processes import free_port, memory_bytes, processor_s
from benchmarks.record import record

MODELS = ("resnet18-cifar", "lstm-wikitext2", "vgg11-cifar", "mobilenetv2-cifar", "transformer-multi30k")
BATCHES = (16, 32, 64, 128)
DEVICES = ("v100", "p100", "t4")
JOBS = [f"{m}:batch_size={b}" for m in MODELS for b in BATCHES]
# Path of each load and what it requests.
LOADS = {
    "predict_seen": ("/v1/predict", "seen"),
    "predict_new": ("/v1/predict", "new"),
    "place": ("/v1/place", "place"),
}
_PASSES = 20  # maximum passes through all sets in one load
_WARMING_SETS = 20_000  # that no timed load requests
_SCRIPT = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local at = 0
function setup(thread) thread:set("first", math.random(#bodies)) end
function request()
  at = at + 1
  local pass = %d + math.floor(at / #bodies) * %d
  local body = bodies[(first + at) %% #bodies + 1] .. string.rep(" ", pass)
  return wrk.format("POST", nil, {["Content-Type"] = "application/json"}, body)
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%.1f %%.1f %%d %%d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.status, e.connect + e.read + e.write + e.timeout))
end
"""


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--model", default="default", help="a checkpoint or a name (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes of the service (default: %(default)s)"
    )
    parser.add_argument("--connections", type=int, default=16, help="clients of wrk (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=int, default=10, help="seconds per load and turn (default: %(default)s)"
    )
    parser.add_argument(
        "--gpus", type=int, default=1000, help="GPUs of the stored cluster (default: %(default)s)"
    )
    parser.add_argument(
        "--observations",
        type=int,
        default=0,
        metavar="N",
        help="observed step times of a second service; 0 for none (default: %(default)s)",
    )
    parser.add_argument("--turns", type=int, default=6, help="number of turns per service (default: 6)")
    parser.add_argument(
        "--overload",
        type=int,
        default=0,
        metavar="SECONDS",
        help="seconds beyond capacity; 0 to skip this (default: %(default)s)",
    )
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "serve", "model", "overload")
    with tempfile.TemporaryDirectory(prefix="cotenant-bench-") as folder, contextlib.ExitStack() as services:
        record(stem, measure(Path(folder), options, services))


@dataclass(frozen=True, eq=False)
class _Service:
    """A running service and its load; request bodies are stored in `folder`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    connections: int

    @classmethod
    def started(cls, folder: Path, options: argparse.Namespace) -> _Service:
        folder.mkdir()
        port = free_port()
        return cls(folder, port, _start(folder, port, options), options.connections)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def load(self, path: str, bodies: list[Any], seconds: float, salt: int | None = None, connections: int = 0) -> dict[str, Any]:  # fmt: skip
        """Counts of wrk, with processor time per request."""
        before = processor_s(self.process.pid)
        wrk = start_wrk(
            self.folder, self.base + path, bodies, round(seconds), connections or self.connections, salt
        )
        result = wrk_result(wrk)
        used = processor_s(self.process.pid) - before
        return result | {"service_cpu_ms_per_request": 1000 * used / max(1, result["requests"])}

    def prepare(self, cluster: Any, asked: dict[str, list[Any]], workers: int) -> None:
        """Store a cluster, and request all jobs and all sets that should not be new."""
        httpx.put(f"{self.base}/v1/cluster", json=cluster, timeout=60).raise_for_status()
        for _ in range(
            4 * workers
        ):  # connections reach workers at random, so repeat until all of them know the jobs
            sets = [{"device": d, "jobs": [j]} for d in DEVICES for j in JOBS]
            httpx.post(f"{self.base}/v1/predict/batch", json={"sets": sets}, timeout=600).raise_for_status()
        met = 0
        while met < 4 * workers * len(asked["seen"]):  # until every worker has answered every set
            met += self.load("/v1/predict", asked["seen"], 3)["requests"]
        self.load("/v1/place", asked["place"], 3)


def measure(folder: Path, options: argparse.Namespace, services: contextlib.ExitStack) -> dict[str, Any]:
    """All figures."""
    chance = random.Random(7)
    cluster = _cluster(chance, options.gpus)
    known = bodies_of_known_jobs(200_000)
    asked = {
        "seen": [_set(chance, JOBS) for _ in range(500)],
        "new": known[_WARMING_SETS:],
        "place": [{"job": job, "iterations": 10_000} for job in JOBS],
    }

    def service(name: str) -> _Service:
        started = _Service.started(folder / name, options)
        services.callback(started.stop)
        started.prepare(cluster, asked, options.workers)
        return started

    plain = service("plain")
    figures: dict[str, Any] = {
        "workers": options.workers,
        "connections": options.connections,
        "gpus": options.gpus,
    }
    salts = itertools.count(0, _PASSES)

    def load(one: _Service, name: str, seconds: float, salt: int) -> dict[str, Any]:
        path, which = LOADS[name]
        return one.load(path, asked[which], seconds, salt if which == "new" else None)

    for name in LOADS:
        figures[name] = load(plain, name, options.seconds, next(salts))
        print(name, json.dumps(figures[name]), flush=True)
    if options.observations:
        told = service("told")
        took = observe(
            told.base, plain.base, bodies_of_known_jobs(options.observations), options.observations
        )
        told.load("/v1/predict", asked["seen"], 5)
        # Until every worker has computed what the posterior needs for each pair of jobs, just as the jobs
        # were requested before.
        told.load("/v1/predict", known[:_WARMING_SETS], 5)
        figures["observed"] = {"observations": options.observations, "taken_in_s": took}
        for name in LOADS:
            answers: dict[_Service, list[dict[str, Any]]] = {plain: [], told: []}
            for turn in range(options.turns):
                salt = next(salts)
                for one in (plain, told) if turn % 2 == 0 else (told, plain):
                    answers[one].append(load(one, name, max(2.0, options.seconds / 2), salt))
            figures["observed"][name] = _compared(answers[plain], answers[told])
            print("observed", name, json.dumps(figures["observed"][name]), flush=True)
    if options.overload:
        memory = memory_bytes(plain.process.pid)
        result = plain.load("/v1/predict", asked["seen"], options.overload, connections=2048)
        figures["overload"] = result | {
            "memory_before_bytes": memory,
            "memory_after_bytes": memory_bytes(plain.process.pid),
        }
        print("overload", json.dumps(figures["overload"]))
    return figures


def _compared(plain: list[dict[str, Any]], told: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates and processor times of both services over all turns, with the ratio of the rates."""
    rates = [statistics.fmean(turn["requests_per_s"] for turn in side) for side in (plain, told)]
    cpu = [
        sum(t["service_cpu_ms_per_request"] * t["requests"] for t in side) / sum(t["requests"] for t in side)
        for side in (plain, told)
    ]
    return {
        "requests_per_s": rates[1],
        "uncorrected_requests_per_s": rates[0],
        "rate_ratio": rates[1] / rates[0],
        "rate_ratio_by_turn": [t["requests_per_s"] / p["requests_per_s"] for p, t in zip(plain, told, strict=True)],
        "service_cpu_ms_per_request": cpu[1],
        "uncorrected_service_cpu_ms_per_request": cpu[0],
        "p99_ms": max(turn["p99_ms"] for turn in told),
        "not_2xx": sum(turn["not_2xx"] for turn in told),
        "broken": sum(turn["broken"] for turn in told),
    }  # fmt: skip


def _cluster(chance: random.Random, gpus: int) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [
        {
            "name": f"node-{n}",
            "gpus": [
                {
                    "id": str(number),
                    "device": chance.choice(DEVICES),
                    "tenants": [
                        {"job": chance.choice(JOBS), "iterations_left": float(chance.randint(100, 100_000))}
                        for _ in range(chance.randint(0, 2))
                    ],
                }
                for number in range(4)
            ],
        }
        for n in range(gpus // 4)
    ]
    return {"nodes": nodes}


def observe(base: str, uncorrected: str, sets: list[dict[str, Any]], count: int) -> float:
    """Report `count` step times of `sets` in turn, each the prediction times a random factor; return the
    seconds it took.

    Args:
        base: service that receives the observations.
        uncorrected: service that supplies the predictions; in `base` the random factors would compound.
    """
    chance = random.Random(5)
    started = time.monotonic()
    told = list(itertools.islice(itertools.cycle(sets), count))
    for start in range(0, count, 500):
        batch = told[start : start + 500]
        predicted = httpx.post(f"{uncorrected}/v1/predict/batch", json={"sets": batch}, timeout=120)
        answers = predicted.raise_for_status().json()["predictions"]
        told_now = [
            {"of": of, "step_time_s": answer["members"][0]["step_time_s"]["value"] * chance.uniform(0.8, 1.4)}
            for of, answer in zip(batch, answers, strict=True)
        ]
        httpx.post(f"{base}/v1/observations", json={"observations": told_now}, timeout=120).raise_for_status()
    return time.monotonic() - started


def bodies_of_known_jobs(count: int) -> list[dict[str, Any]]:
    """About `count` different sets of a few jobs."""
    chance = random.Random(11)
    return list({json.dumps(s): s for s in (_set(chance, JOBS, 4) for _ in range(count))}.values())


def _set(chance: random.Random, jobs: list[str], most: int = 3) -> dict[str, Any]:
    return {
        "device": chance.choice(DEVICES),
        "jobs": [chance.choice(jobs) for _ in range(chance.randint(1, most))],
    }


def start_wrk(
    folder: Path, url: str, bodies: list[Any], seconds: int, connections: int, salt: int | None = None
) -> subprocess.Popen[str]:
    """POST `bodies` repeatedly in turn on `connections` connections.

    Args:
        salt: spaces after each body, one more in every pass, so that the service has never seen these bytes;
            None: the same bytes every time.
    """
    lines = folder / "bodies.txt"
    lines.write_text("\n".join(json.dumps(b) for b in bodies) + "\n")
    script = folder / "load.lua"
    script.write_text(_SCRIPT % (lines, salt or 0, salt is not None))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script), url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wrk_result(wrk: subprocess.Popen[str]) -> dict[str, Any]:
    """Counts of wrk once it has finished; `p50_ms` and `p99_ms` are of all answers, refusals included."""
    output, _ = wrk.communicate()
    match = re.search(r"RESULT (\d+) (\d+) (\S+) (\S+) (\d+) (\d+)", output)
    if match is None:
        raise SystemExit(f"wrk gave no result:\n{output}")
    requests, microseconds, p50, p99, refused, broken = match.groups()
    return {
        "requests": int(requests),
        "requests_per_s": int(requests) / (int(microseconds) / 1e6),
        "p50_ms": float(p50) / 1000,
        "p99_ms": float(p99) / 1000,
        "not_2xx": int(refused),
        "broken": int(broken),
    }


def _start(folder: Path, port: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "serving.cli.main", "serve", "--port", str(port), "--workers", str(options.workers),
        "--model", options.model, "--database", f"sqlite:///{folder}/store.db", "--log-level", "error",
    ]  # fmt: skip
    service = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 180
    ready = 0
    while ready < 3 * options.workers:
        if service.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the service did not get ready")
        try:
            ready += httpx.get(f"http://127.0.0.1:{port}/v1/health/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            time.sleep(0.2)
        time.sleep(0.05)
    return service


if __name__ == "__main__":
    run_benchmark(__file__, main)
