"""Which set a job of the stored cluster runs in: what its measured step times are observations of.

Kubernetes tells nobody which GPU of a node a pod has got, but a job can see it. There the set is known once all jobs on
such GPUs of the node have said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, InputError, UnknownNameError
from serving.cluster_state import is_assumed, kind_of
from serving.handlers import tenancy
from serving.handlers.outdated import outdated_s
from serving.handlers.versions import advance
from serving.service import Service
from serving.store.tables import NodeRow, TenantRow


def tenants_of(service: Service, job_id: str | None, placement_id: str | None) -> list[dict[str, Any]]:
    """The job's places by node and GPU, each with all jobs that share that GPU.

    Raises:
        InputError: neither or both of `job_id` and `placement_id`, or an empty one.
        UnknownNameError: it runs on no GPU of the stored cluster.
        ConflictError: it is not known which jobs share its GPU, or the stored cluster is outdated.
    """
    with service.store.read() as session:
        rows = _rows_of(session, job_id, placement_id)
        late_s = outdated_s(service.store, session)
        if late_s is not None:
            raise ConflictError(
                "the stored cluster is outdated, so which jobs share a GPU is not known",
                expected="its scheduler to store it again in time",
                got=f"{late_s:,.0f} s too late so far",
            )
        return [_entry(session, tenant) for tenant in rows]


def tell_gpu(
    service: Service, job_id: str | None, placement_id: str | None, gpu_uuid: str
) -> list[dict[str, Any]]:
    """Store on which GPU the job says that it runs, none if it is on several; returns and raises like `tenants_of`."""
    with service.store.read() as session:
        changes = _to_tell(_rows_of(session, job_id, placement_id), gpu_uuid)
    if changes:
        with service.store.write() as session:
            number = advance(session, counts=False).changes
            for row, uuid in _to_tell(_rows_of(session, job_id, placement_id), gpu_uuid):
                row.gpu_uuid = uuid
                tenancy.touch(session, row.node, number)
    return tenants_of(service, job_id, placement_id)


def _to_tell(rows: Sequence[TenantRow], gpu_uuid: str) -> list[tuple[TenantRow, str]]:
    uuid = gpu_uuid if len(rows) == 1 else ""
    return [(row, uuid) for row in rows if row.gpu_uuid != uuid]


def _rows_of(session: Session, job_id: str | None, placement_id: str | None) -> Sequence[TenantRow]:
    if (job_id is None) == (placement_id is None) or not (job_id or placement_id):
        raise InputError(
            "no job is named",
            expected="job_id or placement_id",
            got="both" if job_id is not None and placement_id is not None else "neither",
        )
    its = TenantRow.job_id == job_id if placement_id is None else TenantRow.placement_id == placement_id
    rows = session.scalars(select(TenantRow).where(its).order_by(TenantRow.node, TenantRow.gpu)).all()
    if not rows:
        raise UnknownNameError(
            "no such job runs on the stored cluster",
            expected="the job_id or placement_id of a tenant in /v1/cluster",
            got=repr((job_id or placement_id or "")[:80]),
        )
    return rows


def _entry(session: Session, tenant: TenantRow) -> dict[str, Any]:
    gpus: list[dict[str, Any]] = session.scalars(
        select(NodeRow.gpus).where(NodeRow.name == tenant.node)
    ).one()
    by_id = {gpu["id"]: gpu for gpu in gpus}
    own = by_id[tenant.gpu]
    # In an order that stays when a scheduler takes them for jobs on another GPU: loops tell by it that a set is the same.
    sharers = session.scalars(
        select(TenantRow).where(TenantRow.node == tenant.node).order_by(TenantRow.job_id, TenantRow.id)
    ).all()
    if is_assumed(own):
        # It may be on any of these, but not on a slice of another profile.
        alike = {gpu["id"] for gpu in gpus if is_assumed(gpu) and kind_of(gpu) == kind_of(own)}
        sharers = _on_one_gpu(tenant, [other for other in sharers if other.gpu in alike])
    else:
        if own["sharing"] != "mig":  # under which jobs on a card see slices of it
            _check_seen(tenant, sharers)
        sharers = [other for other in sharers if other.gpu == tenant.gpu]
    return {
        "node": tenant.node,
        "gpu": tenant.gpu_uuid if is_assumed(own) else tenant.gpu,
        "of": {"device": own["device"], "jobs": [t.job for t in sharers], "sharing": own["sharing"]},
        "member": [t.id for t in sharers].index(tenant.id),
        "job_id": tenant.job_id,
        "placement_id": tenant.placement_id,
    }


def _on_one_gpu(tenant: TenantRow, others: Sequence[TenantRow]) -> list[TenantRow]:
    """Those of all jobs on some GPUs that share the job's, by what they have said."""
    silent = [other.job_id or other.job for other in others if not other.gpu_uuid]
    if silent:
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        raise ConflictError(
            f"which jobs share a GPU of node {tenant.node} is not known",
            expected="gpu_uuid from all of its jobs (PUT /v1/cluster/tenants)",
            got=f"none from {silent[0][:80]}{more}",
        )
    return [other for other in others if other.gpu_uuid == tenant.gpu_uuid]


def _check_seen(tenant: TenantRow, others: Sequence[TenantRow]) -> None:
    """Raise `ConflictError` if jobs of the node have said that they share GPUs otherwise than they are stored.

    As when one uses another GPU than its scheduler gave it.
    """
    here = {other.gpu_uuid for other in others if other.gpu == tenant.gpu} - {""}
    elsewhere = {other.gpu_uuid for other in others if other.gpu != tenant.gpu}
    if len(here) > 1 or here & elsewhere:
        raise ConflictError(
            f"jobs of node {tenant.node} share other GPUs than in the stored cluster",
            expected="one gpu_uuid (PUT /v1/cluster/tenants) for each of its GPUs",
            got=f"{', '.join(sorted(here))} on {tenant.gpu}" + (" and another" if here & elsewhere else ""),
        )
