"""Models are loaded alongside, verified and swapped in; on failure the old one stays; no request is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import socket
import threading
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from fastapi.testclient import TestClient
from msgspec import structs

from predictor.types import Prediction, Quantity
from profiling.capture import graph_for
from profiling.errors import InputError, UnavailableError
from serving.app import create_app
from serving.collector import settle
from serving.config import ServiceConfig
from serving.listener import BoundedProtocol
from serving.model_life import ModelLife
from serving.model_source import DirectorySource, RegistrySource, check_model, model_directory, model_source
from serving.store import Store
from tests.serving.conftest import Start
from tests.serving.live import load, serve
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource
from tests.waiting import LONG_S, until

SET = {"device": "v100", "jobs": ["resnet18-cifar"]}


class Infinite(TablePredictor):
    """Loads, but predicts nonsense."""

    def predict_many(self, sets: Any) -> list[Prediction]:
        good = super().predict_many(sets)
        wrong = Quantity(float("inf"), 1.0, float("inf"))
        return [
            replace(p, members=tuple(structs.replace(m, step_time_s=wrong) for m in p.members)) for p in good
        ]


def life(source: TableSource) -> tuple[ModelLife, list[tuple[str, str]]]:
    events: list[tuple[str, str]] = []
    return ModelLife(
        source, 0.01, lambda version, event, _: events.append((version, event)), graph_for
    ), events


def test_swaps_only_for_a_new_tag() -> None:
    source = TableSource()
    followed, events = life(source)
    first = followed.refresh()
    source.predictor = TablePredictor("table-2")
    assert followed.refresh() is first
    source.name = "2"
    assert followed.refresh().version == "table-2"
    assert events == [("table-1", "loaded"), ("table-2", "loaded")]


@pytest.mark.parametrize(
    ("model", "error", "event"), [(Infinite("bad"), None, "refused"), (None, OSError("gone"), "failed")]
)
def test_the_old_model_stays_in_service(model: Any, error: Exception | None, event: str) -> None:
    source = TableSource()
    followed, events = life(source)
    followed.poll_s = 60.0
    followed.refresh()
    source.name, source.predictor, source.error = "2", model, error
    assert followed.refresh().version == "table-1"
    assert events[-1] == ("2", event)
    assert followed.last_error
    followed.refresh()
    assert len(events) == 2, "a refused model is not tried again at once"
    with pytest.raises(UnavailableError):
        followed.refresh(force=True)
    source.name, source.predictor, source.error = "3", TablePredictor("table-3"), None
    assert followed.refresh().version == "table-3"
    assert followed.last_error is None


def test_waiting_to_retry_is_not_another_failure() -> None:
    source = TableSource(error=OSError("gone"))
    followed, events = life(source)
    followed.poll_s = 60.0
    for _ in range(3):
        with pytest.raises(UnavailableError, match="OSError: gone"):
            followed.refresh()
    assert followed.last_error == "OSError: gone"
    assert len(events) == 1


def test_models_are_frozen_and_replaced_ones_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.collector.settle", settle)
    source = TableSource()
    followed, _ = life(source)
    followed.refresh()
    assert gc.get_freeze_count() > 100_000, "libraries and model"
    old = source.predictor
    old.itself = old  # type: ignore[attr-defined]  # only the collector can free a ring
    gone = weakref.ref(old)
    del old
    source.name, source.predictor = "2", TablePredictor("table-2")
    followed.refresh()
    assert gone() is None


def test_reload_and_history(client: TestClient, source: TableSource, monkeypatch: pytest.MonkeyPatch) -> None:
    source.predictor = TablePredictor("table-2")
    state = client.post("/v1/models/reload").json()
    assert state["serving"]["version"] == "table-2"
    assert client.post("/v1/predict", json=SET).json()["model_version"] == "table-2"
    source.error = RuntimeError("disk")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", Mock(side_effect=UnavailableError("locked")))
        assert "disk" in problem(client.post("/v1/models/reload"), 503)["detail"]
    assert "disk" in problem(client.post("/v1/models/reload"), 503)["detail"], "recorded as soon as it can be"
    assert client.get("/v1/models").json()["serving"]["version"] == "table-2"
    assert client.get("/v1/health/ready").status_code == 200
    events = client.get("/v1/models/events").json()["items"]
    assert [e["event"] for e in events] == ["failed", "loaded", "loaded"]
    client.post("/v1/models/reload")
    assert client.get("/v1/models/events").json()["items"] == events, "the same failure again"
    text = client.get("/metrics").text
    assert 'cotenant_model_info{version="table-2"} 1.0' in text
    assert 'cotenant_model_info{version="table-1"} 0.0' in text


def test_the_source_is_followed(start: Start, source: TableSource) -> None:
    client = start(poll_s=0.02)
    source.predictor, source.name = TablePredictor("table-2"), "2"
    until(lambda: client.get("/v1/models").json()["serving"]["version"] == "table-2", "the new model serves")


def test_no_request_is_lost_while_models_change(tmp_path: Path) -> None:
    source = TableSource()
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path}/s.db", poll_s=0.01, log_level="error",
        queue_wait_s=LONG_S, queue_delay_s=LONG_S, request_timeout_s=LONG_S, body_s=LONG_S, stuck_s=LONG_S,
    )  # fmt: skip
    app = create_app(config, source)
    bodies = [{"device": "v100", "jobs": [f"resnet18-cifar:batch_size={n % 50 + 1}"]} for n in range(100)]
    statuses: Counter[int] = Counter()
    with serve(app) as port:
        followed = app.state.service.life

        def taken() -> bool:
            """Requests continue until the new model was loaded and verified."""
            statuses.update(asyncio.run(load(port, "/v1/predict", bodies)))
            return source.name in (followed.serving.tag, followed._failed_tag)

        for number in range(2, 8):
            source.predictor = TablePredictor(f"table-{number}") if number % 3 else Infinite("bad")
            source.name = str(number)
            until(taken, f"model {number} is tried")
    assert set(statuses) == {200}
    assert statuses[200] >= 600
    assert followed.serving.version == "table-7"


def test_directory_source_detects_changes(tmp_path: Path) -> None:
    source = DirectorySource(str(tmp_path))
    before = source.tag()
    (tmp_path / "config.json").write_text("{}")
    assert source.tag() != before
    assert DirectorySource("default").tag() == "default"


def test_every_file_that_a_save_moves_to_its_place_changes_the_tag(tmp_path: Path) -> None:
    """Its files were written before the first of them is moved, the newest first."""
    source, made = DirectorySource(str(tmp_path)), tmp_path / ".new"
    for folder in (tmp_path, made):
        folder.mkdir(exist_ok=True)
        for name in ("MODEL_CARD.md", "manifest.json", "config.json"):
            (folder / name).write_text("{}")
    os.utime(made / "MODEL_CARD.md", (2e9, 2e9))
    tags = [source.tag()]
    (made / "metrics.json").write_text("{}")
    assert source.tag() == tags[0], "nothing is in its place yet"
    for name in ("MODEL_CARD.md", "manifest.json", "config.json"):
        (made / name).rename(tmp_path / name)
        tags.append(source.tag())
    shutil.rmtree(made)
    assert source.tag() == tags[-1]
    assert len(set(tags)) == 4


def test_model_directory_is_found_inside_an_artifact(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "model"
    inner.mkdir(parents=True)
    (inner / "config.json").write_text("{}")
    (inner / "weights.safetensors").write_bytes(b"")
    assert model_directory(tmp_path) == inner


@pytest.mark.parametrize(
    "name", ["registry:", "models:/", "models:/cotenant", "models:/@champion", "models:/cotenant@"]
)
def test_registry_needs_a_name_and_an_alias_or_version(name: str) -> None:
    with pytest.raises(InputError, match="NAME@ALIAS"):
        model_source(name, None)
    with pytest.raises(InputError, match="NAME@ALIAS"):
        check_model(name)


def test_names_of_registered_models() -> None:
    def of(name: str) -> tuple[str, str, str]:
        source = model_source(name, None)
        assert isinstance(source, RegistrySource)
        return source.name, source.alias, source.version

    assert of("registry:cotenant") == of("models:/cotenant@champion") == ("cotenant", "champion", "")
    assert of("models:/cotenant@next") == ("cotenant", "next", "")
    assert of("models:/cotenant/3") == ("cotenant", "", "3")
    assert model_source("models:/cotenant/3", None).tag() == "cotenant/3", "a version needs no look-up"


def test_verification_needs_every_member() -> None:
    class Short(TablePredictor):
        def predict_many(self, sets: Any) -> list[Prediction]:
            return [replace(p, members=p.members[:1]) for p in super().predict_many(sets)]

    source = TableSource(Short())
    followed, _ = life(source)
    with pytest.raises(UnavailableError, match="members"):
        followed.refresh()


def test_a_model_is_replaced_after_many_jobs(start: Start, source: TableSource) -> None:
    client = start(model_jobs=20)
    first = client.app.state.service.life.serving  # type: ignore[attr-defined]
    for size in range(1, 40):
        body = {"device": "v100", "jobs": [f"resnet18-cifar:batch_size={size}"]}
        assert client.post("/v1/predict", json=body).status_code == 200
    until(lambda: client.app.state.service.life.serving is not first, "a fresh copy serves")  # type: ignore[attr-defined]
    assert len(client.app.state.service.batcher._known) <= 41  # type: ignore[attr-defined]


def test_a_model_is_replaced_once_it_holds_many_jobs(start: Start, source: TableSource) -> None:
    """As it may if few are asked for: others follow from observations, or are on larger slices."""
    client = start(model_jobs=20)
    first = client.app.state.service.life.serving  # type: ignore[attr-defined]
    body = {"device": "v100", "jobs": ["resnet18-cifar"]}
    assert client.post("/v1/predict", json=body).status_code == 200
    assert client.app.state.service.life.serving is first  # type: ignore[attr-defined]
    first.predictor.jobs_held = 41
    body["jobs"] = ["resnet18-cifar"] * 2  # not asked before, or its answer would still be there
    assert client.post("/v1/predict", json=body).status_code == 200
    until(lambda: client.app.state.service.life.serving is not first, "a fresh copy serves")  # type: ignore[attr-defined]


def test_a_fresh_copy_that_cannot_be_loaded_is_not_tried_at_every_request(
    start: Start, source: TableSource, caplog: pytest.LogCaptureFixture
) -> None:
    client = start(model_jobs=5, poll_s=LONG_S)
    life = client.app.state.service.life  # type: ignore[attr-defined]
    source.error = OSError("gone")
    for size in range(1, 30):
        body = {"device": "v100", "jobs": [f"resnet18-cifar:batch_size={size}"]}
        assert client.post("/v1/predict", json=body).status_code == 200
    until(lambda: life.last_error == "OSError: gone", "a fresh copy is tried")
    assert life._failures == 1
    assert "never retrieved" not in caplog.text


def test_a_process_accepts_no_connection_before_its_first_model_check(tmp_path: Path) -> None:
    """Processes may share a socket: one without a model must not take connections from the others."""
    loading, go_on = threading.Event(), threading.Event()

    class Slow(TableSource):
        def load(self, tag: str, graphs: Any) -> Any:
            loading.set()
            go_on.wait(LONG_S)
            return super().load(tag, graphs)

    app = create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), Slow())
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, http=BoundedProtocol))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            assert loading.wait(LONG_S)
            assert not server.started
            assert not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            go_on.set()
            until(lambda: server.started, "the service starts")
            assert app.state.service.life.serving is not None
        finally:
            go_on.set()
            server.should_exit = True
            thread.join(LONG_S)
