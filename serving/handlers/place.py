"""Where jobs go: on a cluster that the caller describes, or on the stored one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from profiling.errors import InfeasibleError, InputError, LimitError
from profiling.workload import Workload
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.placement.decision import PlacementDecision
from scheduling.placement.ranking import PlacementConfig
from serving.handlers.cluster import stored_snapshot
from serving.handlers.jobs import admit
from serving.schemas import PlaceBody, job_of, plain
from serving.service import Service


async def decide(service: Service, body: PlaceBody) -> dict[str, Any]:
    """Rank the GPUs for a job, or for each job of a queue in its order; a queue's jobs see those placed before them.

    Raises:
        InputError: neither or both of `job` and `jobs`; the cluster is empty.
        InfeasibleError: the job fits on no GPU of the cluster.
    """
    if (body.job is UNSET) == (body.jobs is UNSET):
        raise InputError("body names no work", expected="either 'job' or 'jobs'", got="neither or both")
    service.life.current()
    config = PlacementConfig(objective=body.objective, max_slowdown=body.max_slowdown)
    if body.cluster is UNSET:
        snapshot, _ = await service.stored(stored_snapshot, service)
    else:
        snapshot = ClusterSnapshot.from_mapping(plain(body.cluster))
        check_size(snapshot, service.config.cluster_gpus)
    if body.job is not UNSET:
        decision = await choose(service, job_of(body.job), body.iterations, snapshot, config)
        return decision.to_json()
    assert body.jobs is not UNSET
    if len(body.jobs) > service.config.batch_sets:
        raise LimitError(
            "the queue is too long", expected=f"at most {service.config.batch_sets} jobs", got=len(body.jobs)
        )
    decisions = []
    for job in map(job_of, body.jobs):
        try:
            decision = await choose(service, job, body.iterations, snapshot, config)
        except InfeasibleError as error:
            decisions.append({"decision": "wait", "ranked": [], "reasons": [error.message]})
            continue
        decisions.append(decision.to_json())
        if decision.decision == "place":
            top = decision.ranked[0]
            steps = body.iterations if body.iterations is not None else 1e6
            snapshot = with_tenant(snapshot, top.node, top.gpu, Tenant(job, steps))
    return {"decisions": decisions}


async def choose(
    service: Service,
    job: Workload,
    iterations: float | None,
    snapshot: ClusterSnapshot,
    config: PlacementConfig,
) -> PlacementDecision:
    """One decision with the serving model and its corrections; new workloads are encoded first, away from the others' decisions."""
    belief, batcher = service.belief(), service.batcher
    await batcher.meet(
        belief.serving, snapshot, job, lambda workloads, devices: admit(service, workloads, devices)
    )
    started = time.perf_counter()
    try:
        decision = await batcher.place(belief.placer.place, job, iterations, snapshot, config)
    except InfeasibleError:
        service.metrics.placements.labels("infeasible").inc()
        raise
    service.metrics.decision_duration.observe(time.perf_counter() - started)
    service.metrics.placements.labels(decision.decision).inc()
    return decision


def check_size(snapshot: ClusterSnapshot, limit: int) -> None:
    """Raises `LimitError` where the cluster has more GPUs than the service takes."""
    count = sum(len(node.gpus) for node in snapshot.nodes)
    if count > limit:
        raise LimitError("the cluster is too large", expected=f"at most {limit} GPUs", got=count)


def with_tenant(snapshot: ClusterSnapshot, node: str, gpu: str, tenant: Tenant) -> ClusterSnapshot:
    """The snapshot with one more job on one GPU."""

    def on_gpu(one: Gpu) -> Gpu:
        return replace(one, tenants=(*one.tenants, tenant)) if one.id == gpu else one

    def on_node(one: Node) -> Node:
        return replace(one, gpus=tuple(map(on_gpu, one.gpus))) if one.name == node else one

    return replace(snapshot, nodes=tuple(map(on_node, snapshot.nodes)))
