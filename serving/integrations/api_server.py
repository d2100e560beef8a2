"""Kubernetes' API server: what `cotenant controller kubernetes` reads of nodes and pods."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import yaml

from profiling.errors import UnavailableError
from scheduling.clusters.importers.pods import PREFIX
from serving.integrations.total_timeout import Deadline

# Pods that are bound to a node and have not ended. Annotations cannot be selected.
_BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_PAGE = 500
# Longest wait for the next byte, and for a whole page.
_TIMEOUT_S = 30.0
_PAGE_S = 120.0
_deadline: ContextVar[Deadline | None] = ContextVar("_deadline", default=None)


class ApiServer:
    """Kubernetes through the official client.

    Args:
        core: a `kubernetes.client.CoreV1Api`.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        _watch(core.api_client.rest_client.pool_manager)

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
                hint="pip install 'cotenant[kubernetes]'",
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
            with _in_time(_PAGE_S):
                response = method(
                    limit=_PAGE,
                    _continue=more,
                    _preload_content=False,
                    _request_timeout=_TIMEOUT_S,
                    **options,
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


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """What is read from the API server inside must be complete after `seconds`."""
    from urllib3.exceptions import HTTPError

    deadline = Deadline(seconds)
    token = _deadline.set(deadline)
    try:
        yield
    except (HTTPError, ValueError) as error:
        if deadline.over:
            raise HTTPError(f"no complete answer within {seconds:g} s") from error
        raise
    finally:
        deadline.cancel()
        _deadline.reset(token)


def _watch(manager: Any) -> None:
    """Have the connections of a `urllib3.PoolManager` observe `_in_time`."""

    def watched(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def getresponse(self) -> Any:
                deadline = _deadline.get()
                if deadline is not None and self.sock is not None:
                    deadline.watch(self.sock)
                return super().getresponse()

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    manager.pool_classes_by_scheme = {
        scheme: watched(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }
