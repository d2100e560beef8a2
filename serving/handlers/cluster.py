"""The stored cluster: an inventory of nodes and GPUs.

Tenants come and go through placements (see `handlers.placements`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from profiling.errors import ConflictError, InputError, UnknownNameError
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant, check_counts
from serving import audit, collector
from serving.cluster_state import kind_of, to_mapping
from serving.conditions import Condition
from serving.config import ServiceConfig
from serving.handlers import tenancy
from serving.handlers.jobs import too_many
from serving.handlers.versions import Change, advance, latest
from serving.job_ranges import parse_job
from serving.schemas import ClusterBody
from serving.service import Service
from serving.store.tables import ClusterRow, NodeRow, TenantRow, parts, table_of

_LARGE = 1000  # tenants or nodes, for which collections are paused
_NAMED = 5  # most tenants named in an error


@dataclass(frozen=True, slots=True)
class Inventory:
    """A cluster as given by a caller; `placement_ids` of its tenants by (node, GPU), in order."""

    snapshot: ClusterSnapshot
    placement_ids: dict[tuple[str, str], list[str | None]] = field(default_factory=dict)
    _specs: dict[int, str] = field(default_factory=dict)

    def spec(self, tenant: Tenant) -> str:
        """Its job's SPEC, worked out once for each object: equal texts in a body are one."""
        spec = self._specs.get(id(tenant.job))
        if spec is None:
            spec = self._specs[id(tenant.job)] = str(tenant.job)
        return spec

    def given(self, node: str, gpu: Gpu) -> list[tuple[Tenant, str | None]]:
        """The tenants of a GPU, each with its placement."""
        identifiers = self.placement_ids.get((node, gpu.id), [None] * len(gpu.tenants))
        return list(zip(gpu.tenants, identifiers, strict=True))


_CLUSTER = table_of(ClusterRow)
# For the frequent node reports, and for tens of thousands of tenants: prepared once, bypassing the ORM.
_NODES, _TENANTS = table_of(NodeRow), table_of(TenantRow)
_READ_GPUS = select(_NODES.c.gpus).where(
    _NODES.c.name == bindparam("node"), _NODES.c.removed.is_(False), _NODES.c.revision > 0
)
_READ_TENANTS = select(_TENANTS.c.gpu, _TENANTS.c.job, _TENANTS.c.job_id, _TENANTS.c.placement_id).where(
    _TENANTS.c.node == bindparam("node")
)
_KEEP = (
    update(_TENANTS)
    .where(_TENANTS.c.id == bindparam("tenant"))
    .values(iterations_left=bindparam("left"), max_slowdown=bindparam("budget"))
)
_REPORTED = update(_NODES).where(_NODES.c.name == bindparam("node")).values(reported_at=bindparam("heard"))


def check_body(body: ClusterBody, config: ServiceConfig) -> int:
    """Total GPUs and tenants of a cluster, from its `count`s without expanding them.

    Raises:
        LimitError: too many.
    """
    nodes = sum(node.count or 1 for node in body.nodes)
    total = sum((node.count or 1) * sum(gpu.count or 1 for gpu in node.gpus) for node in body.nodes)
    tenants = sum(
        (node.count or 1) * sum((g.count or 1) * len(g.tenants) for g in node.gpus) for node in body.nodes
    )
    check_counts(
        {"GPUs": total, "nodes": nodes, "tenants": tenants, "links": len(body.links)}, config.cluster_gpus
    )
    return total + tenants


def check_tenants(body: ClusterBody, config: ServiceConfig) -> None:
    """Raise `LimitError` if a GPU has more tenants than a set may have jobs, which costs too much to predict."""
    fullest = max((len(gpu.tenants) for node in body.nodes for gpu in node.gpus), default=0)
    if fullest > config.set_jobs:
        raise too_many(config.set_jobs, fullest)


def read_inventory(body: ClusterBody) -> Inventory:
    """The cluster described by a validated body. Raises `InputError`."""
    tenants = [tenant for node in body.nodes for gpu in node.gpus for tenant in gpu.tenants]
    for tenant in tenants:
        if isinstance(tenant.job, str):
            parse_job(tenant.job)  # its numbers; those of an object are in range already
    with collector.paused(len(tenants) > _LARGE):
        return _inventory(body)


