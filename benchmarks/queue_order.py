"""Queue orders for ISACPP, on synthetic pairs, to keep measured traces for evaluation.

    python -m benchmarks.queue_order [--seeds 6]

Sixteen workloads; a pair slows its members by the sum of their demands, with log-normal noise. Truth =
belief.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark, several
from benchmarks.record import record
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.queueing import QueueConfig
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies.isacpp import isacpp
from scheduling.simulator.engine import simulate

# jobs, GPUs, seconds within which jobs arrive, sigma of their log-normal lengths around half an hour
TRACES = (
    (51, 8, 3600.0, 0.8),
    (100, 12, 3600.0, 0.8),
    (200, 24, 3600.0, 0.8),
    (400, 48, 3600.0, 0.8),
    (200, 12, 3600.0, 1.5),
    (400, 8, 86400.0, 1.2),
)
QUEUES = {
    "fifo": QueueConfig("fifo", aging_s=math.inf),
    "shortest": QueueConfig("shortest", aging_s=math.inf),
    **{f"shortest, {h} h": QueueConfig("shortest", aging_s=3600.0 * h) for h in (6, 12, 24)},
}
FIGURES = ("mean_jct_s", "p99_jct_s", "makespan_s")


def made_up(seed: int) -> TablePredictor:
    """Every pair of 16 workloads on one GPU type."""
    rng, count = np.random.default_rng(seed), 16
    jobs = [Workload(f"workload-{k}") for k in range(count)]
    appetite, step = rng.uniform(0.2, 1.0, count), rng.lognormal(-2.0, 0.8, count)
    solo = {("v100", j): Solo(float(step[k]), 2.0**30, float(appetite[k])) for k, j in enumerate(jobs)}
    ratios: dict[tuple[str, tuple[Workload, ...]], tuple[float, ...]] = {}
    for i in range(count):
        for k in range(i, count):
            slowdown = np.maximum(1.0, (appetite[i] + appetite[k]) * rng.lognormal(0.0, 0.2, 2))
            ratios["v100", (jobs[i], jobs[k])] = tuple(float(1.0 / s) for s in slowdown)
    return TablePredictor(solo, ratios)


def trace(table: TablePredictor, jobs: int, span_s: float, sigma: float, seed: int) -> list[TraceJob]:
    """Draw `jobs` jobs that arrive within `span_s`."""
    rng = np.random.default_rng(1000 + seed)
    arrival, length = np.sort(rng.uniform(0, span_s, jobs)), rng.lognormal(np.log(1800.0), sigma, jobs)
    workloads = [workload for _, workload in table.solo]
    picks = [workloads[k] for k in rng.integers(0, len(workloads), jobs)]
    return [
        TraceJob(f"job-{k}", w, float(length[k]) / table.solo["v100", w].step_time_s, float(arrival[k]))
        for k, w in enumerate(picks)
    ]


def changes(
    objective: str, jobs: int, gpus: int, span_s: float, sigma: float, seeds: int
) -> dict[str, dict[str, float]]:
    """Change from `fifo` in each figure in per cent, mean over seeds, with the standard error of the mean
    completion time."""
    node = {"name": "node", "count": gpus // 4, "gpus": [{"device": "v100", "count": 4}]}
    cluster = ClusterSnapshot.from_mapping({"nodes": [node]})
    figures_of: dict[str, list[list[float]]] = {name: [] for name in QUEUES}
    for seed in range(seeds):
        table = made_up(seed)
        jobs_of, belief = trace(table, jobs, span_s, sigma, seed), SetCache(table)
        for name, queue in QUEUES.items():
            policy = isacpp(PlacementConfig(objective=objective, max_members=2), queue=queue)
            result = simulate(jobs_of, cluster, policy, SetTruth(belief), belief).to_json()
            figures_of[name].append([result[figure] for figure in FIGURES])
    first = np.array(figures_of["fifo"])
    report: dict[str, dict[str, float]] = {}
    for name in list(QUEUES)[1:]:
        percent = 100.0 * (np.array(figures_of[name]) / first - 1.0)
        report[name] = dict(zip(FIGURES, percent.mean(axis=0).tolist(), strict=True))
        report[name]["mean_jct_standard_error"] = float(percent[:, 0].std(ddof=1) / math.sqrt(seeds))
    return report


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--seeds", type=several, default=6, help="traces of each kind (default: %(default)s)")
    seeds = parser.parse_args().seeds
    figures: dict[str, object] = {"seeds": seeds}
    for objective in ("jct", "interference", "makespan"):
        for jobs, gpus, span_s, sigma in TRACES:
            title = f"{objective}: {jobs} jobs on {gpus} GPUs within {span_s / 3600:.0f} h, sigma {sigma}"
            figures[title] = report = changes(objective, jobs, gpus, span_s, sigma, seeds)
            print(title)
            for name, values in report.items():
                print(f"  {name:15s}", "  ".join(f"{k} {v:+.1f}" for k, v in values.items()), flush=True)
    record("queue_order", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
