"""Tenants of GPUs and the states of their placements.

| from | to | by |
|---|---|---|
| (none) | waiting | `POST /v1/placements`, no GPU can take the job now |
| (none) | decided | `POST /v1/placements`: the GPU is reserved |
| decided | confirmed | `POST .../confirm` |
| decided | expired | nobody confirmed within `reservation_s` |
| waiting, decided, confirmed | ended | `POST .../end`; the inventory changed with `replace_tenants=true` |

A placement has a tenant only while it is decided or confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update
from sqlalchemy.orm import Session

from profiling.errors import ConflictError
from scheduling.core.snapshot import Tenant
from serving.store.tables import NodeRow, PlacementRow, TenantRow, parts, table_of

NEXT = {
    "waiting": ("ended",),
    "decided": ("confirmed", "ended", "expired"),
    "confirmed": ("ended",),
    "ended": (),
    "expired": (),
}
SEATED = ("decided", "confirmed")

_TENANTS, _PLACEMENTS = table_of(TenantRow), table_of(PlacementRow)
_REMOVE = delete(_TENANTS).where(_TENANTS.c.id.in_(bindparam("ids", expanding=True)))
_END = (
    update(_PLACEMENTS)
    .where(_PLACEMENTS.c.id.in_(bindparam("ids", expanding=True)), _PLACEMENTS.c.state.in_(SEATED))
    .values(state="ended", updated_at=bindparam("now"), expires_at=None)
)


def values_of(
    node: str, gpu: str, tenant: Tenant, placement_id: str | None = None, spec: str | None = None
) -> dict[str, Any]:
    """The row of a tenant; its job is stored as an equivalent SPEC, worked out unless given."""
    return {
        "node": node, "gpu": gpu, "job": spec or str(tenant.job), "model": tenant.job.model[:200], "job_id": tenant.job_id,
        "iterations_left": tenant.iterations_left, "max_slowdown": tenant.max_slowdown, "placement_id": placement_id,
    }  # fmt: skip


def move(session: Session, row: PlacementRow, state: str, now: float) -> bool:
    """Move a placement to `state`, and update its tenant; returns whether a GPU became free.

    Raises:
        ConflictError: the current state does not allow it.
    """
    if state not in NEXT[row.state]:
        allowed = " or ".join(before for before, after in NEXT.items() if state in after)
        raise ConflictError(
            f"the placement cannot be {state}", expected=f"state {allowed}", got=f"state {row.state}"
        )
    was_seated = row.state in SEATED
    row.state, row.updated_at, row.expires_at = state, now, None
    if not was_seated or state in SEATED:
        return False
    for tenant in session.scalars(select(TenantRow).where(TenantRow.placement_id == row.id)).all():
        session.delete(tenant)
    session.flush()
    return True


def end(connection: Connection, tenants: Sequence[Any], now: float) -> None:
    """Remove rows of tenants, and end the placements that they have."""
    for some in parts(tenants):
        connection.execute(_REMOVE, {"ids": [tenant.id for tenant in some]})
        placed = [tenant.placement_id for tenant in some if tenant.placement_id]
        if placed:
            connection.execute(_END, {"ids": placed, "now": now})


def touch(session: Session, node: str | None, number: int, now: float | None = None) -> None:
    """Note that a node's tenants changed (with the `number` of the change), and when it reported."""
    row = session.get(NodeRow, node) if node else None
    if row is not None:
        row.revision = number
        if now is not None:
            row.reported_at = now
