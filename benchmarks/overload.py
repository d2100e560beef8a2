"""The service at twice its rated load: what it still does, and how long those wait whom it serves.

One worker on one core, all clients on another one, so that neither takes the other's time. The rated load is what 16
connections get that ask one set after the other: all jobs known, every set for the first time. Twice of that is offered by
more connections (those that are refused ask again as soon as they are answered); `offered_per_s` says how much it was.
Meanwhile a few clients measure: known sets, health, and jobs that the model has never met (one a second; the rated load of that
mix is measured too, because captures run on the service's core).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.record import loop_ms, record
from benchmarks.serve import BATCHES, DEVICES, MODELS, bodies_of_known_jobs, start_wrk, wrk_result
from benchmarks.siege import Target

_PROBES = 16  # clients that measure known sets
_PAUSE_S = 0.05
_NEW_EVERY_S = 1.0
Answers = list[tuple[int, float, float]]  # status, seconds, when it came (`time.monotonic`)
Stalls = list[tuple[float, float]]
# Sleeps for a moment again and again; tells when it was woken so late that nothing else can have run on its core either.
_TICKER = """
import time
while True:
    due = time.monotonic() + 0.005
    time.sleep(0.005)
    now = time.monotonic()
    if now > due + 0.02:
        print(due, now, flush=True)
