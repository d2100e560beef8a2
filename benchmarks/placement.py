"""Speed of placement: one job among 10,000 GPUs, and 100 jobs on 100 GPUs.

    python -m benchmarks.placement [--model default|table] [--repeats 200]

`table` uses a synthetic table of thirty workloads instead of a predictor, which isolates the cost of
placement. Each GPU has up to three tenants. `few`: at most 1,000 distinct (device, tenants, remaining);
`all`: all differ. `known`: the sets were predicted before, as in a running service; `cold`: every set is new;
`cpu`: processor time, which other load does not change.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from profiling.workload import Workload
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.place import place
from scheduling.placement.queueing import QueueConfig
from scheduling.placement.ranking import Candidates, PlacementConfig, best_wait, rank
from scheduling.placement.stages import stages
from scheduling.policies.isacpp import decide
from scheduling.traces.mix import ZOO_MIX

DEVICES = ("v100", "p100", "k80")


class MadeUp:
    """A synthetic set predictor: slowdown grows with the members' demands."""

    def __init__(self) -> None:
        rng, count = np.random.default_rng(0), 30
        self.jobs = [Workload(f"workload-{k}") for k in range(count)]
        self.step = dict(zip(self.jobs, rng.uniform(0.02, 0.5, count), strict=True))
        self.appetite = dict(zip(self.jobs, rng.uniform(0.1, 0.9, count), strict=True))

    def predict_arrays(self, sets: Any) -> Any:
        from predictor.types import PredictionArrays

        shape = (len(sets), max(len(s.workloads) for s in sets))
        mask, solo, slow = np.zeros(shape, bool), np.ones(shape), np.ones(shape)
        use = np.zeros(shape)
        for row, colocation_set in enumerate(sets):
            size = len(colocation_set.workloads)
            mask[row, :size] = True
            solo[row, :size] = [
                self.step[w] * (1 + DEVICES.index(colocation_set.device)) for w in colocation_set.workloads
            ]
            use[row, :size] = [self.appetite[w] for w in colocation_set.workloads]
            slow[row, :size] = np.maximum(1.0, 0.4 * use[row, :size].sum() + 0.6)
        ones = np.ones(len(sets))
        return PredictionArrays(mask, solo, solo * slow, slow, use * 1e9, use / slow, ones, ones > 0)


def cluster(jobs: list[Workload], gpus: int, distinct: int | None, seed: int) -> ClusterSnapshot:
    """Create `gpus` GPUs in nodes of eight with up to three tenants each."""
    rng = np.random.default_rng(seed)

    def tenants() -> tuple[Tenant, ...]:
        picks = rng.integers(0, len(jobs), rng.integers(0, 4))
        return tuple(Tenant(jobs[k], float(rng.uniform(100, 1e5)), f"t{k}") for k in picks)

    states = [(str(rng.choice(DEVICES)), tenants()) for _ in range(distinct or gpus)]
    picks = rng.integers(0, len(states), gpus) if distinct else np.arange(gpus)
    built = [Gpu(str(k % 8), states[p][0], tenants=states[p][1]) for k, p in enumerate(picks.tolist())]
    return ClusterSnapshot(tuple(Node(f"n{k}", tuple(built[k : k + 8])) for k in range(0, gpus, 8)))


def one_job(predictor: Any, jobs: list[Workload], repeats: int) -> dict[str, Any]:
    """Milliseconds of one decision among 10,000 GPUs."""
    figures: dict[str, Any] = {}
    for name, distinct in (("few", 1000), ("all", None)):
        snapshot = cluster(jobs, 10_000, distinct, 1)
        cache = SetCache(predictor)
        start = perf_counter()
        place(jobs[0], 1000.0, snapshot, cache, PlacementConfig())
        cold = perf_counter() - start
        for job in jobs:
            place(job, 1000.0, snapshot, cache, PlacementConfig())
        times, cpu, rng = [], [], np.random.default_rng(2)
        for _ in range(repeats):
            job, steps = jobs[int(rng.integers(len(jobs)))], float(rng.uniform(100, 1e5))
            start, used = perf_counter(), process_time()
            place(job, steps, snapshot, cache, PlacementConfig())
            times.append(1e3 * (perf_counter() - start))
            cpu.append(1e3 * (process_time() - used))
        busy, full, full_cpu = _busy(cache, snapshot), [], []
        before = stages(
            cache, busy.devices, busy.members, busy.iterations, busy.present, np.zeros_like(busy.present)
        )
        for _ in range(max(repeats // 4, 5)):  # no empty GPU, so waiting has to be considered too
            job, steps = jobs[int(rng.integers(len(jobs)))], float(rng.uniform(100, 1e5))
            start, used = perf_counter(), process_time()
            number = cache.workload_id(job)
            score = rank(cache, busy, number, steps, PlacementConfig(), before).score.min()
            ids, left, bound = np.array([number]), np.array([steps]), np.array([score])
            best_wait(cache, busy, ids, left, PlacementConfig(), bound, before)
            full.append(1e3 * (perf_counter() - start))
            full_cpu.append(1e3 * (process_time() - used))
        figures[name] = {
            "cold_ms": 1e3 * cold,
            "p50_ms": float(np.percentile(times, 50)),
            "p99_ms": float(np.percentile(times, 99)),
            "cpu_p99_ms": float(np.percentile(cpu, 99)),
            "no_empty_gpu_p50_ms": float(np.percentile(full, 50)),
            "no_empty_gpu_p99_ms": float(np.percentile(full, 99)),
            "no_empty_gpu_cpu_p99_ms": float(np.percentile(full_cpu, 99)),
        }
        print(name, figures[name], flush=True)
    return figures


def _busy(cache: SetCache, snapshot: ClusterSnapshot) -> Candidates:
    states = {(g.device, g.tenants): g for _, g in snapshot.gpus() if g.tenants}
    return Candidates.of(cache, list(states.values()))


def hundred(predictor: Any, jobs: list[Workload]) -> dict[str, float]:
    """100 placements on 100 GPUs, one by one and as one joint decision."""
    cache = SetCache(predictor)
    snapshot = cluster(jobs, 100, None, 3)
    rng = np.random.default_rng(4)
    waiting = [(jobs[int(k)], float(rng.uniform(100, 1e5))) for k in rng.integers(0, len(jobs), 100)]
    seconds: dict[str, float] = {}
    for name in ("cold", "known"):
        start, used = perf_counter(), process_time()
        for job, steps in waiting:
            place(job, steps, snapshot, cache, PlacementConfig(limit=1))
        seconds[f"one_by_one_{name}_s"] = perf_counter() - start
        seconds[f"one_by_one_{name}_cpu_s"] = process_time() - used
    cache = SetCache(predictor)
    for name in ("cold", "known"):
        state = SchedulingSnapshot(snapshot)
        for number, (job, steps) in enumerate(waiting):
            state.waiting[number] = JobState(TraceJob(f"j{number}", job, steps), number, steps)
        start, used = perf_counter(), process_time()
        placed = decide(state, cache, PlacementConfig(max_members=4), QueueConfig(batch=100))
        seconds[f"joint_{name}_s"] = perf_counter() - start
        seconds[f"joint_{name}_cpu_s"] = process_time() - used
        seconds["joint_placed"] = float(len(placed))
    print(seconds, flush=True)
    return seconds


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--model", default="table", help="`table`, a checkpoint or a name (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=200, help="repeats of each decision (default: %(default)s)"
    )
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "placement", "model")
    predictor: Any = MadeUp()
    jobs: list[Workload] = predictor.jobs
    if arguments.model != "table":
        from predictor import load_predictor

        predictor, jobs = load_predictor(arguments.model), [Workload.parse(s) for s, _ in ZOO_MIX]
    figures = {"model": arguments.model, "one_job_of_10000_gpus": one_job(predictor, jobs, arguments.repeats)}
    figures["hundred_jobs_100_gpus"] = hundred(predictor, jobs)
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
