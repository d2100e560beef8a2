"""The service at twice its rated load: goodput, and latency of the accepted requests.

The service has one worker on one core and all clients share another, so that neither takes the other's time.
The rated load is the throughput of 16 connections that request one set after another: all jobs known, every
set new. More connections then offer twice that (refused clients retry as soon as they are answered);
`offered_per_s` is the actual load. Under every kind of load, a few clients measure known sets, health, and
jobs new to the model (one a second; the rated load of that mix is measured too, because captures run on the
service's core). The kinds alternate, in one order and then the other, because the speed of a virtual machine
varies from minute to minute; `cores` is what each side used.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.processes import memory_bytes
from benchmarks.record import loop_ms, record
from benchmarks.serve import BATCHES, DEVICES, MODELS, bodies_of_known_jobs, start_wrk, wrk_result
from benchmarks.siege import Target

_PROBES = 16  # clients that request known sets
_PAUSE_S = 0.05
_NEW_EVERY_S = 1.0
_PASSES = 20  # maximum passes through all sets in one piece of a load
Answers = list[tuple[int, float, float]]  # status, duration in seconds, time of the answer (`time.monotonic`)
Stalls = list[tuple[float, float]]
# Sleeps briefly in a loop, and reports when it woke up so late that nothing else can have run on its core
# either.
_TICKER = """
import time
while True:
    due = time.monotonic() + 0.005
    time.sleep(0.005)
    now = time.monotonic()
    if now > due + 0.02:
        print(due, now, flush=True)
