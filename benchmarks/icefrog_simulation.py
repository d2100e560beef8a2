"""IceFrog against Tiresias, SRTF, Optimus, Pollux and itself with k = 0, on 48 V100 and Philly jobs.

`python -m benchmarks.icefrog_simulation --trace philly.csv [--seeds 5] [--loads 1] [--policies ...]`. Results
keep single runs, so `--first-seed` can add windows. Norm curves come from `benchmarks.icefrog_training` and
were fixed beforehand; step times come from the graphs, through `predictor.freezing`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import kept_rows, record
from predictor.examples.featurizer import shared_featurizer
from predictor.freezing import LayerThroughput, layer_throughput
from predictor.load import load_predictor
from predictor.types import PredictionArrays
from profiling.ending import end_with_parent
from profiling.workload import ColocationSet, SoloProfile, Workload
from scheduling.core.job import TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.elastic.agent import ElasticAgent, ElasticTruth, size_index
from scheduling.elastic.curves import norm_curve
from scheduling.elastic.jobs import SIZES, IceFrogConfig
from scheduling.elastic.penalty import FreezingGuards
from scheduling.elastic.policy import (
    icefrog,
    icefrog_unfrozen,
    optimus,
    optimus_shortest,
    pollux,
    pollux_freezing,
)
from scheduling.policies import srtf, tiresias
from scheduling.simulator.engine import SimulationConfig, simulate

NODES, GPUS_PER_NODE, DEVICE = 12, 4, "v100"
# Zoo name, batch size per GPU that the job requests, and the task whose gradient norms it has.
TYPES = (
    ("resnet18-cifar", 128, "cnn-digits"),
    ("resnet50-imagenet", 64, "cnn-digits"),
    ("mobilenetv2-cifar", 128, "cnn-digits"),
    ("vgg11-cifar", 128, "cnn-digits"),
    ("bert-base-wikitext2", 24, "lstm-scratch"),
    ("roberta-base-qnli", 32, "lstm-pretrained"),
)
CANDIDATES = 10
SHARING = ("icefrog-shared", "icefrog-shared-unfrozen")
LONGEST_S = 24 * 3600.0
JOBS_AT_LOAD = {0.5: 160, 1.0: 240, 1.5: 320, 2.0: 480}


@functools.cache
def step_parts(kind: int, cache: bool) -> tuple[tuple[int, ...], np.ndarray, np.ndarray, float]:
    """Candidate prefixes [K], batch sizes [B], times [B, K, 2] (per micro-batch; once per step), parameter
    bytes."""
    model, batch, _ = TYPES[kind]
    batches = np.array([max(batch // 8, 1), batch // 2, batch * 2])
    prefixes: tuple[int, ...] = ()
    parts = []
    for size in batches:
        workload = Workload(model, batch_size=int(size))
        graph = shared_featurizer().graph(workload)
        count = len(graph.layers)
        prefixes = tuple(sorted({int(count * 0.9 * i / (CANDIDATES - 1)) for i in range(CANDIDATES)}))
        rows: list[LayerThroughput] = [layer_throughput(workload, DEVICE, k, cache=cache) for k in prefixes]
        parts.append([(r.forward_s + r.backward_s, r.optimizer_s + r.overhead_s) for r in rows])
    shares = np.array([r.unfrozen_parameter_ratio for r in rows])
    return (
        prefixes,
        batches,
        np.concatenate(
            [np.array(parts), np.broadcast_to(shares[None, :, None], (3, len(prefixes), 1))], axis=2
        ),
        float(graph.parameter_bytes),
    )


@functools.cache
def rate_table(kind: int, asked: int, cache: bool) -> np.ndarray:
    """[S, K] steps per second at a total batch of `asked` times the batch size per GPU, for each number of
    GPUs.

    DDP is re-wrapped when a prefix freezes. The share of the batch beyond twice the batch size per GPU runs
    in micro-batches.
    """
    prefixes, batches, parts, parameter_bytes = step_parts(kind, cache)
    total = TYPES[kind][1] * asked
    table = np.zeros((len(SIZES), len(prefixes)))
    for s, gpus in enumerate(SIZES):
        if gpus > max(2 * asked, 4):
            continue
        per_gpu = total / gpus
        micro = max(1, int(np.ceil(per_gpu / batches[-1])))
        share = float(np.clip(per_gpu / micro, batches[0], None))
        rate = 12e9 if gpus <= GPUS_PER_NODE else 1.25e9 * 4  # PCIe inside a node, 40 Gb/s between
        exchange = 2.0 * parameter_bytes * (gpus - 1) / gpus / rate
        for k in range(len(prefixes)):
            pass_s = float(np.interp(share, batches, parts[:, k, 0]))
            once_s = float(np.interp(share, batches, parts[:, k, 1]))
            hidden = 0.5 * pass_s if gpus > 1 else 0.0
            exposed = max(exchange * parts[0, k, 2] - hidden, 0.05 * exchange)
            table[s, k] = 1.0 / (micro * pass_s + once_s + exposed)
    return table


@functools.cache
def shares_table(kind: int, curve: str) -> tuple[np.ndarray, np.ndarray]:
    """(progress [P], S [P, K]) of the candidates; `uniform` spreads the norm evenly over layers."""
    prefixes = step_parts(kind, False)[0]
    smallest = Workload(TYPES[kind][0], batch_size=max(TYPES[kind][1] // 8, 1))
    depth = np.array(prefixes) / len(shared_featurizer().graph(smallest).layers)
    grid, shares = norm_curve(TYPES[kind][2], depth)
    return grid, np.broadcast_to(depth, shares.shape).copy() if curve == "uniform" else shares


class StepTimes:
    """The belief of gang policies: the true step time of each job on the GPUs it requests."""

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        width = max(len(s.workloads) for s in sets)
        times = np.ones((len(sets), width))
        mask = np.zeros((len(sets), width), dtype=bool)
        for row, jobs_together in enumerate(sets):
            for column, workload in enumerate(jobs_together.workloads):
                times[row, column] = workload.solo.step_time_s or 1.0
                mask[row, column] = True
        ones = np.ones_like(times)
        return PredictionArrays(
            mask, times, times, ones, ones * 1e9, ones, ones[:, 0] * 1e9, mask.sum(axis=1) == 1
        )


@dataclass(frozen=True)
class Case:
    """One simulation: a window, a load and a policy."""

    policy: str
    load: float
    seed: int
    kappa: float = 2.0
    cache: bool = False
    curve: str = "measured"
    shortness: float = 0.0


def window(trace: Path, load: float, seed: int) -> list[tuple[float, float, int, int]]:
    """(submitted, seconds on the requested GPUs, GPUs, type) of consecutive Philly jobs at a given offered
    load.

    Jobs use at most 16 GPUs and last at most 24 h. Arrivals keep their order and relative gaps; the window is
    stretched or compressed until the requested GPU-seconds are `load` times what 48 GPUs offer while jobs
    arrive.
    """
    import pandas as pd

    frame = pd.read_csv(trace)
    frame = frame[(frame.num_gpus <= 16) & (frame.duration >= 60) & (frame.duration <= LONGEST_S)]
    frame = frame.assign(at=pd.to_datetime(frame.timestamp)).sort_values("at", kind="stable")
    count = JOBS_AT_LOAD[load]
    generator = np.random.default_rng(1000 + seed)
    first = int(generator.integers(len(frame) - count))
    rows = frame.iloc[first : first + count]
    gpus = np.array([SIZES[size_index(int(n))] for n in rows.num_gpus])
    duration = rows.duration.to_numpy(dtype=float)
    at = (rows["at"] - rows["at"].iloc[0]).dt.total_seconds().to_numpy()
    span = float((gpus * duration).sum()) / (NODES * GPUS_PER_NODE * load)
    at = at / max(float(at[-1]), 1.0) * span
    kinds = generator.integers(len(TYPES), size=count)
    return list(zip(at.tolist(), duration.tolist(), gpus.tolist(), kinds.tolist(), strict=True))


@functools.cache
def slowdowns() -> SetCache:
    """Slowdowns of pairs on one GPU, from the shipped predictor, used both as belief and as ground truth."""
    return SetCache(load_predictor())


def build_policy(case: Case) -> Policy:
    config = IceFrogConfig(
        guards=FreezingGuards(kappa=case.kappa), shortness=case.shortness, share_gpus=case.policy in SHARING
    )
    made = {
        "icefrog": lambda: icefrog(config),
        "icefrog-unfrozen": lambda: icefrog_unfrozen(config),
        "icefrog-shared": lambda: icefrog(config),
        "icefrog-shared-unfrozen": lambda: icefrog_unfrozen(config),
        "optimus": lambda: optimus(config),
        "optimus-shortest": lambda: optimus_shortest(config),
        "pollux": lambda: pollux(config),
        "pollux-freezing": lambda: pollux_freezing(config),
        "tiresias": lambda: tiresias.POLICY,
        "srtf": lambda: srtf.POLICY,
    }
    return made[case.policy]()


def run(case: Case, trace: Path) -> dict[str, Any]:
    """Simulate one case."""
    jobs = []
    sharing = case.policy in SHARING
    for number, (at, duration, gpus, kind) in enumerate(window(trace, case.load, case.seed)):
        step = 1.0 / float(rate_table(kind, gpus, False)[size_index(gpus), 0])
        jobs.append(
            TraceJob(
                id=f"{number}-{kind}",
                # Only gang policies need the step time; pairs are cached by workload.
                workload=Workload(TYPES[kind][0], batch_size=TYPES[kind][1])
                if sharing
                else Workload(TYPES[kind][0], solo=SoloProfile(step_time_s=step)),
                iterations=duration / step,
                submit_s=at,
                gpus=gpus,
            )
        )

    def agent(job: TraceJob) -> ElasticAgent:
        kind = int(job.id.split("-")[1])
        grid, shares = shares_table(kind, case.curve)
        table = rate_table(kind, job.gpus, case.cache).copy()
        table[:, 0] = rate_table(kind, job.gpus, False)[:, 0]
        return ElasticAgent(step_parts(kind, False)[0], table, grid, shares, case.kappa)

    cluster = ClusterSnapshot(
        tuple(
            Node(f"node-{n}", tuple(Gpu(str(g), DEVICE) for g in range(GPUS_PER_NODE))) for n in range(NODES)
        )
    )
    begin = time.perf_counter()
    result = simulate(
        jobs,
        cluster,
        build_policy(case),
        ElasticTruth(shared=slowdowns() if sharing else None),
        slowdowns() if sharing else StepTimes(),
        SimulationConfig(reevaluate_each_round=True),
        agent=agent,
    )
    agents = [state.agent for state in result.jobs]
    return {
        "case": case,
        **result.to_json(),
        "mean_debt": float(np.mean([a.debt for a in agents])),
        "max_debt": float(np.max([a.debt for a in agents])),
        "size_changes": int(sum(a.size_changes for a in agents)),
        "prefix_changes": int(sum(a.prefix_changes for a in agents)),
        "wall_s": time.perf_counter() - begin,
    }


def cases(seeds: Iterable[int], loads: Sequence[float]) -> list[Case]:
    """The cases to simulate.

    Peers, controls and IceFrog (kappa 2, also with shared GPUs) at every load; at load 1 also variations of
    kappa and norms.
    """
    distinct: dict[Case, None] = {}
    for seed in seeds:
        for load in loads:
            for policy in (*PEERS, "pollux-freezing"):
                distinct[Case(policy, load, seed)] = None
            for policy in ("icefrog-unfrozen", *SHARING):
                distinct[Case(policy, load, seed, shortness=1.0)] = None
            for cached in (False, True):
                for kappa in (1.0, 1.5, 2.0, 3.0) if load == 1.0 else (2.0,):
                    distinct[Case("icefrog", load, seed, kappa, cached, "measured", 1.0)] = None
                if load == 1.0:
                    distinct[Case("icefrog", load, seed, 2.0, cached, "uniform", 1.0)] = None
    return list(distinct)


PEERS = ("tiresias", "srtf", "optimus", "optimus-shortest", "pollux")
# Policy that freezes -> the same allocator without freezing.
CONTROLS = {
    "icefrog": "icefrog-unfrozen",
    "icefrog-shared": "icefrog-shared-unfrozen",
    "pollux-freezing": "pollux",
}
NUMBERS = (
    "mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "gpu_hours", "mean_debt", "max_debt",
    "size_changes", "prefix_changes", "restarts", "mean_decision_s", "p99_decision_s",
)  # fmt: skip


def table_of(runs: Mapping[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the windows of each case, and changes of the mean JCT in percent against its peers; printed, too."""
    groups: dict[Case, list[dict[str, Any]]] = {}
    for case in sorted(runs, key=lambda c: c.seed):
        groups.setdefault(replace(case, seed=-1), []).append(runs[case])
    table = []
    for case, rows in groups.items():
        entry = {k: getattr(case, k) for k in ("policy", "load", "kappa", "cache", "curve", "shortness")}
        entry |= {"seeds": len(rows), "jobs": rows[0]["jobs"]}
        entry |= {name: float(np.mean([row[name] for row in rows])) for name in NUMBERS}
        control = CONTROLS.get(case.policy)
        for peer in dict.fromkeys((*PEERS, control)) if control else ():
            other = groups.get(
                Case(str(peer), case.load, -1, shortness=0.0 if peer in PEERS else case.shortness)
            )
            if other and len(other) == len(rows):
                change = [a["mean_jct_s"] / b["mean_jct_s"] - 1 for a, b in zip(rows, other, strict=True)]
                entry[f"jct_change_vs_{peer}_percent"] = 100.0 * float(np.mean(change))
                if len(change) > 1:
                    error = float(np.std(change, ddof=1)) / len(change) ** 0.5
                    entry[f"jct_change_vs_{peer}_standard_error"] = 100.0 * error
        table.append(entry)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in entry.items()})
    return table


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--trace", type=Path, required=True, help="CSV of Philly's jobs")
    parser.add_argument(
        "--seeds", type=int, default=5, help="windows of the trace per load (default: %(default)s)"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="keep stored windows before this one")
    parser.add_argument(
        "--loads",
        type=float,
        nargs="+",
        choices=sorted(JOBS_AT_LOAD),
        default=sorted(JOBS_AT_LOAD),
        help="only these loads (default: %(default)s)",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=(*PEERS, *CONTROLS, *(c for c in CONTROLS.values() if c not in PEERS)),
        help="only these; `icefrog` then uses kappa 2 and no cache",
    )
    parser.add_argument("--name", default="icefrog_simulation", help="name of the results file")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that simulate (default: %(default)s)"
    )
    options = parser.parse_args()
    for kind in range(len(TYPES)):  # capture the graphs once, before the pool
        for cache in (False, True):
            step_parts(kind, cache)
    todo = cases(range(options.first_seed, options.first_seed + options.seeds), options.loads)
    if options.policies:
        plain = [
            c
            for c in todo
            if c.policy != "icefrog" or (c.kappa, c.cache, c.curve) == (2.0, False, "measured")
        ]
        todo = [c for c in plain if c.policy in options.policies]
    # Runs of other windows and loads are kept and say when they were made; a repeated case replaces its earlier run.
    runs = {Case(**row["case"]): row for row in kept_rows(options.name, "runs")}
    results: Iterable[dict[str, Any]] = map(run, todo, [options.trace] * len(todo))
    if options.processes > 1:
        with ProcessPoolExecutor(options.processes, initializer=end_with_parent) as pool:
            results = list(pool.map(run, todo, [options.trace] * len(todo), chunksize=4))
    for row in results:
        case = row["case"]
        kept = {name: row[name] for name in ("jobs", *NUMBERS)}
        runs[case] = {"case": asdict(case), **kept}
        print(case, f"{row['mean_jct_s']:.0f} s, simulated in {row['wall_s']:.0f} s", flush=True)
    table = table_of(runs)
    record(
        options.name, {"types": [t[0] for t in TYPES], "rows": table, "runs": [runs[case] for case in runs]}
    )


if __name__ == "__main__":
    run_benchmark(__file__, main)
