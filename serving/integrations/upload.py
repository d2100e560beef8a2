"""Stores the cluster of another scheduler in the service."""

from __future__ import annotations

import logging
from typing import Any

from serving.integrations.ask import ServiceClient

log = logging.getLogger("cotenant.integrations")


class Upload:
    """Stores clusters in the service. Links, which schedulers do not know, stay as they are stored.

    Attributes:
        cluster: what was stored last; None if that failed.
        before: what the service had stored before that, when it last responded; None if it never did.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self.cluster: dict[str, Any] | None = None
        self.before: dict[str, Any] | None = None
        self._version: int | None = None

    def read(self) -> dict[str, Any] | None:
        """What the service has stored, as `before`, with its `version`; None if it does not respond."""
        stored = self._client.cluster()
        if stored is not None:
            self.before = stored["cluster"]
        return stored

    def store(self, cluster: dict[str, Any]) -> bool:
        """Store a cluster, unless it is what was stored last and nobody has changed that; returns whether it is stored."""
        stored = self.read()
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