"""


def request_bytes(method: str, path: str, body: Any) -> bytes:
    """A request with a JSON body, or none if `body` is None."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def read_status(reader: asyncio.StreamReader) -> int:
    """Read one whole answer and return its status."""
    start = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(start.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(start.split(b" ", 2)[1])


async def ask(port: int, method: str, path: str, body: Any) -> tuple[int, float, float]:
    """Send one request on a new connection; the time runs from the request to the complete response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = request_bytes(method, path, body)
    started = time.perf_counter()
    try:
        writer.write(request)
        return await read_status(reader), time.perf_counter() - started, time.monotonic()
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, time.perf_counter() - started, time.monotonic()
    finally:
        writer.close()


async def every(
    pause_s: float, until: float, answers: Answers, one: Callable[[], Awaitable[tuple[int, float, float]]]
) -> None:
    """Send requests in a loop, with a pause after each answer."""
    while time.monotonic() < until:
        answers.append(await one())
        await asyncio.sleep(pause_s)


async def measured(
    port: int, seconds: float, known: Iterator[Any], new: Iterator[Any] | None
) -> dict[str, Answers]:
    """What the measuring clients observed."""
    seen: dict[str, Answers] = {"known": [], "health": [], "new": []}
    until = time.monotonic() + seconds
    probes = [
        every(_PAUSE_S, until, seen["known"], lambda: ask(port, "POST", "/v1/predict", next(known)))
        for _ in range(_PROBES)
    ]
    probes.append(every(_PAUSE_S, until, seen["health"], lambda: ask(port, "GET", "/v1/health/live", None)))
    if new is not None:
        probes.append(
            every(_NEW_EVERY_S, until, seen["new"], lambda: ask(port, "POST", "/v1/predict", next(new)))
        )
    await asyncio.gather(*probes)
    return seen


def summary(answers: Answers, stalls: Stalls) -> dict[str, Any]:
    """Percentiles of served requests (all of them, and those outside of `stalls`), and the number not
    served."""
    served = [(1e3 * took, end - took, end) for status, took, end in answers if status == 200]
    refused = [status for status, _, _ in answers if status != 200]
    outside = [ms for ms, begin, end in served if not any(a < end and begin < b for a, b in stalls)]
    return {
        "served": len(served),
        **_percentiles([ms for ms, _, _ in served]),
        "outside_of_stalls": {"served": len(outside), **_percentiles(outside)},
        "others": {str(s): refused.count(s) for s in sorted(set(refused))},
    }


def _percentiles(milliseconds: list[float]) -> dict[str, float]:
    p50, p99, most = np.percentile(milliseconds, [50, 99, 100]) if milliseconds else [float("nan")] * 3
    return {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1), "most_ms": round(most, 1)}


@contextmanager
def watched(core: int) -> Iterator[Stalls]:
    """Yield a list that fills with the moments in which `core` did not run (because the host took it from the
    virtual machine)."""
    stalls: Stalls = []
    ticker = subprocess.Popen([sys.executable, "-c", _TICKER], stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(ticker.pid, {core})
    os.setpriority(os.PRIO_PROCESS, ticker.pid, max(-20, os.getpriority(os.PRIO_PROCESS, 0) - 2))
    try:
        yield stalls
    finally:
        ticker.terminate()
        stalls += [(float(a), float(b)) for a, b in map(str.split, ticker.communicate()[0].splitlines())]


@dataclass
class Phase:
    """One kind of load, in several pieces interleaved with those of the other kinds."""

    connections: int
    with_new: bool
    salts: Iterator[int]
    requests: int = 0
    refused: int = 0
    broken: int = 0
    seconds: float = 0.0
    service_s: float = 0.0
    captures_s: float = 0.0
    clients_s: float = 0.0
    waited_s: float = 0.0
    stolen_s: float = 0.0
    seen: dict[str, Answers] = field(default_factory=lambda: {"known": [], "health": [], "new": []})
    stalls: Stalls = field(default_factory=list)

    def run(self, seconds: int, target: Target, folder: Path, bodies: list[Any], jobs: _Jobs) -> None:
        """Load the service for `seconds` and measure meanwhile."""
        service = psutil.Process(target.process.pid)
        captures, own, waited = _of_children_s(service), _of(service), _kept_waiting_s(service)
        clients, stolen = _of_clients_s(), psutil.cpu_times().steal
        load = start_wrk(
            folder,
            f"http://127.0.0.1:{target.port}/v1/predict",
            bodies,
            seconds,
            self.connections,
            next(self.salts),
        )
        with watched(min(os.sched_getaffinity(target.process.pid))) as stalls:
            seen = asyncio.run(
                measured(target.port, seconds, jobs.known, jobs.new if self.with_new else None)
            )
        result = wrk_result(load)
        predictions = [status for kind in ("known", "new") for status, _, _ in seen[kind]]
        self.requests += result["requests"] + len(predictions)
        self.refused += result["not_2xx"] + sum(status != 200 for status in predictions)
        self.broken += result["broken"]
        self.seconds += result["requests"] / result["requests_per_s"]
        self.service_s += _of(service) - own
        self.captures_s += _of_children_s(service) - captures
        self.clients_s += _of_clients_s() - clients
        self.waited_s += _kept_waiting_s(service) - waited
        self.stolen_s += psutil.cpu_times().steal - stolen
        self.stalls += stalls
        for kind, answers in seen.items():
            self.seen[kind] += answers

    @property
    def good_per_s(self) -> float:
        return (self.requests - self.refused) / self.seconds

    @property
    def good_per_core_s(self) -> float:
        """Answers per second of processor time, captures included, which other load on the core does not
        change."""
        return self.good_per_s * self.seconds / (self.service_s + self.captures_s)

    def figures(self) -> dict[str, Any]:
        """Rates, cores used by each side, and what the measuring clients observed."""
        return {
            "connections": self.connections,
            "seconds": round(self.seconds, 1),
            "offered_per_s": round(self.requests / self.seconds, 1),
            "goodput_per_s": round(self.good_per_s, 1),
            "goodput_per_core_s": round(self.good_per_core_s, 1),
            "broken": self.broken,
            "cores": {
                "service": round(self.service_s / self.seconds, 3),
                "captures": round(self.captures_s / self.seconds, 3),
                "clients": round(self.clients_s / self.seconds, 3),
                "service_waited_for": round(self.waited_s / self.seconds, 3),
                "stolen_from_the_machine": round(self.stolen_s / self.seconds, 3),
            },
            "stalls_s": round(sum(b - a for a, b in self.stalls), 2),
            **{kind: summary(answers, self.stalls) for kind, answers in self.seen.items() if answers},
        }


@dataclass(frozen=True)
class _Jobs:
    """Requests of the measuring clients: sets of known jobs, and jobs new to the model."""

    known: Iterator[Any]
    new: Iterator[Any]


def overloaded(
    target: Target, seconds: int, folder: Path, new_jobs: bool, rounds: int, rated_seconds: int
) -> dict[str, Any]:
    """The rated load and twice as much, with and without jobs new to the model, in turn.

    Args:
        seconds: duration of each piece; there are `rounds` of each kind.
        rated_seconds: duration of a piece of the rated load; 0: same as the others.
    """
    service = psutil.Process(target.process.pid)
    for model, size in itertools.product(MODELS, BATCHES):
        for device in DEVICES:
            body = {"device": device, "jobs": [f"{model}:batch_size={size}"]}
            target.ask("POST", "/v1/predict", body, most=120).raise_for_status()
    bodies = bodies_of_known_jobs(200_000)
    chance, fresh = random.Random(5), itertools.count(1000)
    jobs = _Jobs(
        iter(lambda: chance.choice(bodies), None),
        ({"device": "v100", "jobs": [f"resnet18-cifar:batch_size={n}"]} for n in fresh),
    )
    loops = [loop_ms()]
    url = f"http://127.0.0.1:{target.port}/v1/predict"
    salts = itertools.count(0, _PASSES)
    wrk_result(start_wrk(folder, url, bodies, 3, 16, next(salts)))
    rate = wrk_result(start_wrk(folder, url, bodies, 5, 16, next(salts)))["requests_per_s"]
    more = int(0.6 * rate) + 64  # refusals are delayed by half a second
    phases = {"rated": Phase(16, False, salts), "known": Phase(more, False, salts)}
    if new_jobs:  # captures use part of the same core, overloaded or not
        phases |= {
            "rated_with_new": Phase(16, True, salts),
            "known_and_new": Phase(more, True, salts),
        }
    memory = memory_bytes(service.pid)
    for number in range(rounds):
        order = list(phases) if number % 2 == 0 else list(reversed(phases))
        for name in order:
            length = rated_seconds if rated_seconds and name.startswith("rated") else seconds
            phases[name].run(length, target, folder, bodies, jobs)
        loops.append(loop_ms())
    figures: dict[str, Any] = {name: phase.figures() for name, phase in phases.items()}
    for name, base in (("known", "rated"), ("known_and_new", "rated_with_new")):
        if name in phases:
            figures[name]["offered_over_rated"] = round(
                figures[name]["offered_per_s"] / figures["rated"]["offered_per_s"], 3
            )
            for label, other in (("goodput_over_rated", "rated"), ("goodput_over_rated_of_this_mix", base)):
                figures[name][label] = round(phases[name].good_per_s / phases[other].good_per_s, 3)
            figures[name]["goodput_per_core_s_over_rated"] = round(
                phases[name].good_per_core_s / phases["rated"].good_per_core_s, 3
            )
    figures |= {
        "rounds": rounds,
        "memory_before_bytes": memory,
        "memory_after_bytes": memory_bytes(service.pid),
        "loop_ms": [round(ms, 1) for ms in loops],
        "load_average": psutil.getloadavg(),
    }
    return figures


@contextmanager
def pinned(folder: Path, *options: str) -> Iterator[Target]:
    """A service with one worker on the first core, while this process and its clients run on the second."""
    cores = os.sched_getaffinity(0)
    first, second = sorted(cores)[:2]
    os.sched_setaffinity(0, {first})
    target = None
    try:
        target = Target(Path(__file__).resolve().parents[1], folder, 1, None, *options)
        os.sched_setaffinity(0, {second})
        yield target
    finally:
        os.sched_setaffinity(0, cores)
        if target is not None:
            target.process.kill()


def run(
    seconds: int, *options: str, new_jobs: bool = True, rounds: int = 4, rated_seconds: int = 0
) -> dict[str, Any]:
    """Start a service with `options`, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-overload-") as folder,
        pinned(Path(folder), *options) as target,
    ):
        return overloaded(target, seconds, Path(folder), new_jobs, rounds, rated_seconds)


