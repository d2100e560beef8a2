"""Stand-ins for the API server of Kubernetes and for a service, and a controller that looks some times."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client as kubernetes_client

from serving.integrations import kubernetes
from serving.integrations.api_server import ApiServer
from serving.integrations.kubernetes import KubernetesConfig, run

CONFIG = KubernetesConfig()


class StandIn:
    """Lists `nodes` and `pods`, at most two on a page; `status` other than 200 refuses."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.status, self.selectors = 200, set[str]()

    def answer(self, path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        self.selectors.add(query.get("fieldSelector", ""))
        items = {"/api/v1/nodes": self.nodes, "/api/v1/pods": self.pods}[parts.path]
        first = int(query.get("continue", 0))
        more = str(first + 2) if first + 2 < len(items) else ""
        return {"items": items[first : first + 2], "metadata": {"continue": more}}


@pytest.fixture
def stand_in() -> Iterator[tuple[StandIn, ApiServer]]:
    state = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(state.answer(self.path)).encode()
            self.send_response(state.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"http://127.0.0.1:{server.server_port}"
    api = kubernetes_client.ApiClient(kubernetes_client.Configuration(host=host))
    yield state, ApiServer(kubernetes_client.CoreV1Api(api))
    server.shutdown()
    server.server_close()


class Stored:
    """A service that stores clusters, or refuses to if not `usable`."""

    def __init__(self, usable: bool = True) -> None:
        self.usable, self.version = usable, 0
        self.links: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.valid_s: list[float | None] = []

    def cluster(self) -> dict[str, Any]:
        return {"version": self.version, "cluster": {"nodes": [], "links": self.links}}

    def put_cluster(self, cluster: dict[str, Any], valid_s: float | None = None) -> int | None:
        self.bodies.append(cluster)
        self.valid_s.append(valid_s)
        self.version += self.usable
        return self.version if self.usable else None

    def step_times_s(self, _device: str, _sharing: str, jobs: Any) -> list[float]:
        return [0.1] * len(jobs)

    def nodes(self) -> list[list[str]]:
        return [[node["name"] for node in body["nodes"]] for body in self.bodies]


def looks(
    monkeypatch: pytest.MonkeyPatch, service: Any, config: KubernetesConfig, api: ApiServer, *turns: Any
) -> None:
    """Run the controller; before each further look, call the next of `turns`."""
    following = iter(turns)

    def sleep(_: float) -> None:
        turn = next(following, None)
        if turn is None:
            raise KeyboardInterrupt
        turn()

    with monkeypatch.context() as patched:
        patched.setattr(kubernetes.time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            run(service, config, api)


def nothing() -> None:
    pass
