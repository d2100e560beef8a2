"""A service on a fresh store with the table predictor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.table import TableSource


@pytest.fixture
def source() -> TableSource:
    return TableSource()


Start = Callable[..., TestClient]


@pytest.fixture
def start(tmp_path: Path, source: TableSource) -> Iterator[Start]:
    """Start a service with other settings; every one is stopped at the end."""
    clients: list[TestClient] = []

    def begin(**settings: Any) -> TestClient:
        settings.setdefault("database_url", f"sqlite:///{tmp_path}/store.db")
        settings.setdefault("poll_s", 0.1)
        wait = settings.pop("wait", True)
        client = TestClient(
            create_app(ServiceConfig(**settings), source),
            raise_server_exceptions=False,
            base_url="http://127.0.0.1",
        )
        client.__enter__()
        clients.append(client)
        deadline = time.monotonic() + 30
        while wait and client.get("/v1/health/ready").status_code != 200:
            assert time.monotonic() < deadline, "the service did not get ready"
            time.sleep(0.01)
        return client

    yield begin
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(start: Start) -> TestClient:
    return start()
