"""Kubernetes integration: tells the service which nodes there are and which annotated pods run on them.

The scheduler extender scores the stored cluster, and Kubernetes itself tells the service nothing. The cluster is
uploaded whenever nodes or pods, or what the service has stored, have changed, and now and then for the progress of
the pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from profiling.errors import CotenantError, InputError
from profiling.workload import REGISTERED
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.clusters.importers.pod_tenants import SeenGpu
from scheduling.clusters.importers.pods import PodJob
from scheduling.core.snapshot import ClusterSnapshot
from serving.extender.pods import read_job
from serving.integrations.api_server import ApiServer
from serving.integrations.ask import ServiceClient
from serving.integrations.pod_progress import PodProgress, without_progress
from serving.integrations.settings import check_settings
from serving.integrations.upload import Upload, valid_for_s

log = logging.getLogger("cotenant.kubernetes")


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """Settings of the controller.

    Attributes:
        period_s: seconds between looks at nodes and pods.
        repeat_s: seconds after which an unchanged cluster is uploaded again if its pods have made progress or the
            stored one is not the same.
        devices: GPU type in Kubernetes to catalogue name, for types that are not recognised.
    """

    period_s: float = 5.0
    repeat_s: float = 60.0
    devices: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self, "period_s", "repeat_s")


def run(client: ServiceClient, config: KubernetesConfig, api: ApiServer) -> None:
    """Keep the service's cluster in step, for ever."""
    upload = Upload(client, valid_for_s(max(config.period_s, config.repeat_s)))
    progress = PodProgress(client)
    seats: dict[str, Any] | None = None
    due = 0.0
    with _news() as news:
        while True:
            cluster = None
            if upload.before is not None or upload.read() is not None:
                jobs = _Jobs(client, upload.cluster)
                cluster = _cluster(config, api, progress, jobs, _seen(upload.before, upload.cluster))
            if cluster is not None:
                last, seats = seats, without_progress(cluster)
                if upload.cluster is None or seats != last or time.monotonic() >= due:
                    upload.store(cluster)
                    progress.forget_steps()
                    due = time.monotonic() + config.repeat_s
            news.turn()
            time.sleep(config.period_s)


def look(client: ServiceClient, config: KubernetesConfig, api: ApiServer) -> bool:
    """Upload the cluster as it is now; returns whether that succeeded."""
    upload = Upload(client, valid_s=None)
    if upload.read() is None:
        return False
    cluster = _cluster(config, api, PodProgress(client), _Jobs(client), _seen(upload.before))
    return cluster is not None and upload.store(cluster)


class _Jobs:
    """Reads the jobs of pods as the service does, which would refuse the whole cluster for one that it does not know.

    Args:
        stored: what the service has stored, and so knows; None if that is unknown.
    """

    def __init__(self, client: ServiceClient, stored: dict[str, Any] | None = None) -> None:
        self._client = client
        nodes = stored["nodes"] if stored is not None else []
        tenants = (tenant for node in nodes for gpu in node["gpus"] for tenant in gpu["tenants"])
        self._lacks = {tenant["job"]["workload"]: False for tenant in tenants}

    def read(self, pod: dict[str, Any]) -> PodJob | None:
        """As `pods.read_job`; `InputError`, too, for numbers out of range and a graph that is not registered."""
        job = read_job(pod)
        if job is not None and (graph := job.workload.model).startswith(REGISTERED):
            if graph not in self._lacks:
                self._lacks[graph] = self._client.lacks(graph)
            if self._lacks[graph]:
                raise InputError(
                    "graph is not registered", expected="graph:HASH of /v1/workloads", got=graph[:80]
                )
        return job


class _News(logging.Filter):
    """Drops what the last look logged already."""

    def __init__(self) -> None:
        super().__init__()
        self._before: set[str] = set()
        self._now: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        self._now.add(message)
        return message not in self._before

    def turn(self) -> None:
        """What follows belongs to the next look."""
        self._before, self._now = self._now, set()


@contextmanager
def _news() -> Iterator[_News]:
    names = ("cotenant.kubernetes", "cotenant.importers", "cotenant.integrations")
    news, loggers = _News(), [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(news)
    try:
        yield news
    finally:
        for logger in loggers:
            logger.removeFilter(news)


def _seen(before: dict[str, Any] | None, after: dict[str, Any] | None = None) -> dict[str, SeenGpu]:
    """What pods have told the service about their GPUs, by `job_id`.

    Args:
        before: the stored cluster as it was read.
        after: what has replaced it since. Pods seated by where they were before that could swap GPUs for ever.
    """
    seats = {tenant["job_id"]: gpu["id"] for gpu, tenant in _tenants(after)}
    return {
        tenant["job_id"]: SeenGpu(tenant["gpu_uuid"], seats.get(tenant["job_id"], gpu["id"]))
        for gpu, tenant in _tenants(before)
        if tenant.get("gpu_uuid")
    }


def _tenants(cluster: dict[str, Any] | None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Those with a `job_id`, each with its GPU."""
    for node in cluster["nodes"] if cluster is not None else ():
        for gpu in node["gpus"]:
            yield from ((gpu, tenant) for tenant in gpu.get("tenants", ()) if tenant.get("job_id"))


def _cluster(
    config: KubernetesConfig, api: ApiServer, progress: PodProgress, jobs: _Jobs, seen: Mapping[str, SeenGpu]
) -> dict[str, Any] | None:
    """The body of `PUT /v1/cluster`; None, with a warning, if Kubernetes does not answer or no node can be read.

    Without a GPU node, it has no nodes: an autoscaler may have removed the last one.
    """
    left_out: list[str] = []

    def skipped(node: str, error: Exception) -> None:
        left_out.append(node)
        why = (
            error if isinstance(error, CotenantError) else f"a label or capacity has another format: {error}"
        )
        log.warning("node %s is left out: %s", node, why)

    try:
        pods = api.pods()
        nodes = nodes_of(api.nodes(), pods, config.devices, skipped, jobs.read, seen)
    except CotenantError as error:
        log.warning("the cluster was not read: %s", error)
        return None
    if not nodes:
        log.warning("no node has a GPU that is recognised")
        if left_out:
            return None
    cluster = ClusterSnapshot(tuple(nodes)).to_mapping()
    progress.subtract(cluster, pods)
    return cluster
