"""The demo: which pairs share a GPU well, and a dozen jobs on four GPUs under three policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from predictor.types import SetPredictor
from profiling.figures import save_figure
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import NoisyPredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.gantt import draw_gantt
from scheduling.simulator.result import SimulationResult

# Models that are quick to capture and of different kinds: convolutions, recurrence, attention, embeddings.
MODELS = (
    "resnet18-cifar:batch_size=128",
    "lstm-wikitext2:batch_size=20",
    "transformer-multi30k:batch_size=64",
    "neumf-ml1m:batch_size=1024",
    "resnet50-imagenet:batch_size=32",
    "dcgan-64:batch_size=64",
    "autoencoder-ml20m:batch_size=512",
    "bert-base-squad:batch_size=16",
)
JOBS = 12
POLICIES = ("exclusive", "blind", "isacpp")
# Prediction error in the comparison: sigma of the log excess slowdown.
NOISE = 0.15


@dataclass(frozen=True, slots=True)
class Pair:
    """Two jobs on one GPU.

    Attributes:
        slowdown: of each, at least 1.
        throughput_ratio: sum over both of co-located / solo throughput; at 1, sharing is no better than
            taking turns.
    """

    jobs: ColocationSet
    slowdown: tuple[float, float]
    throughput_ratio: float
    memory_upper_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Start:
    """A simulated job at its first start: where, and beside which jobs."""

    job: JobState
    gpu: str
    beside: tuple[JobState, ...]


def pairs(predictor: SetPredictor, device: str = "v100") -> list[Pair]:
    """Every pair of `MODELS` on one GPU, best first, those that do not fit last."""
    workloads = [Workload.parse(spec) for spec in MODELS]
    sets = [ColocationSet(device, pair) for pair in combinations_with_replacement(workloads, 2)]
    answer = predictor.predict_arrays(sets)
    rated = [
        Pair(
            pair,
            (float(slowdown[0]), float(slowdown[1])),
            float((1.0 / slowdown[:2]).sum()),
            float(memory),
            bool(fits),
        )
        for pair, slowdown, memory, fits in zip(
            sets, answer.slowdown, answer.memory_upper_bytes, answer.fits, strict=True
        )
    ]
    return sorted(rated, key=lambda pair: (not pair.fits, -pair.throughput_ratio))


def demo_cluster() -> ClusterSnapshot:
    """Two V100 and two P100."""
    return ClusterSnapshot(
        tuple(
            Node(name, tuple(Gpu(str(k), device) for k in range(2)))
            for name, device in (("fast", "v100"), ("slow", "p100"))
        )
    )


def demo_jobs(predictor: SetPredictor, seed: int = 0) -> list[TraceJob]:
    """A stream: models in turn, about half an hour each on a V100, one every three minutes."""
    rng = np.random.default_rng(seed)
    workloads = [Workload.parse(spec) for spec in MODELS]
    alone = predictor.predict_arrays([ColocationSet("v100", (w,)) for w in workloads]).step_time_s[:, 0]
    arrivals = np.cumsum(rng.exponential(180.0, JOBS))
    durations = rng.lognormal(np.log(1800.0), 0.5, JOBS)
    return [
        TraceJob(
            f"job-{k + 1}",
            workloads[k % len(workloads)],
            float(durations[k] / alone[k % len(workloads)]),
            float(arrivals[k]),
        )
        for k in range(JOBS)
    ]


def run_policies(
    jobs: Sequence[TraceJob], cluster: ClusterSnapshot, predictor: SetPredictor, seed: int = 0
) -> dict[str, SimulationResult]:
    """Run the stream through the simulator under `POLICIES`, against a ground truth with a random error."""
    truth = SetTruth(SetCache(NoisyPredictor(predictor, NOISE, seed)))
    return {
        name: simulate(
            jobs, cluster, get_policy(name), truth, SetCache(predictor), SimulationConfig(record=True)
        )
        for name in POLICIES
    }


def starts(result: SimulationResult) -> list[Start]:
    """Where each job first started and whom it joined there, by time."""
    first: dict[int, Any] = {}
    for interval in sorted(result.intervals, key=lambda i: i.start_s):
        first.setdefault(interval.job, interval)
    return [
        Start(
            result.jobs[interval.job],
            result.gpu_names[interval.gpu],
            tuple(
                result.jobs[other.job]
                for other in result.intervals
                if other.gpu == interval.gpu
                and other.job != interval.job
                and other.start_s <= interval.start_s < other.stop_s
            ),
        )
        for interval in first.values()
    ]


def draw(results: dict[str, SimulationResult], path: Path) -> None:
    """Draw Gantt charts of the cluster without and with sharing, one above the other.

    The suffix of `path` selects the format.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    colors = dict(zip(MODELS, colormaps["tab10"].colors, strict=False))  # type: ignore[attr-defined]
    shown = {"exclusive": "one job per GPU", "isacpp": "shared by prediction (isacpp)"}
    figure = Figure(figsize=(9, 5.2))
    axes = figure.subplots(len(shown), 1, sharex=True)
    for axis, (name, title) in zip(axes, shown.items(), strict=True):
        result = results[name]
        draw_gantt(axis, result, color_of=lambda job: colors[str(job.job.workload)])
        mean_s, hours = float(result.completion_s.mean()), result.busy_s / 3600.0
        axis.set_title(f"{title}: {hours:.1f} GPU hours, mean completion time {mean_s / 60:.0f} min")
    axes[0].set_xlabel("")
    figure.legend(
        handles=[Patch(color=c, label=m.partition(":")[0]) for m, c in colors.items()],
        loc="lower center",
        ncols=4,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    save_figure(figure, path)
