"""Nodes from `kubectl get nodes -o json`, by the labels of NVIDIA's GPU feature discovery, of GKE or of AMD's node
labeller.

Their tenants are the annotated pods, if the output has any: `kubectl get nodes,pods -A -o json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from profiling.devices import canonical
from profiling.devices.mig import VARIANT
from profiling.errors import InputError, UnknownNameError
from profiling.files import parse_json
from scheduling.clusters.importers.pod_tenants import ReadJob, SeenGpu, with_tenants
from scheduling.clusters.importers.pods import read_job
from scheduling.clusters.importers.titles import device_of
from scheduling.core.limits import CLUSTER_GPUS
from scheduling.core.snapshot import Gpu, Node, check_counts

PRODUCT = "nvidia.com/gpu.product"
GKE = "cloud.google.com/gke-accelerator"
AMD = "amd.com/gpu.product-name"
# Whole GPUs; a node has one of them. Time slices and MPS shares can be renamed to `.shared`.
_WHOLE = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu")
_GKE_SLICES = "cloud.google.com/gke-gpu-partition-size"
_GKE_REPLICAS = "cloud.google.com/gke-max-shared-clients-per-gpu"
_GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
# GKE's names that do not tell the memory; the larger cards have names that do.
_GKE_CARDS = {"nvidia-tesla-a100": "a100", "nvidia-tesla-v100": "v100"}
_DOMAIN = "nvidia.com/"
# Slices shared by time-slicing or MPS can be renamed to `.shared`.
_SLICES = re.compile(rf"(mig-(\d+g\.\d+gb){VARIANT})(?:\.shared)?")
_COMPUTE_INSTANCES = re.compile(r"nvidia\.com/mig-\d+c\..+")


def read(text: str, devices: Mapping[str, str], _node: str) -> list[Node]:
    """Nodes with GPUs; other nodes and GPUs of vendors other than NVIDIA and AMD are skipped.

    Raises:
        InputError: not the output of kubectl; GPUs of unknown type; a node that advertises compute instances of slices.
    """
    try:
        body = parse_json(text)
    except ValueError as error:
        raise InputError("not JSON", expected="kubectl get nodes -o json", got=str(error)) from None
    items = body.get("items", [body]) if isinstance(body, dict) else None
    if not isinstance(items, list) or not all(isinstance(i, dict) and "metadata" in i for i in items):
        raise InputError("not a list of nodes", expected="kubectl get nodes -o json", got=type(body).__name__)
    pods = [item for item in items if item.get("kind") == "Pod"]
    return nodes_of([item for item in items if item.get("kind") != "Pod"], pods, devices)


def nodes_of(
    items: Iterable[dict[str, Any]],
    pods: Iterable[dict[str, Any]],
    devices: Mapping[str, str],
    skipped: Callable[[str, Exception], None] | None = None,
    read: ReadJob = read_job,
    seen: Mapping[str, SeenGpu] = MappingProxyType({}),
) -> list[Node]:
    """Nodes with GPUs, from nodes and pods as the API server describes them.

    Args:
        items, pods: their objects.
        devices: catalogue names by GPU type, for types that are not recognised.
        skipped: called with the name of a node that cannot be read, and why; if None, that is raised.
        read, seen: as in `with_tenants`.

    Raises:
        InputError, UnknownNameError: GPUs of unknown type; a node that advertises compute instances of slices.
        AttributeError, KeyError, TypeError, ValueError: a label or capacity of another format.
    """
    nodes, total, cards = [], 0, _Cards(devices)
    for item in items:
        try:
            gpus = _gpus(item, cards)
        except (InputError, UnknownNameError, AttributeError, KeyError, TypeError, ValueError) as error:
            if skipped is None:
                raise
            skipped(str(item["metadata"]["name"]), error)
            continue
        total += len(gpus)
        check_counts({"GPUs": total}, CLUSTER_GPUS)
        if gpus:
            nodes.append(Node(str(item["metadata"]["name"]), tuple(gpus)))
    return with_tenants(nodes, pods, read, seen)


class _Cards:
    """Catalogue names of GPU types. A cluster has few types, and looking one up takes milliseconds."""

    def __init__(self, devices: Mapping[str, str]) -> None:
        self._devices = devices
        self._known: dict[tuple[str, bool, float | None], str | InputError] = {}

    def name(self, title: str, product: bool, memory_bytes: float | None) -> str:
        """As `device_of`; `product` if the title is NVIDIA's, not GKE's."""
        key = title, product, memory_bytes
        if key not in self._known:
            given = self._devices if product else _GKE_CARDS | dict(self._devices)
            try:
                self._known[key] = device_of(title, given, memory_bytes)
            except InputError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, InputError):
            raise found.with_traceback(None)
        return found


def _gpus(item: dict[str, Any], cards: _Cards) -> list[Gpu]:
    labels: dict[str, str] = item["metadata"].get("labels") or {}
    capacity: dict[str, Any] = (item.get("status") or {}).get("capacity") or {}
    slices = [
        (match[1], match[2], int(number))
        for key, number in capacity.items()
        if (match := _SLICES.fullmatch(key.removeprefix(_DOMAIN))) and int(number)
    ]
    for key, number in capacity.items():
        if _COMPUTE_INSTANCES.fullmatch(key) and int(number):
            raise InputError(
                f"node {item['metadata']['name']} advertises compute instances of MIG slices",
                expected="slices, such as nvidia.com/mig-3g.20gb",
                got=key,
                hint="import that node from nvidia-smi -L, which lists the slices that they share",
            )
    # A card with slices counts in the label but not in the capacity.
    number = next(filter(None, (int(capacity.get(name, 0)) for name in _WHOLE)), 0)
    advertised = _undivided(labels, "gpu", number)
    count = advertised if slices else int(labels.get("nvidia.com/gpu.count", 0)) or advertised
    if not count and not slices:
        return []
    title = labels.get(PRODUCT) or labels.get(GKE) or labels.get(AMD)
    if title is None:
        raise InputError(
            f"node {item['metadata']['name']} has GPUs of unknown type",
            expected=f"the label {PRODUCT} (GPU feature discovery), {GKE} or {AMD}",
        )
    memory = labels.get("nvidia.com/gpu.memory")
    # A product shared by time-slicing or MPS ends in -SHARED, one partitioned uniformly in -MIG-1g.5gb.
    whole, _, uniform = title.removesuffix("-SHARED").partition("-MIG-")
    uniform = uniform or labels.get(_GKE_SLICES, "")
    card = cards.name(whole, PRODUCT in labels, None if uniform or memory is None else float(memory) * 2**20)
    device = canonical(f"{card}:mig={uniform}") if uniform else card
    strategy = labels.get("nvidia.com/gpu.sharing-strategy") or labels.get(_GKE_SHARING, "")
    sharing = "mps" if strategy == "mps" else "time-slice"
    check_counts({"GPUs": count}, CLUSTER_GPUS)
    gpus = [Gpu(str(k), device, sharing) for k in range(count)]
    for resource, profile, number in slices:
        count = int(labels.get(f"{_DOMAIN}{resource}.count", 0)) or _undivided(labels, resource, number)
        check_counts({"GPUs": count}, CLUSTER_GPUS)
        part = canonical(f"{card}:mig={profile}")
        gpus += [Gpu(f"{resource.removeprefix('mig-')}-{k}", part, sharing) for k in range(count)]
    return gpus


def _undivided(labels: Mapping[str, str], resource: str, number: int) -> int:
    """How many GPUs or slices a node has that advertises `number` of them, each several times if it is shared."""
    replicas = labels.get(f"{_DOMAIN}{resource}.replicas") or labels.get(_GKE_REPLICAS) or 1
    return number // max(int(replicas), 1)
