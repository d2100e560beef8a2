"""Readiness waits for the first capture of a worker."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving import capturing
from serving.app import create_app
from serving.service import Service
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.waiting import LONG_S, until


@pytest.fixture(autouse=True)
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services start as in a worker process."""

    def create(*arguments: Any) -> Any:
        app = create_app(*arguments)
        app.state.service.warm_captures = True
        return app

    monkeypatch.setattr("tests.serving.conftest.create_app", create)


def service_of(client: TestClient) -> Service:
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    return service


def ready(client: TestClient) -> bool:
    return client.get("/v1/health/ready").status_code == 200


def nothing() -> None:
    pass


def sleep() -> None:
    time.sleep(10 * LONG_S)


def test_readiness_waits_for_the_first_capture(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the replacement of a killed process does not make the service unready."""
    monkeypatch.setattr(capturing, "capture_first", nothing)
    client = start(wait=False)
    captures = service_of(client).captures
    until(lambda: ready(client), "the service gets ready")
    assert captures.are_warm
    captures._warming = Future()
    assert not captures.are_warm
    assert ready(client)


def test_other_requests_do_not_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "capture_first", sleep)
    client = start(wait=False)
    until(lambda: service_of(client).life.serving, "a model serves")
    told = problem(client.get("/v1/health/ready"), 503)
    assert told["detail"].startswith("the capture processes are starting")
    assert client.get("/v1/health/live").status_code == 200
    assert client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}).status_code == 200


def test_readiness_does_not_wait_for_ever(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "capture_first", sleep)
    monkeypatch.setattr("serving.service._WARM_S", 0.2)
    client = start(wait=False)
    until(lambda: ready(client), "the service gets ready anyway")
    assert not service_of(client).captures.are_warm
