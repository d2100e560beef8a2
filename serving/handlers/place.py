"""Placement decisions on a cluster that the caller describes, or on the stored one."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from predictor.types import Floats
from profiling.devices import get_device
from profiling.errors import CotenantError, InfeasibleError, InputError, LimitError
from profiling.workload import Workload
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Tenant
from scheduling.placement.by_policy import PolicyPlacer
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.place import Placer
from scheduling.placement.ranking import PlacementConfig
from serving.batching import INLINE_GPUS
from serving.feedback import Belief
from serving.handlers.cluster import check_body, check_tenants, read_inventory
from serving.handlers.jobs import admit, without_unknown, without_unpredictable
from serving.handlers.lengths import fill_lengths
from serving.lanes import Lane
from serving.schemas import ClusterBody, PlaceBody, job_of
from serving.service import Service


async def decide(service: Service, body: PlaceBody) -> dict[str, Any]:
    """Rank the GPUs for a job, or for each job of a queue in order; each job sees those placed before it.

    Raises:
        InputError: neither or both of `job` and `jobs`; the cluster is empty.
        InfeasibleError: the job fits on no GPU of the cluster. In a queue, only the decision about that job says so.
    """
    if (body.job is UNSET) == (body.jobs is UNSET):
        given = "neither" if body.job is UNSET else "both"
        raise InputError("the body must have one of two fields", expected="either 'job' or 'jobs'", got=given)
    service.life.current()
    batcher = service.batcher
    config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
    if not isinstance(body.cluster, ClusterBody):
        snapshot = (await service.read(service.cluster.current)).snapshot
        belief = service.belief()
        return await _decided(service, body, snapshot, config, belief, belief.placer, batcher.placing)
    size = check_body(body.cluster, service.config)
    check_tenants(body.cluster, service.config)
    await fill_lengths(service, body.cluster)
    small = size <= INLINE_GPUS
    snapshot = _given(body.cluster) if small else await batcher.bulk.run(_given, body.cluster)
    belief, lane = service.belief(), batcher.sketching if small else batcher.describing
    with belief.aside.placer() as placer:
        return await _decided(service, body, snapshot, config, belief, placer, lane)


async def _decided(
    service: Service,
    body: PlaceBody,
    snapshot: ClusterSnapshot,
    config: PlacementConfig,
    belief: Belief,
    placer: Placer,
    lane: Lane,
) -> dict[str, Any]:
    """The decision about one job, or those about a queue, all with the same model."""

    async def choose(job: Workload, present: ClusterSnapshot) -> PlacementDecision:
        prepared = await prepare(service, belief, job, present)
        started = time.perf_counter()
        outcome: PlacementDecision | CotenantError
        try:
            outcome = await lane.run(placer.place, job, body.iterations, prepared, config)
        except InfeasibleError as error:
            outcome = error
        return counted(service, outcome, time.perf_counter() - started)

    if body.job is not UNSET:
        decision = await choose(job_of(body.job), snapshot)
        return decision.to_json()
    assert body.jobs is not UNSET
    if len(body.jobs) > service.config.batch_sets:
        raise LimitError(
            "the queue is too long", expected=f"at most {service.config.batch_sets} jobs", got=len(body.jobs)
        )
    decisions = []
    for job in map(job_of, body.jobs):
        try:
            decision = await choose(job, snapshot)
        except InfeasibleError as error:
            decisions.append(PlacementDecision("infeasible", (), (error.message,)).to_json())
            continue
        decisions.append(decision.to_json())
        if decision.decision == "place":
            top = decision.ranked[0]
            assert decision.iterations is not None
            tenant = Tenant(job, decision.iterations, max_slowdown=body.max_slowdown)
            snapshot = with_tenant(snapshot, top.node, top.gpu, tenant)
    return {"decisions": decisions}


def _given(body: ClusterBody) -> ClusterSnapshot:
    """The cluster in a body as a snapshot.

    Raises:
        InputError: invalid job or GPU.
        UnknownNameError: unknown device, which only a stored cluster may have.
    """
    snapshot = read_inventory(body).snapshot
    for device in {gpu.device for _, gpu in snapshot.gpus()}:
        get_device(device)
    return snapshot


async def prepare(
    service: Service, belief: Belief, job: Workload, snapshot: ClusterSnapshot
) -> ClusterSnapshot:
    """Encode the job and all tenants, so that other decisions do not wait for that.

    Returns the snapshot without GPUs of unknown types, or with tenants that are unknown or cannot be predicted.

    Raises:
        UnknownNameError: unknown model, or no GPU remains.
        InputError: no GPU remains.
    """
    await admit(service, (job,))
    snapshot = await without_unknown(service, snapshot)
    serving = belief.serving
    await service.batcher.meet(serving, snapshot, job, partial(admit, service))
    return without_unpredictable(service, serving, snapshot)


async def score_gpus(
    service: Service,
    job: Workload,
    iterations: float | None,
    snapshot: ClusterSnapshot,
    config: PlacementConfig,
) -> tuple[ClusterSnapshot, Floats]:
    """[G] scores of the GPUs of the stored cluster (`Placer.scores`), and the snapshot with these GPUs.

    Raises:
        InfeasibleError: the job fits on no GPU of the cluster.
    """
    belief = service.belief()
    snapshot = await prepare(service, belief, job, snapshot)
    started = time.perf_counter()
    scores = await service.batcher.placing.run(belief.placer.scores, job, iterations, snapshot, config)
    service.metrics.decision_duration.observe(time.perf_counter() - started)
    return snapshot, scores


async def choose_gpu(
    service: Service,
    job: Workload,
    iterations: float | None,
    snapshot: ClusterSnapshot,
    config: PlacementConfig,
) -> tuple[str, str] | None:
    """The GPU that the configured policy chooses in a cluster that `score_gpus` returned or in a part of it.

    None if it lets the job wait, or if there is no policy. A cluster without GPUs leaves it no choice.
    """
    placer = service.belief().placer
    if not isinstance(placer, PolicyPlacer) or not any(node.gpus for node in snapshot.nodes):
        return None
    choice: tuple[str, str] | None = await service.batcher.placing.run(
        placer.choose, job, iterations, snapshot, config
    )
    return choice


def counted(service: Service, outcome: PlacementDecision | CotenantError, took_s: float) -> PlacementDecision:
    """The decision, counted in the metrics; errors are counted and raised."""
    if isinstance(outcome, CotenantError):
        if isinstance(outcome, InfeasibleError):
            service.metrics.placements.labels("infeasible").inc()
        raise outcome
    service.metrics.decision_duration.observe(took_s)
    service.metrics.placements.labels(outcome.decision).inc()
    return outcome


def with_tenant(
    snapshot: ClusterSnapshot, node: str, gpu: str, tenant: Tenant, place: int | None = None
) -> ClusterSnapshot:
    """The snapshot with one more job on a GPU; all other nodes are the same objects.

    Args:
        place: index of the node in the snapshot, if known.
    """

    def on_gpu(present: Gpu) -> Gpu:
        return replace(present, tenants=(*present.tenants, tenant)) if present.id == gpu else present

    if place is None:
        place = next(k for k, candidate in enumerate(snapshot.nodes) if candidate.name == node)
    changed = replace(snapshot.nodes[place], gpus=tuple(map(on_gpu, snapshot.nodes[place].gpus)))
    return replace(snapshot, nodes=(*snapshot.nodes[:place], changed, *snapshot.nodes[place + 1 :]))
