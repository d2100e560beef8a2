"""The stored cluster in memory, updated incrementally: a read costs only what has changed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, select

from profiling.devices import canonical, has_mig
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Link, Node, Tenant
from serving import collector
from serving.job_ranges import spec_of
from serving.store import Store
from serving.store.tables import MOST_IN_A_QUERY, ClusterRow, NodeRow, TenantRow, parts, table_of

log = structlog.get_logger("cotenant.cluster")

_CLUSTER, _NODES, _TENANTS = (table_of(row).c for row in (ClusterRow, NodeRow, TenantRow))
_READ_NUMBERS = select(_CLUSTER.version, _CLUSTER.changes).where(_CLUSTER.id == 1)
_READ_REST = select(_CLUSTER.links, _CLUSTER.valid_until).where(_CLUSTER.id == 1)
_READ_CHANGED = select(_NODES.name, _NODES.position, _NODES.gpus, _NODES.removed).where(
    _NODES.revision > bindparam("after")
)
_READ_TENANTS = (
    select(_TENANTS.id, _TENANTS.node, _TENANTS.gpu, _TENANTS.job, _TENANTS.job_id, _TENANTS.iterations_left,
           _TENANTS.max_slowdown, _TENANTS.placement_id, _TENANTS.gpu_uuid)
    .where(_TENANTS.node.in_(bindparam("names", expanding=True)))
    .order_by(_TENANTS.id)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seat:
    """A tenant of a GPU: its row, its placement if the service placed it, and the GPU that it says it sees, if it does."""

    tenant_id: int
    placement_id: str | None
    gpu_uuid: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ClusterState:
    """The stored cluster at one version; a new object after every change.

    Unchanged nodes and GPUs are the same objects as in the previous state.

    Attributes:
        place_of: index in the snapshot by node name.
        seats: for each node in the snapshot's order, the seats by GPU in the tenants' order; GPUs without
            tenants are omitted.
        valid_until: when it is outdated (seconds since 1970, the store's clock); None if never.
    """

    version: int
    changes: int
    snapshot: ClusterSnapshot
    place_of: dict[str, int]
    seats: tuple[dict[str, tuple[Seat, ...]], ...]
    valid_until: float | None = None

    def seats_on(self, node: str, gpu: str) -> tuple[Seat, ...]:
        """The seats on a GPU; empty if there is no such GPU."""
        place = self.place_of.get(node)
        return () if place is None else self.seats[place].get(gpu, ())


@dataclass(slots=True)
class _Stored:
    """A node as last read."""

    position: int
    node: Node
    seats: dict[str, tuple[Seat, ...]]


class ClusterReader:
    """Reads the state; one per process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._gpus: dict[Any, Gpu] = {}
        self.latest: ClusterState | None = None  # the last state read
        self._stored: dict[str, _Stored] = {}
        self._place_of: dict[str, int] = {}
        self._nodes: list[Node] = []
        self._seats: list[dict[str, tuple[Seat, ...]]] = []
        self._raw_links: list[Any] = []
        self._links: tuple[Link, ...] = ()

    def current(self) -> ClusterState:
        """The current stored state. Raises `UnavailableError` if the store does not respond."""
        with self._lock, self.store.read() as session:
            connection = session.connection()
            version, changes = connection.execute(_READ_NUMBERS).first() or (0, 0)
            known = self.latest
            if known is not None and known.changes == changes:
                return known
            if known is not None and changes < known.changes:  # a different database at the same address
                self.forget()
                known = None
            try:
                self._take(connection, known.changes if known else -1)
            except Exception:  # the state is half updated
                self.forget()
                raise
            links, valid_until = connection.execute(_READ_REST).first() or ([], None)
            if links != self._raw_links:
                self._raw_links, self._links = links, tuple(Link(**link) for link in links)
            snapshot = ClusterSnapshot(tuple(self._nodes), self._links)
            self.latest = ClusterState(
                version, changes, snapshot, self._place_of, tuple(self._seats), valid_until
            )
            return self.latest

    def forget(self) -> None:
        """Discard the state, so that the next read is complete."""
        self.latest = None
        self._stored, self._place_of, self._nodes, self._seats = {}, {}, [], []

    def _take(self, connection: Connection, after: int) -> None:
        """Update the nodes that changed after change number `after`."""
        changed = connection.execute(_READ_CHANGED, {"after": after}).all()
        with collector.paused(len(changed) > MOST_IN_A_QUERY):
            self._update(connection, changed)

    def _update(self, connection: Connection, changed: Sequence[Any]) -> None:
        tenants = self._tenants(connection, sorted(name for name, _, _, removed in changed if not removed))
        moved = False
        for name, position, raw_gpus, removed in changed:
            old = self._stored.get(name)
            if removed:
                moved |= self._stored.pop(name, None) is not None
                continue
            moved |= old is None or old.position != position
            before = {gpu.id: gpu for gpu in old.node.gpus} if old else {}
            gpus, seats = [], {}
            for raw in raw_gpus:
                sitting = tenants.get((name, raw["id"]), [])
                gpus.append(self._gpu(raw, sitting, before.get(raw["id"])))
                if sitting:
                    seats[raw["id"]] = tuple(Seat(t.id, t.placement_id, t.gpu_uuid) for t in sitting)
            self._stored[name] = _Stored(position, Node(name, tuple(gpus)), seats)
            if not moved:
                place = self._place_of[name]
                self._nodes[place], self._seats[place] = self._stored[name].node, seats
        if moved:
            order = sorted(self._stored, key=lambda name: (self._stored[name].position, name))
            self._place_of = {name: place for place, name in enumerate(order)}
            self._nodes = [self._stored[name].node for name in order]
            self._seats = [self._stored[name].seats for name in order]

    @staticmethod
    def _tenants(connection: Connection, names: list[str]) -> dict[tuple[str, str], list[Any]]:
        """The tenants on the nodes `names`, by node and GPU."""
        tenants: dict[tuple[str, str], list[Any]] = {}
        for part in parts(names):
            for tenant in connection.execute(_READ_TENANTS, {"names": part}):
                tenants.setdefault((tenant.node, tenant.gpu), []).append(tenant)
        return tenants

    def _gpu(self, raw: dict[str, Any], sitting: list[Any], before: Gpu | None) -> Gpu:
        if sitting:
            tenants = tuple(
                Tenant(job_of(t.job), t.iterations_left, t.job_id, t.max_slowdown) for t in sitting
            )
            gpu = Gpu(raw["id"], *kind_of(raw), tenants, is_assumed(raw))
            return before if before is not None and gpu == before else gpu
        # Empty GPUs of a type share one object, because policies group identical objects faster than equal
        # ones.
        key = (raw["id"], *kind_of(raw), (), is_assumed(raw))
        if key not in self._gpus:
            self._gpus[key] = Gpu(*key)
        return self._gpus[key]


def job_of(spec: str) -> Workload:
    """The job of a stored tenant.

    A SPEC that an earlier version accepted and this one does not becomes an unknown model, so that only its own
    GPU is excluded from decisions.
    """
    try:
        return spec_of(spec)
    except InputError as error:
        log.warning("stored tenant is not a valid job", job=spec[:200], error=error.message)
        return Workload(spec)


def kind_of(stored_gpu: dict[str, Any]) -> tuple[str, str]:
    """Device type and sharing mode of a stored GPU.

    Earlier versions accepted `mig` for any card, and stored types as they were spelt; cards without MIG can only be
    time-sliced.
    """
    device, sharing = canonical(stored_gpu["device"]), str(stored_gpu["sharing"])
    if sharing == "mig" and not has_mig(device.partition(":")[0]):
        log.warning("stored GPU without MIG is time-sliced", gpu=stored_gpu["id"], device=device)
        sharing = "time-slice"
    return device, sharing


def is_assumed(stored_gpu: dict[str, Any]) -> bool:
    """Whether the tenants of a stored GPU may be on another one of the node."""
    return bool(stored_gpu.get("tenants_assumed"))


def to_mapping(state: ClusterState, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The cluster object of `/v1/cluster`, with its tenants' placements.

    Only the nodes in `names`, if given.
    """
    places = (
        range(len(state.seats))
        if names is None
        else [state.place_of[n] for n in names if n in state.place_of]
    )
    nodes = tuple(state.snapshot.nodes[place] for place in places)
    body = ClusterSnapshot(nodes, state.snapshot.links).to_mapping()
    for node in body["nodes"]:
        for gpu in node["gpus"]:
            for tenant, seat in zip(gpu["tenants"], state.seats_on(node["name"], gpu["id"]), strict=True):
                if seat.placement_id is not None:
                    tenant["placement_id"] = seat.placement_id
                if seat.gpu_uuid:
                    tenant["gpu_uuid"] = seat.gpu_uuid
    return body
