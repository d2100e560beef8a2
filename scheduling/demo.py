"""The main job in small: a dozen jobs meet a small mixed cluster, placed one by one and compared with simpler rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from predictor.types import SetPredictor
from profiling.workload import Workload
from scheduling.beliefs.table import NoisyPredictor
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.truth import SetTruth
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.place import Placer
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate
from scheduling.simulator.result import SimulationResult

# Quick to capture, and of different character: convolutions, recurrence, attention, embeddings.
MODELS = (
    "resnet18-cifar:batch_size=128",
    "lstm-wikitext2:batch_size=20",
    "transformer-multi30k:batch_size=64",
    "vgg11-cifar:batch_size=128",
    "neumf-ml1m:batch_size=1024",
    "dcgan-64:batch_size=64",
)
# How far reality departs from the prediction in the comparison: sigma of the log slowdown.
NOISE = 0.15


@dataclass(frozen=True, slots=True)
class Placed:
    """One job of the stream and what was decided for it."""

    job: TraceJob
    decision: PlacementDecision


def demo_cluster() -> ClusterSnapshot:
    """Three V100, two P100 and one K80."""
    return ClusterSnapshot(
        (
            Node("fast", tuple(Gpu(str(k), "v100") for k in range(3))),
            Node("middle", tuple(Gpu(str(k), "p100") for k in range(2))),
            Node("old", (Gpu("0", "k80"),)),
        )
    )


def demo_jobs(predictor: SetPredictor, count: int = 12, seed: int = 0) -> list[TraceJob]:
    """A stream: models in turn, about half an hour each on a V100, one every three minutes."""
    from profiling.workload import ColocationSet

    rng = np.random.default_rng(seed)
    workloads = [Workload.parse(spec) for spec in MODELS]
    alone = predictor.predict_arrays([ColocationSet("v100", (w,)) for w in workloads]).step_time_s[:, 0]
    arrivals = np.cumsum(rng.exponential(180.0, count))
    durations = rng.lognormal(np.log(1800.0), 0.5, count)
    return [
        TraceJob(
            f"job-{k + 1}",
            workloads[k % len(workloads)],
            float(durations[k] / alone[k % len(workloads)]),
            float(arrivals[k]),
        )
        for k in range(count)
    ]


def stream(jobs: list[TraceJob], cluster: ClusterSnapshot, predictor: SetPredictor) -> Iterator[Placed]:
    """Place jobs one after another on what is left of the cluster; a job that should wait is left out of it."""
    placer = Placer(predictor)
    snapshot = cluster
    for job in jobs:
        decision = placer.place(job.workload, job.iterations, snapshot)
        yield Placed(job, decision)
        if decision.decision == "place":
            best = decision.ranked[0]
            snapshot = _with_tenant(
                snapshot, best.node, best.gpu, Tenant(job.workload, job.iterations, job.id)
            )


def rules(
    jobs: list[TraceJob], cluster: ClusterSnapshot, predictor: SetPredictor, seed: int = 0
) -> dict[str, SimulationResult]:
    """The stream through the simulator under three rules, in a world that departs from the prediction by chance."""
    truth = SetTruth(SetCache(NoisyPredictor(predictor, NOISE, seed)))
    return {
        name: simulate(jobs, cluster, get_policy(name), truth, SetCache(predictor))
        for name in ("exclusive", "blind", "isacpp")
    }


def _with_tenant(snapshot: ClusterSnapshot, node: str, gpu: str, tenant: Tenant) -> ClusterSnapshot:
    nodes = tuple(
        replace(n, gpus=tuple(replace(g, tenants=(*g.tenants, tenant)) if g.id == gpu else g for g in n.gpus))
        if n.name == node
        else n
        for n in snapshot.nodes
    )
    return replace(snapshot, nodes=nodes)
