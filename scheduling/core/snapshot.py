"""`ClusterSnapshot`: nodes, GPUs, what runs where, and the links between them. The input of every policy."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import is_
from pathlib import Path
from typing import Any

from profiling.devices import canonical, has_mig, split_device
from profiling.errors import InputError, LimitError
from profiling.workload import SHARING_MODES, Workload
from scheduling.core.cards import check_cards
from scheduling.core.limits import CLUSTER_GPUS, ITERATIONS

_COMPARED = 128  # nodes at one time


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that runs on a GPU, its iterations left (real-valued), and the largest slowdown it tolerates."""

    job: Workload
    iterations_left: float
    job_id: str = ""
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.iterations_left <= ITERATIONS[1]:
            raise InputError(
                "iterations_left is out of range",
                expected=f"a number from 0 to {ITERATIONS[1]:g}",
                got=self.iterations_left,
            )
        if self.max_slowdown is not None and not self.max_slowdown >= 1:
            raise InputError(
                "max_slowdown is out of range", expected="a number from 1", got=self.max_slowdown
            )


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a node: its catalogue type, how it is shared, and its tenants.

    With `tenants_assumed`, these belong to the node, and are assumed to run, and to do so on this GPU.
    """

    id: str
    device: str
    sharing: str = "time-slice"
    tenants: tuple[Tenant, ...] = ()
    tenants_assumed: bool = False

    def __post_init__(self) -> None:
        if self.sharing not in SHARING_MODES:
            raise InputError(
                f"GPU {self.id!r}: unknown sharing mode",
                expected="one of " + ", ".join(SHARING_MODES),
                got=self.sharing,
            )


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: its name, unique in the cluster, and its GPUs."""

    name: str
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A network link between two nodes (or from a node to its switch), bytes per second in one direction."""

    source: str
    target: str
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Nodes with their GPUs and tenants, and network links, one direction each."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = field(default=())

    def gpus(self) -> Iterator[tuple[Node, Gpu]]:
        """Every GPU with its node, in the snapshot's order."""
        for node in self.nodes:
            for gpu in node.gpus:
                yield node, gpu

    def without_tenants(self) -> ClusterSnapshot:
        """The same cluster with empty GPUs."""
        nodes = (replace(n, gpus=tuple(replace(g, tenants=()) for g in n.gpus)) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @classmethod
    def from_mapping(cls, body: Any) -> ClusterSnapshot:
        """Read the `cluster` object of `POST /v1/place` or of `cluster.yaml` (where `count:` repeats a node).

        Raises:
            InputError: a field is missing, unknown or of the wrong type; names are not unique.
        """
        body = _object(body, "cluster", {"nodes", "links"})
        nodes: list[Node] = []
        for index, raw in enumerate(_list(body.get("nodes", []), "cluster.nodes")):
            where = f"cluster.nodes[{index}]"
            node = _object(raw, where, {"name", "gpus", "count"})
            count = node.get("count", 1)
            if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 100_000:
                raise InputError(
                    f"{where}.count is out of range", expected="an integer from 1 to 100000", got=count
                )
            name = node.get("name", f"node-{index}")
            _check_name(name, f"{where}.name")
            gpus = _gpus(node.get("gpus", []), where)
            if count == 1:
                nodes.append(Node(name, gpus))
            else:
                nodes.extend(Node(f"{name}-{copy}", gpus) for copy in range(count))
        if len({node.name for node in nodes}) != len(nodes):
            twice = next(name for name, count in Counter(n.name for n in nodes).items() if count > 1)
            raise InputError(
                "cluster.nodes: names are not unique", expected="each node name once", got=repr(twice[:80])
            )
        links = []
        for index, raw in enumerate(_list(body.get("links") or [], "cluster.links")):
            link = _object(raw, f"cluster.links[{index}]", {"source", "target", "bandwidth_bytes_per_s"})
            try:
                links.append(
                    Link(str(link["source"]), str(link["target"]), float(link["bandwidth_bytes_per_s"]))
                )
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"cluster.links[{index}]",
                    expected="source, target, bandwidth_bytes_per_s",
                    got=repr(error),
                ) from None
        return cls(tuple(nodes), tuple(links))

    @classmethod
    def load(cls, path: Path | str) -> ClusterSnapshot:
        """Read a `cluster.yaml`.

        Raises:
            InputError: it does not exist, or is not YAML or not a cluster.
            LimitError: its counts expand to more than `CLUSTER_GPUS`.
        """
        import yaml

        from profiling.yaml_files import read_yaml

        source = Path(path)
        try:
            body = read_yaml(source.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"no cluster file at {source}", expected="a YAML file with nodes", hint="check the path"
            ) from None
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(
                f"{source} is not YAML", expected="a mapping with nodes", got=" ".join(str(error).split())
            ) from None
        except InputError as error:
            raise error.at(source) from None
        if body is None:
            raise InputError(
                f"{source} is empty",
                expected="YAML with nodes",
                hint="`cotenant cluster init` writes a sample",
            )
        try:
            check_size(body)
            return cls.from_mapping(body)
        except (InputError, LimitError) as error:
            raise error.at(source) from None

    def to_mapping(self) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    "name": node.name,
                    "gpus": [
                        {
                            "id": gpu.id,
                            "device": gpu.device,
                            "sharing": gpu.sharing,
                            "tenants": [
                                {"job": tenant.job.to_mapping(), "iterations_left": tenant.iterations_left}
                                | ({"job_id": tenant.job_id} if tenant.job_id else {})
                                | ({"max_slowdown": tenant.max_slowdown} if tenant.max_slowdown else {})
                                for tenant in gpu.tenants
                            ],
                        }
                        | ({"tenants_assumed": True} if gpu.tenants_assumed else {})
                        for gpu in node.gpus
                    ],
                }
                for node in self.nodes
            ],
            "links": [
                {"source": k.source, "target": k.target, "bandwidth_bytes_per_s": k.bandwidth_bytes_per_s}
                for k in self.links
            ],
        }


