"""The stored cluster in memory, kept current by what changed: a read costs what is new, not what there is."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from scheduling.core.snapshot import ClusterSnapshot, Gpu, Link, Node, Tenant
from serving.schemas import spec_of
from serving.store import Store
from serving.store.tables import ClusterRow, NodeRow, TenantRow

_NAMES_A_QUERY = 500


@dataclass(frozen=True, slots=True)
class Seat:
    """A tenant of a GPU: its row, and its placement where the service put it there."""

    tenant_id: int
    placement_id: str | None


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """The stored cluster at one version; another object whenever anything is another.

    Attributes:
        seats: (node, GPU) to its tenants' seats, in the tenants' order; GPUs without tenants are left out.
        reported_at: node to when it was last heard of.
    """

    version: int
    changes: int
    snapshot: ClusterSnapshot
    seats: dict[tuple[str, str], tuple[Seat, ...]]
    reported_at: dict[str, float]


class ClusterReader:
    """Reads the state; one per process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._state: ClusterState | None = None
        self._order: list[tuple[int, str]] = []  # (position, name)
        self._nodes: dict[str, tuple[int, Node]] = {}
        self._seats: dict[tuple[str, str], tuple[Seat, ...]] = {}
        self._reported: dict[str, float] = {}
        self._gpus: dict[Any, Gpu] = {}

    def current(self) -> ClusterState:
        """The state as stored now. Raises `UnavailableError` where the store does not answer."""
        with self._lock, self.store.read() as session:
            meta = session.get(ClusterRow, 1)
            changes = meta.changes if meta else 0
            known = self._state
            if known is not None and known.changes == changes:
                return known
            if known is not None and changes < known.changes:  # another database in the same place
                self.forget()
                known = None
            query = select(NodeRow).where(NodeRow.revision > (known.changes if known else -1))
            rows = session.scalars(query).all()
            for row in rows:
                self._take(row)
            self._fill(session, {row.name: row.gpus for row in rows if not row.removed})
            links = tuple(Link(**link) for link in (meta.links if meta else []))
            nodes = tuple(self._nodes[name][1] for _, name in self._order)
            self._state = ClusterState(
                meta.version if meta else 0,
                changes,
                ClusterSnapshot(nodes, links),
                dict(self._seats),
                dict(self._reported),
            )
            return self._state

    def forget(self) -> None:
        """Read everything next time."""
        self._state = None
        self._order, self._nodes, self._seats, self._reported = [], {}, {}, {}

    def _take(self, row: NodeRow) -> None:
        old = self._nodes.get(row.name)
        if old is not None and (row.removed or old[0] != row.position):
            self._order.remove((old[0], row.name))
            del self._nodes[row.name]
            for gpu in old[1].gpus:
                self._seats.pop((row.name, gpu.id), None)
            old = None
        if row.removed:
            self._reported.pop(row.name, None)
            return
        if old is None:
            insort(self._order, (row.position, row.name))
        gone = {gpu.id for gpu in old[1].gpus} - {gpu["id"] for gpu in row.gpus} if old else set()
        for identifier in gone:
            self._seats.pop((row.name, identifier), None)
        self._nodes[row.name] = (row.position, Node(row.name))
        self._reported[row.name] = row.reported_at

    def _fill(self, session: Session, changed: dict[str, list[Any]]) -> None:
        """Build the changed nodes, given their GPUs, with their tenants."""
        tenants: dict[tuple[str, str], list[TenantRow]] = {}
        for part in _parts(sorted(changed)):
            for t in session.scalars(
                select(TenantRow).where(TenantRow.node.in_(part)).order_by(TenantRow.id)
            ):
                tenants.setdefault((t.node, t.gpu), []).append(t)
        for name, raw_gpus in changed.items():
            gpus = []
            for raw in raw_gpus:
                key = (name, raw["id"])
                sitting = tenants.get(key, [])
                gpus.append(self._gpu(raw, sitting))
                if sitting:
                    self._seats[key] = tuple(Seat(t.id, t.placement_id) for t in sitting)
                else:
                    self._seats.pop(key, None)
            self._nodes[name] = (self._nodes[name][0], Node(name, tuple(gpus)))

    def _gpu(self, raw: dict[str, Any], sitting: list[TenantRow]) -> Gpu:
        if sitting:
            tenants = tuple(
                Tenant(spec_of(t.job), t.iterations_left, t.job_id, t.max_slowdown) for t in sitting
            )
            return Gpu(raw["id"], raw["device"], raw["sharing"], tenants)
        # Empty GPUs of a type are one object: policies group equal objects faster than equal values.
        key = (raw["id"], raw["device"], raw["sharing"])
        if key not in self._gpus:
            self._gpus[key] = Gpu(*key)
        return self._gpus[key]


def to_mapping(state: ClusterState, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The cluster object of `/v1/cluster`, with the placements of its tenants; only the nodes `names` where given."""
    wanted = None if names is None else set(names)
    nodes = tuple(n for n in state.snapshot.nodes if wanted is None or n.name in wanted)
    body = ClusterSnapshot(nodes, state.snapshot.links).to_mapping()
    for node in body["nodes"]:
        for gpu in node["gpus"]:
            for tenant, seat in zip(
                gpu["tenants"], state.seats.get((node["name"], gpu["id"]), ()), strict=True
            ):
                if seat.placement_id is not None:
                    tenant["placement_id"] = seat.placement_id
    return body


def _parts(names: list[str]) -> Iterable[list[str]]:
    return (names[first : first + _NAMES_A_QUERY] for first in range(0, len(names), _NAMES_A_QUERY))
