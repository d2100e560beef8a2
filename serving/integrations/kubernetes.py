"""Kubernetes integration: tells the service which nodes there are and which annotated pods run on them.

The scheduler extender scores the stored cluster, and Kubernetes itself tells the service nothing. The cluster is
uploaded whenever nodes or pods, or what the service has stored, have changed, and now and then for the progress of
the pods.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from profiling.errors import CotenantError, InputError, UnavailableError
from profiling.workload import REGISTERED
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.clusters.importers.pods import PREFIX, PodJob
from scheduling.core.snapshot import ClusterSnapshot
from serving.extender.pods import read_job
from serving.integrations.ask import ServiceClient
from serving.integrations.pod_progress import PodProgress, without_progress
from serving.integrations.settings import check_settings

log = logging.getLogger("cotenant.kubernetes")

# Pods that are bound to a node and have not ended. Annotations cannot be selected.
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_PAGE = 500
_TIMEOUT_S = 30.0


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


class ApiServer:
    """Kubernetes through the official client.

    Args:
        core: a `kubernetes.client.CoreV1Api`.
    """

    def __init__(self, core: Any) -> None:
        self._core = core

    @classmethod
    def connect(cls, context: str | None = None) -> ApiServer:
        """By the kubeconfig, or in a pod that has none, by its service account.

        Raises:
            UnavailableError: the client is not installed; there is no usable configuration.
        """
        try:
            from kubernetes import client, config
        except ImportError:
            raise UnavailableError(
                "the Kubernetes client is not installed",
                hint="pip install -e '.[kubernetes]' in the checkout",
            ) from None
        try:
            if context is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config()
            else:
                config.load_kube_config(context=context)
        except (config.ConfigException, OSError, TypeError, yaml.YAMLError) as error:
            raise UnavailableError(
                "no access to a Kubernetes cluster",
                expected="a kubeconfig or a pod's service account",
                got=str(error),
            ) from None
        return cls(client.CoreV1Api())

    def nodes(self) -> list[dict[str, Any]]:
        """Their names, labels and capacities."""
        return _listed(self._core.list_node, _part_of_node)

    def pods(self) -> list[dict[str, Any]]:
        """Annotated ones that are bound to a node and have not ended."""
        return _listed(self._core.list_pod_for_all_namespaces, _annotated, field_selector=_BOUND)


def run(client: ServiceClient, config: KubernetesConfig, api: ApiServer) -> None:
    """Keep the service's cluster in step, for ever."""
    upload, progress = Upload(client), PodProgress(client)
    seats: dict[str, Any] | None = None
    due = 0.0
    with _news() as news:
        while True:
            cluster = _cluster(config, api, progress, _Jobs(client, upload.cluster))
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
    cluster = _cluster(config, api, PodProgress(client), _Jobs(client))
    return cluster is not None and Upload(client).store(cluster)


class Upload:
    """Stores clusters in the service. Links, which Kubernetes does not know, stay as they are stored.

    Attributes:
        cluster: what was stored last; None if that failed.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self.cluster: dict[str, Any] | None = None
        self._version: int | None = None

    def store(self, cluster: dict[str, Any]) -> bool:
        """Store a cluster, unless it is what was stored last and nobody has changed that; returns whether it is stored."""
        stored = self._client.cluster()
        if stored is not None and cluster == self.cluster and stored["version"] == self._version:
            return True
        self.cluster = None
        if stored is None:
            return False
        links = stored["cluster"].get("links", [])
        self._version = self._client.put_cluster(cluster | {"links": links})
        if self._version is None:
            return False
        self.cluster = cluster
        gpus = [gpu for node in cluster["nodes"] for gpu in node["gpus"]]
        tenants = sum(len(gpu.get("tenants", ())) for gpu in gpus)
        log.info("uploaded %d nodes, %d GPUs, %d tenants", len(cluster["nodes"]), len(gpus), tenants)
        return True


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


def _cluster(
    config: KubernetesConfig, api: ApiServer, progress: PodProgress, jobs: _Jobs
) -> dict[str, Any] | None:
    """The body of `PUT /v1/cluster`; None, with a warning, if Kubernetes does not answer or has no GPU."""
    try:
        pods = api.pods()
        nodes = nodes_of(api.nodes(), pods, config.devices, _skipped, jobs.read)
    except CotenantError as error:
        log.warning("the cluster was not read: %s", error)
        return None
    if not nodes:
        log.warning("no node has a GPU that is recognised")
        return None
    cluster = ClusterSnapshot(tuple(nodes)).to_mapping()
    progress.subtract(cluster, pods)
    return cluster


def _skipped(node: str, error: Exception) -> None:
    why = error if isinstance(error, CotenantError) else f"a label or capacity has another format: {error}"
    log.warning("node %s is left out: %s", node, why)


# A large cluster's nodes and pods take gigabytes; little of it is read.
def _part_of_node(node: dict[str, Any]) -> dict[str, Any]:
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels")},
        "status": {"capacity": status.get("capacity")},
    }


def _annotated(pod: dict[str, Any]) -> dict[str, Any] | None:
    metadata = pod["metadata"]
    if f"{PREFIX}workload" not in (metadata.get("annotations") or {}):
        return None
    return {**pod, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _listed(
    method: Any, part: Callable[[dict[str, Any]], dict[str, Any] | None], **options: Any
) -> list[dict[str, Any]]:
    """`part` of all objects, as JSON, without those of which it is None. Raises `UnavailableError`."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    items: list[dict[str, Any]] = []
    more: str | None = None
    try:
        while True:
            response = method(
                limit=_PAGE, _continue=more, _preload_content=False, _request_timeout=_TIMEOUT_S, **options
            )
            if response.status != 200:
                raise ApiException(http_resp=response)
            body = json.loads(response.data)
            items += [kept for item in body["items"] if (kept := part(item)) is not None]
            more = body["metadata"].get("continue")
            if not more:
                return items
    except ApiException as error:
        raise UnavailableError("the API server refused", got=f"{error.status} {error.reason}") from None
    except (HTTPError, ValueError, KeyError) as error:
        raise UnavailableError(
            "the API server did not answer", got=f"{type(error).__name__}: {error}"
        ) from None
