"""Writes placement decisions to the store; a batch takes one transaction of a few statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from profiling.errors import CotenantError, UnknownNameError
from profiling.workload import REGISTERED, Workload
from scheduling.core.snapshot import Tenant
from scheduling.placement.decision import PlacementDecision, RankedGpu
from serving.cluster_state import ClusterState, job_of, kind_of
from serving.handlers.idempotency import remember, replay
from serving.handlers.jobs import not_registered
from serving.handlers.placements import entry_from
from serving.handlers.tenancy import values_of
from serving.http import Once
from serving.schemas import PlacementBody
from serving.service import Service
from serving.store.tables import ClusterRow, NodeRow, PlacementRow, TenantRow, WorkloadRow, table_of

Answer = tuple[int, dict[str, Any]]  # status and entry

_CLUSTER, _NODES, _TENANTS, _PLACEMENTS = map(table_of, (ClusterRow, NodeRow, TenantRow, PlacementRow))
_NEWEST = select(
    _CLUSTER.c.version, _CLUSTER.c.changes, select(func.max(_PLACEMENTS.c.sequence)).scalar_subquery()
).where(_CLUSTER.c.id == 1)
_ADD_PLACEMENTS, _ADD_TENANTS = insert(_PLACEMENTS), insert(_TENANTS)
_TOUCH_NODES = (
    update(_NODES)
    .where(_NODES.c.name.in_(bindparam("names", expanding=True)))
    .values(revision=bindparam("number"))
)
_ADVANCE = (
    update(_CLUSTER)
    .where(_CLUSTER.c.id == 1)
    .values(changes=bindparam("number"), version=bindparam("to_version"))
)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A requested placement; its `placement_id` is assigned at once."""

    placement_id: str
    body: PlacementBody
    job: Workload
    once: Once | None

    def tenant(self, decision: PlacementDecision) -> Tenant:
        """The tenant that it becomes, equal to the one later read from the store."""
        assert decision.iterations is not None
        return Tenant(
            self.job, decision.iterations, self.body.job_id or self.placement_id, self.body.max_slowdown
        )


def keep(
    service: Service, decided: list[tuple[Asked, PlacementDecision]], state: ClusterState
) -> list[Answer | CotenantError | None]:
    """Write the decisions in one transaction; None for each whose GPU has changed since it was ranked."""
    if not decided:
        return []
    with service.store.write() as session:
        connection = session.connection()
        version, changes, sequence = connection.execute(_NEWEST).first() or (0, 0, None)
        now, model = service.store.now(session), service.life.current().version
        answers: list[Answer | CotenantError | None] = []
        rows: list[dict[str, Any]] = []
        tenants: list[dict[str, Any]] = []
        for asked, decision in decided:
            try:
                given = replay(session, asked.once)
            except CotenantError as error:
                answers.append(error)
                continue
            if given is not None:
                answers.append(given)
                continue
            top = _chosen(decision)
            gone = _no_longer_registered(session, asked.job) if top is not None else None
            if gone is not None:
                answers.append(gone)
                continue
            if (
                top is not None
                and changes != state.changes
                and not _as_ranked(session, top.node, top.gpu, state)
            ):
                answers.append(None)
                continue
            if top is not None:
                version += 1
                tenants.append(values_of(top.node, top.gpu, asked.tenant(decision), asked.placement_id))
            rows.append(
                _row(asked, decision, now, service.config.reservation_s)
                | {
                    "sequence": (sequence or 0) + len(rows) + 1,
                    "model_version": model,
                    "cluster_version": version,
                }
            )
            entry = entry_from(rows[-1])
            if asked.once is not None:
                remember(session, asked.once, 201, entry, now)
                session.flush()  # the same key may occur again in this batch
            answers.append((201, entry))
        if rows:
            connection.execute(_ADD_PLACEMENTS, rows)
        if tenants:
            nodes = sorted({tenant["node"] for tenant in tenants})
            connection.execute(_ADD_TENANTS, tenants)
            connection.execute(_TOUCH_NODES, {"names": nodes, "number": changes + 1})
            connection.execute(_ADVANCE, {"number": changes + 1, "to_version": version})
    for tenant in tenants:
        gpus = state.snapshot.nodes[state.place_of[tenant["node"]]].gpus
        device = next(gpu.device for gpu in gpus if gpu.id == tenant["gpu"])
        service.metrics.placed.labels(device).inc()
    return answers


def _row(asked: Asked, decision: PlacementDecision, now: float, reservation_s: float) -> dict[str, Any]:
    """Columns of `placements` that follow from the request and the decision, made `now`."""
    top = _chosen(decision)
    return {
        "id": asked.placement_id,
        "job": str(asked.job),
        "job_id": asked.body.job_id,
        "iterations": asked.body.iterations,
        "max_slowdown": asked.body.max_slowdown,
        "state": "decided" if top else "waiting",
        "node": top.node if top else None,
        "gpu": top.gpu if top else None,
        "decision": decision.to_json(),
        "created_at": now,
        "updated_at": now,
        "expires_at": now + reservation_s if top else None,
    }


def _chosen(decision: PlacementDecision) -> RankedGpu | None:
    """The GPU where the job is placed; None if it waits."""
    return decision.ranked[0] if decision.decision == "place" else None


def _no_longer_registered(session: Session, job: Workload) -> UnknownNameError | None:
    """The error if the job's graph was deleted, which other processes notice a little later; else None.

    Nothing could be placed beside a tenant without it.
    """
    if not job.model.startswith(REGISTERED):
        return None
    own = WorkloadRow.hash == job.model.removeprefix(REGISTERED)
    if session.scalar(select(WorkloadRow.hash).where(own)) is not None:
        return None
    return not_registered(job.model)


def _as_ranked(session: Session, node: str, gpu: str, state: ClusterState) -> bool:
    """Whether a GPU is as in `state`, or has only lost tenants since."""
    row = session.get(NodeRow, node)
    listed = (
        [] if row is None or row.removed else [kind_of(other) for other in row.gpus if other["id"] == gpu]
    )
    ranked = next(other for other in state.snapshot.nodes[state.place_of[node]].gpus if other.id == gpu)
    if listed != [(ranked.device, ranked.sharing)]:
        return False
    # Not by row alone: SQLite gives a new tenant the row of one that has just left.
    seen = {
        seat.tenant_id: (seat.placement_id, tenant.job, tenant.max_slowdown)
        for seat, tenant in zip(state.seats_on(node, gpu), ranked.tenants, strict=True)
    }
    present = session.execute(
        select(TenantRow.id, TenantRow.placement_id, TenantRow.job, TenantRow.max_slowdown).where(
            TenantRow.node == node, TenantRow.gpu == gpu
        )
    )
    return all(seen.get(t.id) == (t.placement_id, job_of(t.job), t.max_slowdown) for t in present)