def _inventory(body: ClusterBody) -> Inventory:
    raw = msgspec.to_builtins(body)
    identifiers: dict[tuple[str, str], list[str | None]] = {}
    for index, node in enumerate(raw["nodes"]):
        name, number = node.get("name", f"node-{index}"), 0
        for gpu in node.get("gpus", ()):
            own = [tenant.pop("placement_id", None) for tenant in gpu.get("tenants", ())]
            for tenant in gpu.get("tenants", ()):
                tenant.pop("gpu_uuid", None)  # in a cluster that was read
            count = gpu.get("count", 1)
            if any(own):
                if count != 1 or node.get("count", 1) != 1:
                    raise InputError("a placement is on several GPUs", expected="placement_id without count")
                identifiers[name, str(gpu.get("id", number))] = own
            number += count
    return Inventory(ClusterSnapshot.from_mapping(raw), identifiers)


def read_node(service: Service, name: str) -> tuple[dict[str, Any], Change]:
    """One node with its tenants, and the last change. Raises `UnknownNameError`."""
    state = service.cluster.current()
    nodes = to_mapping(state, [name])["nodes"]
    if not nodes:
        raise _unknown_node(name)
    return nodes[0], Change(state.version, state.changes)


def _unknown_node(name: str) -> UnknownNameError:
    return UnknownNameError("unknown node", expected="a node of /v1/cluster", got=repr(name))


def replace_cluster(
    service: Service,
    inventory: Inventory,
    condition: Condition,
    replace_tenants: bool = False,
    valid_s: float | None = None,
) -> Change:
    """Replace the inventory; tenants stay, unless `replace_tenants`.

    Args:
        valid_s: seconds after which it is outdated unless it is replaced again; None: never.

    Raises:
        PreconditionError: the state does not meet `condition`.
        ConflictError: tenants are affected: their GPU would be removed or changed, or different tenants are
            given.
        LimitError: a GPU gets more tenants than a set may have jobs; those stored already may stay.
    """
    large = len(inventory.snapshot.nodes) > _LARGE
    with collector.paused(large), service.store.write() as session:
        change = advance(session, condition)
        links = ClusterSnapshot((), inventory.snapshot.links).to_mapping()["links"]
        valid_until = None if valid_s is None else service.store.now(session) + valid_s
        session.connection().execute(update(_CLUSTER).values(links=links, valid_until=valid_until))
        stored = _stored_nodes(session, [node.name for node in inventory.snapshot.nodes])
        edit = _Edit(service, session, change.changes, inventory, replace_tenants)
        for position, node in enumerate(inventory.snapshot.nodes):
            edit.put(stored.pop(node.name, None), node, position)
        for gone in stored.values():
            edit.remove(gone)
        edit.finish()
        return change


def _stored_nodes(session: Session, names: list[str]) -> dict[str, NodeRow]:
    """The rows of all present nodes, and of those `names` that were removed before."""
    stored = {n.name: n for n in session.scalars(select(NodeRow).where(NodeRow.removed.is_(False)))}
    new = [name for name in names if name not in stored]
    for some in parts(new):
        stored |= {n.name: n for n in session.scalars(select(NodeRow).where(NodeRow.name.in_(some)))}
    return stored


def put_node(
    service: Service,
    inventory: Inventory,
    condition: Condition,
    replace_tenants: bool = False,
    entry: audit.Entry | None = None,
) -> tuple[Change, bool]:
    """Add a node, or change its GPUs; raises like `replace_cluster`.

    Returns the change and whether the node is new.

    A report that matches the stored node is not a change and keeps the version.

    Args:
        entry: recorded in the same transaction.
    """
    node = inventory.snapshot.nodes[0]
    with service.store.write() as session:
        if not replace_tenants and _as_it_was(session, node, inventory):
            change, new = latest(session), False
            change.check(condition)
            told = {"node": node.name, "heard": service.store.now(session)}
            session.connection().execute(_REPORTED, told)
        else:
            old = session.get(NodeRow, node.name)
            new = old is None or old.removed
            change = advance(session, condition, exists=not new)
            if old is None or old.removed:
                position = (session.scalar(select(func.max(NodeRow.position))) or 0) + 1
            else:
                position = old.position
            edit = _Edit(service, session, change.changes, inventory, replace_tenants, node.name)
            edit.put(old, node, position)
            edit.finish()
        if entry is not None:
            audit.add(service.store, session, entry, 201 if new else 200)
        return change, new