"""


async def ask(port: int, method: str, path: str, body: Any) -> tuple[int, float, float]:
    """One request on a connection of its own; the time is from the request to the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    started = time.perf_counter()
    try:
        writer.write(head.encode() + content)
        start = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(start.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return int(start.split(b" ", 2)[1]), time.perf_counter() - started, time.monotonic()
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, time.perf_counter() - started, time.monotonic()
    finally:
        writer.close()


async def every(
    pause_s: float, until: float, answers: Answers, one: Callable[[], Awaitable[tuple[int, float, float]]]
) -> None:
    """Ask again and again, with a pause after each answer."""
    while time.monotonic() < until:
        answers.append(await one())
        await asyncio.sleep(pause_s)


async def measured(
    port: int, seconds: float, known: Iterator[Any], new: Iterator[Any] | None
) -> dict[str, Answers]:
    """What the measuring clients saw."""
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
    """Percentiles of those that were served, of all and of those outside of `stalls`; and how many were not."""
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
    """Fills a list with the moments in which `core` did not run (the host of a virtual machine takes it away)."""
    stalls: Stalls = []
    ticker = subprocess.Popen([sys.executable, "-c", _TICKER], stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(ticker.pid, {core})
    os.setpriority(os.PRIO_PROCESS, ticker.pid, max(-20, os.getpriority(os.PRIO_PROCESS, 0) - 2))
    try:
        yield stalls
    finally:
        ticker.terminate()
        stalls += [(float(a), float(b)) for a, b in map(str.split, ticker.communicate()[0].splitlines())]


def overloaded(target: Target, seconds: int, folder: Path, new_jobs: bool = True) -> dict[str, Any]:
    """Rated load, then twice of it without and with jobs that the model has not met."""
    url, service = f"http://127.0.0.1:{target.port}/v1/predict", psutil.Process(target.process.pid)
    for model, size in itertools.product(MODELS, BATCHES):
        for device in DEVICES:
            body = {"device": device, "jobs": [f"{model}:batch_size={size}"]}
            target.ask("POST", "/v1/predict", body, most=120).raise_for_status()
    bodies = bodies_of_known_jobs(200_000)
    chance, fresh = random.Random(5), itertools.count(1000)
    known = iter(lambda: chance.choice(bodies), None)
    new = ({"device": "v100", "jobs": [f"resnet18-cifar:batch_size={n}"]} for n in fresh)
    loops = [loop_ms()]
    wrk_result(start_wrk(folder, url, bodies, 3, 16))
    rated = wrk_result(start_wrk(folder, url, bodies, 10, 16))
    rate = rated["requests_per_s"]
    connections = int(0.6 * rate) + 64  # a refusal is held back for half a second
    figures: dict[str, Any] = {"rated": rated, "connections": connections}
    if new_jobs:  # captures take a part of the same core, overloaded or not
        figures["rated_with_new"] = rated_with_new(target, folder, url, bodies, new)
    for name, jobs in (("known", None), ("known_and_new", new)):
        if jobs is not None and not new_jobs:
            continue
        rated_alike = figures["rated_with_new" if jobs is not None else "rated"]["requests_per_s"]
        memory, delayed, stolen = _memory_bytes(service), _kept_waiting_s(service), psutil.cpu_times().steal
        load = start_wrk(folder, url, bodies, seconds, connections)
        with watched(min(os.sched_getaffinity(target.process.pid))) as stalls:
            seen = asyncio.run(measured(target.port, seconds, known, jobs))
        result = wrk_result(load)
        good = result["requests"] - result["not_2xx"]
        spent = result["requests"] / result["requests_per_s"]
        figures[name] = {
            "seconds": round(spent, 1),
            "offered_per_s": round(result["requests_per_s"], 1),
            "offered_over_rated": round(result["requests_per_s"] / rate, 3),
            "goodput_per_s": round(good / spent, 1),
            "goodput_over_rated": round(good / spent / rate, 3),
            "goodput_over_rated_of_this_mix": round(good / spent / rated_alike, 3),
            "broken": result["broken"],
            "waited_for_a_core": round((_kept_waiting_s(service) - delayed) / spent, 3),
            "stolen_from_the_machine": round((psutil.cpu_times().steal - stolen) / spent, 3),
            "memory_before_bytes": memory,
            "memory_after_bytes": _memory_bytes(service),
            "stalls_s": round(sum(b - a for a, b in stalls), 2),
            **{kind: summary(answers, stalls) for kind, answers in seen.items() if answers},
        }
        print(name, json.dumps(figures[name]), flush=True)
    figures["loop_ms"] = [round(ms, 1) for ms in (*loops, loop_ms())]
    figures["load_average"] = psutil.getloadavg()
    return figures


def rated_with_new(
    target: Target, folder: Path, url: str, bodies: list[Any], new: Iterator[Any]
) -> dict[str, Any]:
    """What 16 connections get while a job that the model has not met comes every second."""
    load, answers, until = start_wrk(folder, url, bodies, 10, 16), list[Any](), time.monotonic() + 10
    asyncio.run(
        every(_NEW_EVERY_S, until, answers, lambda: ask(target.port, "POST", "/v1/predict", next(new)))
    )
    return wrk_result(load) | {"new": summary(answers, [])}


@contextmanager
def pinned(folder: Path, *options: str) -> Iterator[Target]:
    """A service with one worker on the first core; this process and its clients are on the second one meanwhile."""
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


def run(seconds: int, *options: str, new_jobs: bool = True) -> dict[str, Any]:
    """Start a service with `options`, and measure."""
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-overload-") as folder,
        pinned(Path(folder), *options) as target,
    ):
        return overloaded(target, seconds, Path(folder), new_jobs)


def _kept_waiting_s(service: psutil.Process) -> float:
    """Seconds for which the service's main thread was ready to run and had no core, because of other work on it."""
    return int(Path(f"/proc/{service.pid}/schedstat").read_text().split()[1]) / 1e9


def _memory_bytes(service: psutil.Process) -> int:
    return sum(p.memory_info().rss for p in [service, *service.children(recursive=True)])


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=30, help="of each of the two loads")
    parser.add_argument("--known-only", action="store_true")
    parser.add_argument("--limit", action="append", default=[], help="NAME=NUMBER, as of `cotenant serve`")
    parser.add_argument("--name", default="overload", help="of the result in benchmarks/results")
    options = parser.parse_args()
    limits = itertools.chain(*(("--limit", pair) for pair in options.limit))
    figures = run(options.seconds, *limits, new_jobs=not options.known_only)
    print(json.dumps(figures, indent=1))
    record(options.name, figures)


if __name__ == "__main__":
    main()
