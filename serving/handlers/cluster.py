"""The stored cluster: nodes, GPUs and tenants under one version, changed by compare-and-set."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from profiling.errors import UnknownNameError
from scheduling.core.snapshot import ClusterSnapshot, Node, Tenant
from serving.http import PreconditionError
from serving.service import Service
from serving.store.tables import ClusterRow, NodeRow, TenantRow


def version_of(session: Session) -> int:
    """The cluster's version; 0 where nothing was ever stored."""
    return session.scalar(select(ClusterRow.version).where(ClusterRow.id == 1)) or 0


def advance(session: Session, expected: int | None) -> ClusterRow:
    """Take the next version inside a write.

    Raises:
        PreconditionError: the version is no longer `expected`.
    """
    row = session.get(ClusterRow, 1, with_for_update=True)
    if row is None:
        row = ClusterRow(id=1, version=0, links=[])
        session.add(row)
    if expected is not None and row.version != expected:
        raise PreconditionError(
            "the cluster has changed", expected=f"version {expected}", got=f"version {row.version}",
            hint="read /v1/cluster and try again",
        )  # fmt: skip
    row.version += 1
    session.flush()
    return row


def read_cluster(session: Session) -> tuple[dict[str, Any], int]:
    """The cluster as the JSON of `/v1/place`, with its version."""
    meta = session.get(ClusterRow, 1)
    tenants: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for t in session.scalars(select(TenantRow).order_by(TenantRow.id)):
        tenants.setdefault((t.node, t.gpu), []).append(
            {"job": t.job, "iterations_left": t.iterations_left} | ({"job_id": t.job_id} if t.job_id else {})
        )
    nodes = [
        {"name": n.name, "gpus": [g | {"tenants": tenants.get((n.name, g["id"]), [])} for g in n.gpus]}
        for n in session.scalars(select(NodeRow).order_by(NodeRow.position, NodeRow.name))
    ]
    return {"nodes": nodes, "links": meta.links if meta else []}, meta.version if meta else 0


def stored_snapshot(service: Service) -> tuple[ClusterSnapshot, int]:
    """The stored cluster as a snapshot; parsed once per version, because policies remember the object."""
    with service.store.read() as session:
        version = version_of(session)
        known = service.snapshot
        if known is not None and known[1] == version:
            return known
        body, version = read_cluster(session)
    parsed = ClusterSnapshot.from_mapping(body), version
    service.snapshot = parsed
    return parsed


def replace_cluster(service: Service, snapshot: ClusterSnapshot, expected: int | None) -> int:
    """Store `snapshot` in place of what was there. Returns the new version; raises `PreconditionError`."""
    with service.store.write() as session:
        row = advance(session, expected)
        session.execute(delete(TenantRow))
        session.execute(delete(NodeRow))
        row.links = snapshot.to_mapping()["links"]
        for position, node in enumerate(snapshot.nodes):
            _add_node(session, node, position)
        return row.version


def put_node(service: Service, node: Node, expected: int | None) -> tuple[int, bool]:
    """Add a node or replace it with its tenants. Returns the new version and whether the node is new."""
    with service.store.write() as session:
        row = advance(session, expected)
        old = session.get(NodeRow, node.name)
        position = old.position if old else (session.scalar(select(func.max(NodeRow.position))) or 0) + 1
        if old is not None:
            _remove(session, old)
        _add_node(session, node, position)
        return row.version, old is None


def delete_node(service: Service, name: str, expected: int | None) -> int:
    """Take a node out. Raises `UnknownNameError`, `PreconditionError`."""
    with service.store.write() as session:
        row = advance(session, expected)
        node = session.get(NodeRow, name)
        if node is None:
            raise UnknownNameError("unknown node", expected="a node of /v1/cluster", got=repr(name))
        _remove(session, node)
        return row.version


def read_node(service: Service, name: str) -> tuple[dict[str, Any], int]:
    """One node with its tenants. Raises `UnknownNameError`."""
    snapshot, version = stored_snapshot(service)
    for node in snapshot.nodes:
        if node.name == name:
            return ClusterSnapshot((node,)).to_mapping()["nodes"][0], version
    raise UnknownNameError("unknown node", expected="a node of /v1/cluster", got=repr(name))


def tenant_row(node: str, gpu: str, tenant: Tenant, placement_id: str | None = None) -> TenantRow:
    """A tenant as a row; its job as the SPEC that reads back to it."""
    return TenantRow(
        node=node, gpu=gpu, job=str(tenant.job), job_id=tenant.job_id,
        iterations_left=tenant.iterations_left, placement_id=placement_id,
    )  # fmt: skip


def _add_node(session: Session, node: Node, position: int) -> None:
    gpus = [{"id": g.id, "device": g.device, "sharing": g.sharing} for g in node.gpus]
    session.add(NodeRow(name=node.name, position=position, gpus=gpus))
    for gpu in node.gpus:
        session.add_all([tenant_row(node.name, gpu.id, t) for t in gpu.tenants])


def _remove(session: Session, node: NodeRow) -> None:
    session.execute(delete(TenantRow).where(TenantRow.node == node.name))
    session.delete(node)
    session.flush()
