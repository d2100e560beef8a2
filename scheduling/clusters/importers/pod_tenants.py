"""Running Kubernetes pods as the tenants of their nodes' GPUs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from profiling.errors import InputError
from profiling.workload import REGISTERED
from profiling.zoo import zoo_names
from scheduling.clusters.importers.offers import Offers
from scheduling.clusters.importers.pods import PodJob, field, job_id_of, name_of, read_job
from scheduling.core.limits import unknown_steps
from scheduling.core.snapshot import Node, Tenant

MOST_TENANTS = 16
"""Tenants of one GPU that the service accepts (its limit `set_jobs`)."""
ReadJob = Callable[[dict[str, Any]], PodJob | None]
_STEP_TIME_S = 0.1  # of a job that states neither its iterations nor its step time
_ENDED = ("Succeeded", "Failed")
_LOG = logging.getLogger("cotenant.importers")


class SeenGpu(NamedTuple):
    """The GPU that a pod sees, by its UUID, and the `id` of the one that it was last taken for."""

    uuid: str
    last: str


def with_tenants(
    nodes: Sequence[Node],
    pods: Iterable[dict[str, Any]],
    read: ReadJob = read_job,
    seen: Mapping[str, SeenGpu] = MappingProxyType({}),
) -> list[Node]:
    """The nodes with the annotated pods that are bound to them and have not ended.

    Nothing in a pod says which GPU it got. Those in `seen` are seated first, together if they see the same one. Then come
    the oldest, each on the GPUs with the fewest tenants among those that its request can get. Where there is a choice, or
    the pod has not started, these are marked `tenants_assumed`. All their iterations count as left. Pods with mistakes
    are skipped with a warning, as are those for which there is no room or no such GPU.

    Args:
        read: the job of a pod, as `pods.read_job`, perhaps with further checks.
        seen: by `job_id_of` a pod.
    """
    on: dict[str, list[tuple[PodJob, Tenant]]] = defaultdict(list)
    pending: set[str] = set()
    for pod in sorted(pods, key=_age):
        where = field(field(pod, "spec"), "nodeName")
        if not where or field(field(pod, "status"), "phase") in _ENDED:
            continue
        try:
            job = read(pod)
            if job is not None:
                _check_known(job.workload.model)
                tenant = Tenant(job.workload, _iterations(job), job_id_of(pod), job.max_slowdown)
                on[str(where)].append((job, tenant))
                if field(field(pod, "status"), "phase") == "Pending":  # its image is pulled, say
                    pending.add(tenant.job_id)
        except InputError as error:
            _LOG.warning("pod %s is not imported: %s", name_of(pod), error.message)
    return [_seated(node, on[node.name], seen, pending) if node.name in on else node for node in nodes]


def _seated(
    node: Node,
    jobs: Iterable[tuple[PodJob, Tenant]],
    seen: Mapping[str, SeenGpu],
    pending: Collection[str],
) -> Node:
    tenants: list[list[Tenant]] = [[] for _ in node.gpus]
    claimed, assumed = dict[str, int](), set[int]()
    for job, tenant in sorted(jobs, key=lambda one: one[1].job_id not in seen):
        offered = Offers(job.mig_profile).places(node)
        places = [k for k in offered if len(tenants[k]) < MOST_TENANTS]
        if not places:
            _LOG.warning("pod %s is not imported: node %s has no GPU left for it", tenant.job_id, node.name)
        said = seen.get(tenant.job_id) if job.gpus == 1 else None
        own = _place_of(said, node, places, claimed) if said is not None else None
        if own is not None:
            tenants[own].append(tenant)
            continue
        if places and (len(offered) > job.gpus or tenant.job_id in pending):
            assumed.update(offered)
        for k in sorted(places, key=lambda k: len(tenants[k]))[: job.gpus]:
            tenants[k].append(tenant)
    gpus = enumerate(zip(node.gpus, tenants, strict=True))
    return replace(
        node, gpus=tuple(replace(g, tenants=tuple(own), tenants_assumed=k in assumed) for k, (g, own) in gpus)
    )


def _place_of(seen: SeenGpu, node: Node, places: Sequence[int], claimed: dict[str, int]) -> int | None:
    """Which of some GPUs stands for one that a pod sees; None if all stand for others that pods see."""
    if seen.uuid not in claimed:
        free = [k for k in places if k not in claimed.values()]
        if not free:
            return None
        claimed[seen.uuid] = next((k for k in free if node.gpus[k].id == seen.last), free[0])
    return claimed[seen.uuid] if claimed[seen.uuid] in places else None


def _iterations(job: PodJob) -> float:
    return job.iterations or unknown_steps(job.workload.solo.step_time_s or _STEP_TIME_S)


def _check_known(model: str) -> None:
    if not model.startswith(REGISTERED) and model not in zoo_names():
        raise InputError("unknown model", expected="a zoo name or graph:HASH", got=repr(model[:200]))


def _age(pod: dict[str, Any]) -> tuple[str, str]:
    return str(field(field(pod, "metadata"), "creationTimestamp")), name_of(pod)