def _as_it_was(session: Session, node: Node, inventory: Inventory) -> bool:
    """Whether a node's report only says that it is alive, as most do."""
    connection = session.connection()
    stored = connection.execute(_READ_GPUS, {"node": node.name}).scalar()
    if stored is None or stored != [_as_stored(gpu) for gpu in node.gpus]:
        return False
    if not any(gpu.tenants for gpu in node.gpus):
        return True
    present: dict[str, list[Any]] = {}
    for tenant in connection.execute(_READ_TENANTS, {"node": node.name}):
        present.setdefault(tenant.gpu, []).append(tenant)
    return all(
        not gpu.tenants or _same_tenants(inventory, node.name, gpu, present.get(gpu.id, []))
        for gpu in node.gpus
    )


def delete_node(service: Service, name: str, condition: Condition, replace_tenants: bool = False) -> Change:
    """Remove a node. Raises `UnknownNameError`, and like `replace_cluster`."""
    with service.store.write() as session:
        node = session.get(NodeRow, name)
        if node is None or node.removed:
            raise _unknown_node(name)
        change = advance(session, condition)
        nothing = Inventory(ClusterSnapshot(()))
        edit = _Edit(service, session, change.changes, nothing, replace_tenants, name)
        edit.remove(node)
        edit.finish()
        return change