def changed_nodes(old: ClusterSnapshot, new: ClusterSnapshot) -> list[int] | None:
    """Indices of the nodes that differ in `new`; None if nodes were added, removed or reordered.

    A snapshot derived from another keeps the objects of unchanged parts, so that derived data can be updated
    incrementally.
    """
    if old.nodes is new.nodes:
        return []
    if len(old.nodes) != len(new.nodes):
        return None
    changed: list[int] = []
    for first in range(0, len(new.nodes), _COMPARED):  # tuple comparison short-circuits on identical objects
        before, after = old.nodes[first : first + _COMPARED], new.nodes[first : first + _COMPARED]
        if before != after:
            changed += [k for k, same in enumerate(map(is_, before, after), first) if not same]
    return changed if all(old.nodes[k].name == new.nodes[k].name for k in changed) else None


def check_size(body: Any, gpus: int = CLUSTER_GPUS) -> None:
    """Sum a cluster's `count`s before `from_mapping` expands them; malformed ones count as one.

    Raises:
        LimitError: more nodes or GPUs than `gpus`, or more than four tenants per GPU.
    """
    sums = {"GPUs": 0, "nodes": 0, "tenants": 0}
    for node in _items(body, "nodes"):
        copies = _count(node)
        sums["nodes"] += copies
        for gpu in _items(node, "gpus"):
            sums["GPUs"] += copies * _count(gpu)
            sums["tenants"] += copies * _count(gpu) * len(_items(gpu, "tenants"))
    check_counts(sums, gpus)


def check_counts(counts: Mapping[str, int], gpus: int) -> None:
    """Check counts of a cluster.

    Raises:
        LimitError: more than four "tenants" per GPU, or more than `gpus` of anything else.
    """
    for what, count in counts.items():
        most = 4 * gpus if what == "tenants" else gpus
        if count > most:
            raise LimitError(
                "the cluster is too large",
                expected=f"at most {most} {what}",
                got=count,
                hint="check its counts",
            )


