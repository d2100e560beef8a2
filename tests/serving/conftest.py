"""A service on a fresh store with the table predictor."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.config import ServiceConfig
from serving.store import Store
from tests.once import made_once
from tests.serving.table import TableSource
from tests.waiting import LONG_S, until


@pytest.fixture
def source() -> TableSource:
    return TableSource()


Start = Callable[..., TestClient]


@pytest.fixture(scope="session")
def migrated() -> Path:
    """File of an empty store; a copy of it opens in a fifth of the time that the migrations take."""
    return made_once("store.db", lambda path: Store(f"sqlite:///{path}").close())


@pytest.fixture
def start(
    tmp_path: Path, migrated: Path, source: TableSource, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Start a service with other settings; every one is stopped at the end.

    Bounds of time are far off where a test does not set them: a busy machine must not meet them.
    """
    monkeypatch.setattr("serving.service._PING_S", LONG_S)
    monkeypatch.setattr("serving.service.BUSY_S", LONG_S)
    clients: list[TestClient] = []

    def begin(**settings: Any) -> TestClient:
        if "database_url" not in settings and not (tmp_path / "store.db").exists():
            shutil.copy(migrated, tmp_path / "store.db")
        settings.setdefault("database_url", f"sqlite:///{tmp_path}/store.db")
        settings.setdefault("poll_s", 0.1)
        for name in (
            "token_check_s",
            "queue_wait_s",
            "queue_delay_s",
            "request_timeout_s",
            "body_s",
            "stuck_s",
        ):
            settings.setdefault(name, LONG_S)
        wait = settings.pop("wait", True)
        client = TestClient(
            create_app(ServiceConfig(**settings), source),
            raise_server_exceptions=False,
            base_url="http://127.0.0.1",
        )
        client.__enter__()
        clients.append(client)
        if wait:
            until(lambda: client.get("/v1/health/ready").status_code == 200, "the service gets ready")
        return client

    yield begin
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(start: Start) -> TestClient:
    return start()
