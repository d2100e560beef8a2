"""Stores the cluster of another scheduler in the service."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from serving.integrations.ask import ServiceClient

log = logging.getLogger("cotenant.integrations")

_LEAST_VALID_S = 600.0


def valid_for_s(period_s: float) -> float:
    """Seconds for which what a controller stores is valid, if it looks at the cluster every `period_s`."""
    return max(_LEAST_VALID_S, 4 * period_s)


class Upload:
    """Stores clusters in the service. Links, which schedulers do not know, stay as they are stored.

    Args:
        client: with a token of scope `admin`.
        valid_s: seconds for which what is stored is valid; it is stored again after a third of that. None: for ever, if
            nobody may store it again.

    Attributes:
        cluster: what was stored last; None if that failed.
        before: what the service had stored before that, when it last responded; None if it never did.
    """

    def __init__(self, client: ServiceClient, valid_s: float | None) -> None:
        self._client, self._valid_s = client, valid_s
        self._due_s = math.inf
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
        """Store a cluster, unless it is what was stored a short while ago and nobody has changed that.

        Returns whether it is stored.
        """
        stored, now_s = self.read(), time.monotonic()
        unchanged = stored is not None and cluster == self.cluster and stored["version"] == self._version
        if unchanged and now_s < self._due_s:
            return True
        self.cluster = None
        if stored is None:
            return False
        links = stored["cluster"].get("links", [])
        self._version = self._client.put_cluster(cluster | {"links": links}, self._valid_s)
        if self._version is None:
            return False
        self.cluster = cluster
        if self._valid_s is not None:
            self._due_s = now_s + self._valid_s / 3
        if unchanged:
            return True
        gpus = [gpu for node in cluster["nodes"] for gpu in node["gpus"]]
        tenants = sum(len(gpu.get("tenants", ())) for gpu in gpus)
        log.info("uploaded %d nodes, %d GPUs, %d tenants", len(cluster["nodes"]), len(gpus), tenants)
        return True
