"""Which set a job of the stored cluster runs in: what its measured step times are observations of."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from profiling.errors import InputError, UnknownNameError
from serving.service import Service
from serving.store.tables import NodeRow, TenantRow


def tenants_of(service: Service, job_id: str | None, placement_id: str | None) -> list[dict[str, Any]]:
    """The job's places by node and GPU, each with all jobs that share that GPU.

    Raises:
        InputError: neither or both of `job_id` and `placement_id`, or an empty one.
        UnknownNameError: it runs on no GPU of the stored cluster.
    """
    if (job_id is None) == (placement_id is None) or not (job_id or placement_id):
        raise InputError(
            "no job is named",
            expected="job_id or placement_id",
            got="both" if job_id is not None and placement_id is not None else "neither",
        )
    its = TenantRow.job_id == job_id if placement_id is None else TenantRow.placement_id == placement_id
    with service.store.read() as session:
        own = session.scalars(select(TenantRow).where(its).order_by(TenantRow.node, TenantRow.gpu)).all()
        if not own:
            raise UnknownNameError(
                "no such job runs on the stored cluster",
                expected="the job_id or placement_id of a tenant in /v1/cluster",
                got=repr((job_id or placement_id or "")[:80]),
            )
        result = []
        for tenant in own:
            there = TenantRow.node == tenant.node, TenantRow.gpu == tenant.gpu
            sharers = session.scalars(select(TenantRow).where(*there).order_by(TenantRow.id)).all()
            gpus: list[dict[str, Any]] = session.scalars(
                select(NodeRow.gpus).where(NodeRow.name == tenant.node)
            ).one()
            gpu = next(gpu for gpu in gpus if gpu["id"] == tenant.gpu)
            of = {"device": gpu["device"], "jobs": [t.job for t in sharers], "sharing": gpu["sharing"]}
            result.append(
                {
                    "node": tenant.node,
                    "gpu": tenant.gpu,
                    "of": of,
                    "member": [t.id for t in sharers].index(tenant.id),
                    "job_id": tenant.job_id,
                    "placement_id": tenant.placement_id,
                }
            )
        return result