class _Edit:
    """An edit of the inventory in one transaction; `number` is that of its `Change`."""

    def __init__(
        self,
        service: Service,
        session: Session,
        number: int,
        inventory: Inventory,
        replace_tenants: bool,
        node: str | None = None,
    ) -> None:
        self.session, self.number, self.inventory = session, number, inventory
        self.now, self.most_tenants = service.store.now(session), service.config.set_jobs
        self.replace_tenants = replace_tenants
        self.in_the_way: list[str] = []
        self._new: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []
        self._gone: list[Any] = []
        self._tenants: dict[str, dict[str, list[Any]]] = {}
        query = select(_TENANTS).order_by(_TENANTS.c.id)
        if node is not None:
            query = query.where(_TENANTS.c.node == node)
        for tenant in session.connection().execute(query):
            self._tenants.setdefault(tenant.node, {}).setdefault(tenant.gpu, []).append(tenant)

    def put(self, row: NodeRow | None, node: Node, position: int) -> None:
        old = {} if row is None or row.removed else {gpu["id"]: gpu for gpu in row.gpus}
        gpus = [_as_stored(gpu) for gpu in node.gpus]
        if row is None:
            row = NodeRow(name=node.name, position=position, gpus=gpus)
            self.session.add(row)
        changed = row.removed or row.gpus != gpus or row.position != position or not row.revision
        row.gpus, row.position, row.removed, row.reported_at = gpus, position, False, self.now
        for gpu in node.gpus:
            before = old.pop(gpu.id, None)
            same = before is not None and kind_of(before) == (gpu.device, gpu.sharing)
            changed |= self._seat(node.name, gpu, is_new=before is None, is_same=same)
        for identifier in old:
            changed |= self._end(self._on(node.name, identifier))
        if changed:
            row.revision = self.number

    def remove(self, row: NodeRow) -> None:
        self._end([t for here in self._tenants.get(row.name, {}).values() for t in here])
        row.removed, row.gpus, row.revision, row.reported_at = True, [], self.number, self.now

    def finish(self) -> None:
        """Write the differences. Raises `ConflictError` if tenants are affected."""
        if self.in_the_way:
            more = len(self.in_the_way) - _NAMED
            raise ConflictError(
                "the change affects running tenants", expected="their placements to be ended first, or "
                "replace_tenants=true",
                got=", ".join(self.in_the_way[:_NAMED]) + (f" and {more} more" if more > 0 else ""),
            )  # fmt: skip
        connection = self.session.connection()
        tenancy.end(connection, self._gone, self.now)
        if self._kept:
            connection.execute(_KEEP, self._kept)
        if self._new:
            connection.execute(insert(_TENANTS), self._new)

    def _said(self, node: str, tenant: Tenant) -> dict[str, str]:
        """What the job has said about its GPU while it was assumed to be another one of the node."""
        rows = (row for here in self._tenants.get(node, {}).values() for row in here)
        said = (row.gpu_uuid for row in rows if tenant.job_id and row.job_id == tenant.job_id)
        return {"gpu_uuid": next(said, "")}

    def _on(self, node: str, gpu: str) -> list[Any]:
        return self._tenants.get(node, {}).get(gpu, [])

    def _end(self, tenants: list[Any]) -> bool:
        if tenants and not self.replace_tenants:
            self.in_the_way += [_name_of(t) for t in tenants]
            return False
        self._gone += tenants
        return bool(tenants)

    def _seat(self, node: str, gpu: Gpu, is_new: bool, is_same: bool) -> bool:
        """Set the tenants of one GPU; returns whether any changed."""
        present = self._on(node, gpu.id)
        given = self.inventory.given(node, gpu)
        if not self.replace_tenants:
            if not is_new and not is_same:
                if present:
                    return self._end(present)
                is_new = True  # a different GPU with the same id
            if not given or (not is_new and _same_tenants(self.inventory, node, gpu, present)):
                return False
            if not is_new:
                self.in_the_way += [_name_of(t) for t in present] or [
                    f"{node}/{gpu.id}: different tenants are given"
                ]
                return False
        left, changed = list(present), False
        for tenant, placement_id in given:
            spec = self.inventory.spec(tenant)
            row = next((t for t in left if _is(t, spec, tenant.job_id, placement_id)), None)
            if row is not None and is_same:
                left.remove(row)
                numbers = (tenant.iterations_left, tenant.max_slowdown)
                if numbers == (row.iterations_left, row.max_slowdown):
                    continue
                self._kept.append({"tenant": row.id, "left": numbers[0], "budget": numbers[1]})
            elif placement_id is not None:
                raise InputError(
                    f"placement {placement_id} is not on {node}/{gpu.id}", expected="tenants where /v1/cluster shows them",
                    hint="omit placement_id for a tenant that the service did not place",
                )  # fmt: skip
            elif len(given) > self.most_tenants:
                raise too_many(self.most_tenants, len(given))
            else:
                self._new.append(
                    tenancy.values_of(node, gpu.id, tenant, spec=spec) | self._said(node, tenant)
                )
            changed = True
        self._gone += left
        return changed or bool(left)


def _is(row: Any, spec: str, job_id: str, placement_id: str | None) -> bool:
    if placement_id is not None:
        return bool(row.placement_id == placement_id)
    return row.placement_id is None and (row.job, row.job_id) == (spec, job_id)


def _same_tenants(inventory: Inventory, node: str, gpu: Gpu, present: Sequence[Any]) -> bool:
    """Whether the stored tenants equal those given, in any order."""
    if len(gpu.tenants) != len(present):
        return False
    given = inventory.given(node, gpu)
    named = [placement_id or (inventory.spec(tenant), tenant.job_id) for tenant, placement_id in given]
    return Counter(named) == Counter(row.placement_id or (row.job, row.job_id) for row in present)


def _as_stored(gpu: Gpu) -> dict[str, Any]:
    stored = {"id": gpu.id, "device": gpu.device, "sharing": gpu.sharing}
    return stored | ({"tenants_assumed": True} if gpu.tenants_assumed else {})


def _name_of(tenant: Any) -> str:
    who = tenant.placement_id or tenant.job_id or tenant.job
    return f"{who} on {tenant.node}/{tenant.gpu}"
