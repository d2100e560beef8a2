"""Turns Slurm's nodes (`sinfo --json`) and running jobs into a cluster: that of `POST /v1/place`, or the whole one."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from profiling.errors import InputError, LimitError, UnknownNameError
from scheduling.clusters.importers.pod_tenants import MOST_TENANTS
from scheduling.clusters.importers.slurm import (
    device_of_type,
    features_of,
    gpus_of,
    type_by_features,
)
from serving.integrations.slurm_state import PAUSED, SlurmJob, iterations_left, number, read_comment

log = logging.getLogger("cotenant.slurm")

# Whole words: a node that is powered down to save energy (POWERED_DOWN, POWER_DOWN) can be allocated.
_UNAVAILABLE = re.compile(
    r"\b(?:down|drain(?:ed|ing)?|power_drain|powering_down|error|fail(?:ing)?|future|blocked|inval(?:id(?:_reg)?)?"
    r"|maint|not_responding|reserved|unknown)\b"
)


def cluster_for(
    job: SlurmJob, jobs: list[SlurmJob], nodes: list[Mapping[str, Any]], devices: Mapping[str, str], now_s: float | None = None
) -> dict[str, Any]:  # fmt: skip
    """The GPUs that `job` can get now, with their tenants: the `cluster` of `POST /v1/place`.

    Omitted: nodes that are down, in none of the job's partitions or without enough free CPUs; GPUs of an unknown
    or not the requested type, allocated whole or by MPS, without free shards, with more than `MOST_TENANTS` jobs, for
    which the service would refuse the whole cluster, or with a job that has no mark or whose state is in `PAUSED`;
    and, if `job` requests a whole GPU, every GPU in use. Nodes whose `Gres` cannot be read are omitted and logged.

    Args:
        devices: GPU type in Slurm to catalogue name, for types that `device_of_type` does not recognise; of GPUs
            without a type, as in `type_by_features`.
    """
    now_s = time.time() if now_s is None else now_s
    known: dict[str, str | None] = {}
    usable_nodes = []
    for node in nodes:
        name, idle = str(node["name"]), number(node.get("cpus")) - number(node.get("alloc_cpus"))
        shared = set(job.partition.split(",")) & set(node.get("partitions") or [])
        if not _available(node) or not shared or idle < job.cpus:
            continue
        gpus = []
        for index, kind, device, shards in _gpus_of(node, devices, known):
            tenants, free = _tenants(name, index, jobs, now_s, ("shard",))
            if job.gpu_type not in ("", kind) or (job.whole and tenants):
                continue
            if tenants is not None and (job.whole or free + shards >= job.shards):
                gpus.append({"id": str(index), "device": device, "tenants": tenants})
        if gpus:
            usable_nodes.append({"name": name, "gpus": gpus})
    return {"nodes": usable_nodes}


def whole_cluster(
    jobs: list[SlurmJob], nodes: list[Mapping[str, Any]], devices: Mapping[str, str], knows: Callable[[str], bool], now_s: float
) -> dict[str, Any]:  # fmt: skip
    """All GPUs of which it is known what runs there: a body of `PUT /v1/cluster`.

    Omitted: nodes that are down or drained; GPUs of an unknown type, shared by MPS, with more than `MOST_TENANTS` jobs,
    or with a job that has no mark, whose model is unknown, or whose state is in `PAUSED`.

    Args:
        devices: as for `cluster_for`.
        knows: whether the service knows the model of a SPEC.
    """
    known: dict[str, str | None] = {}
    usable_nodes = []
    for node in filter(_available, nodes):
        gpus, name = [], str(node["name"])
        for index, _, device, _ in _gpus_of(node, devices, known):
            tenants, _ = _tenants(name, index, jobs, now_s, ("shard", "gpu"))
            if tenants is not None and all(knows(tenant["job"]) for tenant in tenants):
                gpus.append({"id": str(index), "device": device, "tenants": tenants})
        if gpus:
            usable_nodes.append({"name": name, "gpus": gpus})
    return {"nodes": usable_nodes}


def has_unreported_shards(job: SlurmJob, nodes: list[Mapping[str, Any]]) -> bool:
    """Whether a node that `job` could get has not reported its shards since slurmctld started; Slurm shows none then."""
    partitions = set(job.partition.split(","))
    return any(
        _available(node)
        and partitions & set(node.get("partitions") or [])
        and re.search(r"\bshard:0\b", str(node.get("gres") or ""))
        for node in nodes
    )


def _gpus_of(
    node: Mapping[str, Any], devices: Mapping[str, str], known: dict[str, str | None]
) -> Iterator[tuple[int, str, str, int]]:
    """The GPUs of a node that are of a known type: index, type in Slurm, catalogue name, and shards of each.

    `known` keeps the names, because looking one up takes milliseconds.
    """
    types, shards = _gpus(str(node["name"]), str(node.get("gres") or ""))
    untyped = type_by_features(features_of(node.get("active_features") or node.get("features")), devices)
    for index, kind in enumerate(types):
        title = kind or untyped
        if title not in known:
            known[title] = _device(title, devices)
        if device := known[title]:
            yield index, kind, device, shards


def _available(node: Mapping[str, Any]) -> bool:
    """Whether Slurm gives the node to jobs, waking it up if necessary."""
    state = node.get("state", "")
    told = [*(state if isinstance(state, list) else [state]), *(node.get("state_flags") or [])]
    words = " ".join(map(str, told)).lower()
    if "powering_up" in words:
        words = words.replace("not_responding", "")  # until it has booted
    return _UNAVAILABLE.search(words) is None


@lru_cache(maxsize=4096)  # so that a node is logged once, not at every question
def _gpus(node: str, gres: str) -> tuple[tuple[str, ...], int]:
    """The GPU types of a node and shards per GPU; no GPUs if its `Gres` cannot be read."""
    try:
        types, shards = gpus_of(gres)
    except (InputError, LimitError) as error:
        log.warning("node %s is left out: %s", node, error)
        return (), 0
    return tuple(types), shards


def _device(kind: str, devices: Mapping[str, str]) -> str | None:
    """Catalogue name of a GPU type or slice; None if unknown."""
    try:
        return device_of_type(kind, devices)
    except (InputError, UnknownNameError):
        return None


def _tenants(
    node: str, index: int, jobs: list[SlurmJob], now_s: float, kinds: Sequence[str]
) -> tuple[list[dict[str, Any]] | None, int]:
    """The tenants of a GPU (None if unknown, too many, or not of these kinds), and how many shards they hold, as a
    negative number."""
    tenants, held = [], 0
    for job in jobs:
        kind, count = job.holds.get(node, {}).get(index, ("", 0))
        if not job.has_gpus or not count:
            continue
        if job.state in PAUSED:
            return None, held
        try:
            request = read_comment(job.comment)
        except InputError:
            request = None
        if request is None or kind not in kinds:
            return None, held
        held -= count
        left = iterations_left(job, request, now_s)
        length = {} if left is None else {"iterations_left": left}
        tenants.append({"job": request.job, **length, "job_id": str(job.id)})
    return (tenants if len(tenants) <= MOST_TENANTS else None), held