def _items(value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    return items if isinstance(items, list) else []


def _count(value: Any) -> int:
    count = value.get("count", 1) if isinstance(value, dict) else 1
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1


def _check_name(name: Any, where: str) -> None:
    """Check a node's name, which is part of a URL (`/v1/cluster/nodes/NAME`).

    A node with a name not allowed there could never be read or removed.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError(where, expected="a string that is not empty", got=name)
    if name in (".", "..") or any(c == "/" or unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InputError(
            f"{where} cannot be part of the node's URL",
            expected="no '/', no control characters, and neither '.' nor '..'",
            got=repr(name),
        )


@lru_cache(maxsize=65_536)  # a cluster has few, many times each
def _parsed(spec: str) -> Workload:
    return Workload.parse(spec)


def job_from(value: Any) -> Workload:
    """Parse a job from an HTTP body or YAML: a SPEC string or an object."""
    if isinstance(value, str):
        return _parsed(value)
    if isinstance(value, dict):
        return Workload.from_mapping(value)
    raise InputError(
        "a job is neither a SPEC nor an object",
        expected='"NAME:key=value" or {"workload": ...}',
        got=_kind(value),
    )


def _gpus(raw: Any, where: str) -> tuple[Gpu, ...]:
    gpus: list[Gpu] = []
    for index, item in enumerate(_list(raw, f"{where}.gpus")):
        place = f"{where}.gpus[{index}]"
        gpu = _object(item, place, {"id", "device", "sharing", "tenants", "tenants_assumed", "count"})
        if not isinstance(gpu.get("device"), str):
            raise InputError(f"{place}.device is missing", expected="a catalogue name", got=gpu.get("device"))
        device = canonical(gpu["device"])
        if gpu.get("sharing") == "mig" and not has_mig(split_device(device)[0]):
            raise InputError(
                f"{place} cannot be partitioned into MIG slices",
                expected="sharing time-slice or mps",
                got=f"mig on {gpu['device']}",
            )
        tenants = []
        for number, described in enumerate(_list(gpu.get("tenants") or [], f"{place}.tenants")):
            tenant = _object(
                described, f"{place}.tenants[{number}]", {"job", "iterations_left", "job_id", "max_slowdown"}
            )
            left = tenant.get("iterations_left")
            if not isinstance(left, int | float) or isinstance(left, bool):
                raise InputError(
                    f"{place}.tenants[{number}].iterations_left is not a number",
                    expected="number of remaining training steps",
                    got="nothing" if left is None else left,
                )
            budget = tenant.get("max_slowdown")
            if budget is not None and (not isinstance(budget, int | float) or isinstance(budget, bool)):
                raise InputError(
                    f"{place}.tenants[{number}].max_slowdown is not a number",
                    expected="a number from 1",
                    got=budget,
                )
            tenants.append(
                Tenant(job_from(tenant.get("job")), float(left), str(tenant.get("job_id", "")), budget)
            )
        count = gpu.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1024:
            raise InputError(
                f"{place}.count is out of range", expected="an integer from 1 to 1024", got=count
            )
        if count > 1 and "id" in gpu:
            raise InputError(
                f"{place} has an id and a count",
                expected="a count of 1 with an id",
                got=f"a count of {count}",
            )
        assumed = gpu.get("tenants_assumed", False)
        if not isinstance(assumed, bool):
            raise InputError(f"{place}.tenants_assumed", expected="true or false", got=_kind(assumed))
        for _ in range(count):
            identifier = str(gpu.get("id", len(gpus)))
            gpus.append(Gpu(identifier, device, gpu.get("sharing", "time-slice"), tuple(tenants), assumed))
    if len({g.id for g in gpus}) != len(gpus):
        raise InputError(f"{where}.gpus: ids are not unique", expected="each GPU id once per node")
    check_cards(gpus, f"{where}.gpus")
    return tuple(gpus)


def _kind(value: Any) -> str:
    """The name of a value's type in YAML and JSON."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "nothing" if value is None else kinds.get(type(value), type(value).__name__)


def _object(value: Any, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(
            f"{where} is not an object",
            expected="fields " + ", ".join(sorted(known)),
            got=_kind(value),
        )
    for key in value:
        if key not in known:
            raise InputError(
                f"{where} has an unknown field", expected="one of " + ", ".join(sorted(known)), got=key
            )
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} is not a list", expected="a list", got=_kind(value))
    return value
