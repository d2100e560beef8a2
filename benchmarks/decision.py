"""Processor time of a placement decision after a change of the cluster, with a free predictor.

All states (GPU type and tenants) differ, with `copies` GPUs in each. Because processor time depends on other
load, `loop_ms` times a fixed loop at the same moment: compare two runs by their ratios to it.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from statistics import median
from typing import Any

import psutil

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import loop_ms, record
from benchmarks.stored import DEVICES, JOBS
from profiling.workload import Workload
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.placement.place import Placer

_CASES = ((1_000, 1), (10_000, 10))  # states, copies
_DECISIONS = 40


def measure(states: int, copies: int) -> dict[str, Any]:
    """Decisions on a cluster in which one GPU changes before each."""
    from tests.serving.table import TablePredictor

    rng, jobs = random.Random(1), [Workload.parse(spec) for spec in JOBS]

    def tenants(count: int) -> tuple[Tenant, ...]:
        return tuple(Tenant(rng.choice(jobs), float(rng.randint(100, 100_000))) for _ in range(count))

    gpus = [Gpu(str(k % 8), DEVICES[k % 3], "time-slice", tenants(rng.randint(0, 3))) for k in range(states)]
    nodes = [
        Node(f"n{copy}-{first}", tuple(gpus[first : first + 8]))
        for copy in range(copies)
        for first in range(0, states, 8)
    ]
    placer = Placer(TablePredictor())
    seconds: list[float] = []
    loops: list[float] = []
    for number in range(_DECISIONS + len(jobs)):  # the first decision of each job queries the predictor
        k = rng.randrange(len(nodes))
        changed = replace(nodes[k].gpus[0], tenants=tenants(1))
        nodes[k] = replace(nodes[k], gpus=(changed, *nodes[k].gpus[1:]))
        snapshot = ClusterSnapshot(tuple(nodes))
        started = time.process_time()
        placer.place(jobs[number % len(jobs)], float(rng.randint(100, 100_000)), snapshot)
        if number >= len(jobs):
            seconds.append(time.process_time() - started)
        if number % 5 == 0:
            loops.append(loop_ms())
    return {
        "states": states,
        "gpus": states * copies,
        "least_ms": round(1000 * min(seconds), 2),
        "median_ms": round(1000 * median(seconds), 2),
        "loop_least_ms": round(min(loops), 1),
        "loop_median_ms": round(median(loops), 1),
    }


def main() -> None:
    """Measure and record."""
    benchmark_parser(__file__, __doc__).parse_args()
    cases = [measure(*case) for case in _CASES]
    for case in cases:
        print(case)
    record("decision", {"cases": cases, "load_average": psutil.getloadavg()})


if __name__ == "__main__":
    run_benchmark(__file__, main)
