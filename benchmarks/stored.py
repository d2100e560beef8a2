"""Placements on a service's stored cluster: how many per second, with none refused because of others.

    python -m benchmarks.stored [--placements 2000] [--postgres] [--gpus 1000]
    python -m benchmarks.stored --large [--seconds 20]

The first reserves one GPU per request, with 16 clients and two workers. `--large` places one job at a time
among 100,000 GPUs in 10,000 states while nodes change. The clients run on the same cores; `cpu_ms` is
processor time per answer, which other load changes less than wall time; `loop_ms` times a fixed loop before
and after, which shows by how much.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.overload import read_status, request_bytes
from benchmarks.processes import processor_s
from benchmarks.record import loop_ms, record
from benchmarks.siege import Target, add_service

JOBS = [
    f"{model}:batch_size={size}" for model in ("resnet18-cifar", "lstm-wikitext2") for size in (32, 64, 128)
]
DEVICES = ("v100", "p100", "t4")


async def load(
    port: int, bodies: Iterator[tuple[str, str, Any]], connections: int
) -> tuple[Counter[int], list[float]]:
    """Send all of `bodies` (method, path, JSON); return the count of each status and the seconds of each
    answer."""
    statuses: Counter[int] = Counter()
    seconds: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        for method, path, body in bodies:
            request = request_bytes(method, path, body)
            started = time.perf_counter()
            writer.write(request)
            statuses[await read_status(reader)] += 1
            seconds.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return statuses, seconds


def measured(target: Target, bodies: Iterator[tuple[str, str, Any]], connections: int) -> dict[str, Any]:
    """Rate, percentiles and statuses of a load."""
    loops = [loop_ms()]
    before, started = processor_s(target.process.pid), time.perf_counter()
    statuses, seconds = asyncio.run(load(target.port, bodies, connections))
    took, used = time.perf_counter() - started, processor_s(target.process.pid) - before
    loops.append(loop_ms())
    p50, p99 = np.percentile(seconds, [50, 99])
    return {
        "answers": len(seconds), "statuses": dict(statuses), "rate_per_s": round(len(seconds) / took, 1),
        "p50_ms": round(1e3 * float(p50), 1), "p99_ms": round(1e3 * float(p99), 1),
        "cpu_ms": round(1e3 * used / len(seconds), 2), "loop_ms": round(median(loops), 1),
    }  # fmt: skip


def meet(target: Target) -> None:
    """Request the jobs so that all workers know them, as in a running service; connections reach workers at
    random."""
    for job in JOBS:
        answered, deadline = 0, time.monotonic() + 600
        while answered < 4:
            answered += (
                target.seconds("POST", "/v1/place", {"job": job, "iterations": 10}, most=300)[1] == 200
            )
            if time.monotonic() > deadline:
                raise SystemExit("the service does not answer")


def until(seconds: float, make: Callable[[], tuple[str, str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Yield requests for `seconds` seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield make()


def reserved(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """Place jobs in turn on a cluster that fills up."""
    gpus = [{"device": device, "count": 4} for device in DEVICES[:2]]
    nodes = [{"name": "n", "count": options.gpus // 8, "gpus": gpus}]
    target.ask("PUT", "/v1/cluster", {"nodes": nodes}).raise_for_status()
    rng = random.Random(0)
    meet(target)
    bodies = [
        (
            "POST",
            "/v1/placements",
            {"job": rng.choice(JOBS), "iterations": rng.randint(1_000, 100_000), "max_slowdown": 3.0},
        )
        for _ in range(options.placements)
    ]
    return measured(target, iter(bodies), 16)


def large(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """Place one job among 100,000 GPUs in 10,000 states, on its own and while nodes change."""
    rng = random.Random(1)
    gpus = [
        {"device": DEVICES[k % 3], "tenants": [{"job": rng.choice(JOBS), "iterations_left": rng.randint(100, 100_000)}
                                               for _ in range(rng.randint(0, 3))]}
        for k in range(10_000)
    ]  # fmt: skip
    nodes = [
        {"name": f"n{copy}-{k}", "gpus": gpus[k : k + 8]} for copy in range(10) for k in range(0, 10_000, 8)
    ]
    target.ask("PUT", "/v1/cluster", {"nodes": nodes}, most=300, X_Timeout_S="300").raise_for_status()

    def job() -> tuple[str, str, Any]:
        return "POST", "/v1/place", {"job": rng.choice(JOBS), "iterations": rng.randint(100, 100_000)}

    meet(target)
    figures = {"place_16_clients": measured(target, until(options.seconds, job), 16)}
    figures["place_2_clients"] = measured(target, until(options.seconds, job), 2)
    extra = [
        {"name": f"n{copy}-{k}", "gpus": gpus[k : k + 8]} for copy in range(10) for k in range(0, 800, 8)
    ]

    def node(k: int) -> tuple[str, str, Any]:
        return "PUT", f"/v1/cluster/nodes/{extra[k]['name']}", {"gpus": extra[k]["gpus"]}

    figures["node_updates"] = measured(target, iter([node(k) for k in range(200)]), 1)
    # One GPU more, then one less: the inventory changes every time.
    one_more = [(*node(k)[:2], {"gpus": [*extra[k]["gpus"], {"device": "v100"}]}) for k in range(200)]
    figures["node_changes"] = measured(target, itertools.chain(one_more, [node(k) for k in range(200)]), 1)
    mixed = [node(k % 200) if k % 5 == 0 else job() for k in range(500)]
    figures["one_in_five_a_node_update"] = measured(target, iter(mixed), 2)
    return figures


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    add_service(parser)
    parser.add_argument(
        "--gpus", type=int, default=1000, help="GPUs of the stored cluster (default: %(default)s)"
    )
    parser.add_argument(
        "--placements", type=int, default=2000, help="number of placements (default: %(default)s)"
    )
    parser.add_argument("--postgres", action="store_true", help="start and use a PostgreSQL server")
    parser.add_argument("--large", action="store_true", help="one client among 100,000 GPUs instead")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds, with --large (default: %(default)s)"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cotenant-stored-"))
        database = None
        if options.postgres:
            from tests.serving import postgres

            database = stack.enter_context(postgres.server(fsync=True)).url
        target = Target(
            options.checkout.resolve(),
            Path(folder),
            options.workers,
            database,
            "--limit",
            "body_bytes=268435456",
        )
        stack.callback(target.process.kill)
        figures = (large if options.large else reserved)(target, options)
    figures["load_average"] = psutil.getloadavg()
    print(json.dumps(figures, indent=1))
    record(
        "stored_large" if options.large else f"stored_{'postgres' if options.postgres else 'sqlite'}", figures
    )


if __name__ == "__main__":
    run_benchmark(__file__, main)
