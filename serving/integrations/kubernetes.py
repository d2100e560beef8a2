"""Kubernetes integration: tells the service which nodes there are and which annotated pods run on them.

The scheduler extender scores the stored cluster, and Kubernetes itself tells the service nothing. The cluster is
uploaded whenever it has changed, and now and then anyway, for a service that was restored from a backup.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from profiling.devices import get_device
from profiling.errors import CotenantError, InputError, UnavailableError
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.core.snapshot import ClusterSnapshot
from serving.integrations.ask import ServiceClient

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
        repeat_s: an unchanged cluster is uploaded again after this long.
        devices: GPU type in Kubernetes to catalogue name, for types that are not recognised.
    """

    period_s: float = 5.0
    repeat_s: float = 60.0
    devices: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("period_s", "repeat_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is out of range", expected="a number above 0", got=getattr(self, name))  # fmt: skip
        for device in self.devices.values():
            get_device(device)


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
                "the Kubernetes client is not installed", hint="pip install 'cotenant[kubernetes]'"
            ) from None
        try:
            if context is None and "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config()
            else:
                config.load_kube_config(context=context)
        except (config.ConfigException, OSError) as error:
            raise UnavailableError(
                "no access to a Kubernetes cluster",
                expected="a kubeconfig or a pod's service account",
                got=str(error),
            ) from None
        return cls(client.CoreV1Api())

    def nodes(self) -> list[dict[str, Any]]:
        return _listed(self._core.list_node)

    def pods(self) -> list[dict[str, Any]]:
        """Those that are bound to a node and have not ended."""
        return _listed(self._core.list_pod_for_all_namespaces, field_selector=_BOUND)


def run(client: ServiceClient, config: KubernetesConfig, api: ApiServer) -> None:
    """Keep the service's cluster in step, for ever."""
    told: dict[str, Any] | None = None
    due = 0.0
    with _news() as news:
        while True:
            cluster = _cluster(config, api)
            changed = cluster != told
            if cluster is not None and (changed or time.monotonic() >= due):
                told = cluster if _put(client, cluster, changed) else None
                due = time.monotonic() + config.repeat_s
            news.turn()
            time.sleep(config.period_s)


def look(client: ServiceClient, config: KubernetesConfig, api: ApiServer) -> bool:
    """Upload the cluster as it is now; returns whether that succeeded."""
    cluster = _cluster(config, api)
    return cluster is not None and _put(client, cluster)


class _News(logging.Filter):
    """Drops what was logged at the last look, too."""

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
    news, loggers = _News(), (log, logging.getLogger("cotenant.importers"))
    for logger in loggers:
        logger.addFilter(news)
    try:
        yield news
    finally:
        for logger in loggers:
            logger.removeFilter(news)


def _put(client: ServiceClient, cluster: dict[str, Any], changed: bool = True) -> bool:
    done = client.put_cluster(cluster)
    if done and changed:
        gpus = [gpu for node in cluster["nodes"] for gpu in node["gpus"]]
        tenants = sum(len(gpu.get("tenants", ())) for gpu in gpus)
        log.info("uploaded %d nodes, %d GPUs, %d tenants", len(cluster["nodes"]), len(gpus), tenants)
    return done


def _cluster(config: KubernetesConfig, api: ApiServer) -> dict[str, Any] | None:
    """The body of `PUT /v1/cluster`; None, with a warning, if Kubernetes does not answer or has no GPU."""
    try:
        nodes = nodes_of(api.nodes(), api.pods(), config.devices, _skipped)
    except CotenantError as error:
        log.warning("the cluster was not read: %s", error)
        return None
    if not nodes:
        log.warning("no node has a GPU that is recognised")
        return None
    return ClusterSnapshot(tuple(nodes)).to_mapping()


def _skipped(node: str, error: CotenantError) -> None:
    log.warning("node %s is left out: %s", node, error)


def _listed(method: Any, **options: Any) -> list[dict[str, Any]]:
    """All objects, as JSON. Raises `UnavailableError`."""
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
            items += body["items"]
            more = body["metadata"].get("continue")
            if not more:
                return items
    except ApiException as error:
        raise UnavailableError("the API server refused", got=f"{error.status} {error.reason}") from None
    except (HTTPError, ValueError, KeyError) as error:
        raise UnavailableError(
            "the API server did not answer", got=f"{type(error).__name__}: {error}"
        ) from None