def _kept_waiting_s(service: psutil.Process) -> float:
    """Seconds in which the service's main thread was ready to run but had no core, because of other load on
    it."""
    return int(Path(f"/proc/{service.pid}/schedstat").read_text().split()[1]) / 1e9


def _of(process: psutil.Process) -> float:
    """Processor seconds used by the process itself."""
    return float(sum(process.cpu_times()[:2]))


def _of_children_s(service: psutil.Process) -> float:
    """Processor seconds of the service's other processes, which capture graphs."""
    ended = sum(service.cpu_times()[2:4])
    return float(ended) + sum(_of(p) for p in service.children(recursive=True))


def _of_clients_s() -> float:
    """Processor seconds of this process and of finished load generators."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def main() -> None:
    """Measure and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--seconds", type=int, default=6, help="seconds per piece of a load")
    parser.add_argument("--rounds", type=int, default=4, help="pieces of each load")
    parser.add_argument("--rated-seconds", type=int, default=0, help="seconds per piece of the rated load")
    parser.add_argument("--known-only", action="store_true", help="send no jobs new to the model")
    parser.add_argument("--limit", action="append", default=[], help="NAME=NUMBER, as for `cotenant serve`")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "overload", "known_only", "limit")
    limits = itertools.chain(*(("--limit", pair) for pair in options.limit))
    figures = run(
        options.seconds, *limits, new_jobs=not options.known_only, rounds=options.rounds,
        rated_seconds=options.rated_seconds,
    )  # fmt: skip
    print(json.dumps(figures, indent=1))
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
