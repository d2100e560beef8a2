"""Kills during writes, a full disk, a locked database: no acknowledged write is lost; 503 and recovery."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from profiling.errors import CotenantError, InputError, UnavailableError
from serving.auth import create_token
from serving.handlers.upkeep import upkeep
from serving.store import Store
from tests.serving import killing
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.waiting import LONG_S, until

NODE = {"gpus": [{"device": "v100"}]}


def test_kills_during_writes(tmp_path: Path) -> None:
    result = killing.run(tmp_path, kills=2)
    assert result["acknowledged"] > 2
    assert (result["lost"], result["half"]) == (0, 0)


def test_locked_database(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.service.BUSY_S", 1.0)
    client = start()
    assert client.put("/v1/cluster/nodes/a", json=NODE).status_code == 201
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused = client.put("/v1/cluster/nodes/b", json=NODE)
    assert "locked" in problem(refused, 503)["detail"]
    assert refused.headers["retry-after"]
    assert client.get("/v1/cluster").json()["version"] == 1, "readers go on"
    assert client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}).status_code == 200
    other.execute("ROLLBACK")
    assert client.put("/v1/cluster/nodes/b", json=NODE).status_code == 201
    other.close()


def test_full_disk(start: Start) -> None:
    client = start()
    assert client.put("/v1/cluster/nodes/a", json=NODE).status_code == 201
    store: Store = client.app.state.service.store  # type: ignore[attr-defined]
    big = {"gpus": [{"device": "v100", "count": 1000}]}
    # SQLite's own limit on pages gives the same error as a disk without room.
    store.engine.dispose()
    limit = _limit_pages(store)
    with capture_logs() as logged:
        refused = problem(client.put("/v1/cluster/nodes/b", json=big), 503)
    assert [entry["detail"] for entry in logged if entry["event"] == "request"] == [refused["detail"]]
    metrics = client.get("/metrics").text
    assert 'cotenant_requests_refused_total{reason="store"} 1.0' in metrics
    assert 'reason="busy"' not in metrics, "more workers would not help"
    assert "the disk is full" in refused["detail"]
    assert "store.db" in refused["detail"]
    assert store.name.removeprefix("sqlite:///") not in str(refused)
    assert client.get("/v1/cluster").json()["version"] == 1
    assert client.get("/v1/cluster/nodes/a").status_code == 200
    limit()
    assert client.put("/v1/cluster/nodes/b", json=big).status_code == 201


def test_a_deleted_or_replaced_database_takes_no_writes(start: Start, tmp_path: Path) -> None:
    """They would go to the deleted file, which the service still has open, and be lost at a restart."""
    client, file = start(), tmp_path / "store.db"
    assert client.put("/v1/cluster/nodes/a", json=NODE).status_code == 201
    file.rename(tmp_path / "aside.db")
    refused = problem(client.put("/v1/cluster/nodes/b", json=NODE), 503)
    assert "deleted or replaced" in refused["detail"]
    assert str(tmp_path) not in str(refused)
    problem(client.get("/v1/health/ready"), 503)
    assert client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}).status_code == 200
    file.write_bytes(b"")
    problem(client.put("/v1/cluster/nodes/b", json=NODE), 503)
    (tmp_path / "aside.db").replace(file)
    assert client.put("/v1/cluster/nodes/b", json=NODE).status_code == 201
    assert client.get("/v1/health/ready").status_code == 200


def test_a_damaged_database_is_not_ready(start: Start, tmp_path: Path) -> None:
    client, file = start(), tmp_path / "store.db"
    assert client.put("/v1/cluster/nodes/a", json=NODE).status_code == 201
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    file.write_bytes(b"x" * file.stat().st_size)
    assert "is damaged" in problem(client.get("/v1/health/ready"), 503)["detail"]
    problem(client.get("/v1/cluster"), 503)
    assert client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}).status_code == 200


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.store.engine.os.access", lambda *_: False)
    with pytest.raises(UnavailableError, match="cannot be written"):
        Store(f"sqlite:///{tmp_path}/store.db")


def _limit_pages(store: Store):  # type: ignore[no-untyped-def]
    from sqlalchemy import event

    def few(connection, _):  # type: ignore[no-untyped-def]
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size as the least

    event.listen(store.engine, "connect", few)

    def lift() -> None:
        event.remove(store.engine, "connect", few)
        store.engine.dispose()

    return lift


def test_unusable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="sqlite"):
        Store("nonsense")
    for memory in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        with pytest.raises(InputError, match="in memory"):
            Store(memory)
    with pytest.raises(InputError, match="an invalid port") as raised:
        Store("postgresql+psycopg://u:p@ss:word@localhost/x")
    assert "word" not in raised.value.message.replace("password", "")
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as where the extra is not installed
    with pytest.raises(InputError, match="postgres"):
        Store("postgresql+psycopg://localhost/x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnavailableError):
        Store(f"sqlite:///{tmp_path}/file/store.db")
    (tmp_path / "no.db").write_text("this is not a database, and long enough to be sure of it" * 20)
    with pytest.raises(UnavailableError, match=r"no\.db is not SQLite's"):
        Store(f"sqlite:///{tmp_path}/no.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(UnavailableError, match=r"folder\.db cannot be opened"):
        Store(f"sqlite:///{tmp_path}/folder.db")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "this version or an earlier one"),
        ("DROP TABLE alembic_version", "tables that are not this service's"),
    ],
)
def test_a_database_of_another_program_or_version(
    tmp_path: Path, migrated: Path, change: str, message: str
) -> None:
    file = tmp_path / "other.db"
    shutil.copy(migrated, file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(CotenantError, match=message) as told:
        Store(f"sqlite:///{file}")
    assert str(file) in told.value.message


def test_tokens_stay_valid_while_the_store_is_down(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.auth._REMEMBER_S", 0.0)
    token = create_token(Store(f"sqlite:///{tmp_path}/store.db"), "ops", ["read"])
    client = start(auth="on", token_check_s=0.3)
    known, unknown = {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer other"}
    asked = {"device": "v100", "jobs": ["resnet18-cifar"]}
    assert client.post("/v1/predict", json=asked, headers=known).status_code == 200

    monkeypatch.setattr("serving.service._PING_S", 0.3)
    gate = threading.Event()

    def away(*_: Any) -> None:
        gate.wait(LONG_S)
        raise UnavailableError("the store does not respond")

    store = client.app.state.service.store  # type: ignore[attr-defined]
    monkeypatch.setattr(store, "read", away)
    assert client.post("/v1/predict", json=asked, headers=known).status_code == 200
    problem(client.post("/v1/predict", json=asked, headers=unknown), 503)
    problem(client.get("/v1/health/ready"), 503)
    assert client.get("/v1/health/live").status_code == 200
    assert not gate.is_set(), "all were answered while the store hung"
    gate.set()


def test_old_rows_are_deleted(start: Start) -> None:
    client = start(retention_s=0.05)
    client.put("/v1/cluster/nodes/a", json=NODE)
    body = {"job": "lstm-wikitext2", "iterations": 5}
    ended, kept = (client.post("/v1/placements", json=body).json()["id"] for _ in range(2))
    client.post(f"/v1/placements/{ended}/end")
    seen = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.1}
    client.post("/v1/observations", json={"observations": [seen]})
    time.sleep(0.2)
    upkeep(client.app.state.service)  # type: ignore[attr-defined]
    assert [p["id"] for p in client.get("/v1/placements").json()["items"]] == [kept]
    assert client.get("/v1/observations").json()["items"] == []


def test_readiness_responds_while_the_store_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.service._PING_S", 0.05)
    client, back = start(), threading.Event()
    store: Store = client.app.state.service.store  # type: ignore[attr-defined]
    monkeypatch.setattr(store, "ping", lambda: back.wait(LONG_S))
    try:
        assert "the store does not respond" in problem(client.get("/v1/health/ready"), 503)["detail"]
        assert client.get("/v1/health/live").status_code == 200
        assert (
            client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}).status_code == 200
        )
        assert not back.is_set()
    finally:
        back.set()
    until(lambda: client.get("/v1/health/ready").status_code == 200, "the store is back")


def test_background_work_outlives_an_unexpected_error(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"upkeep": 0, "forget_deleted": 0}
    for name in calls:

        def fail(_: Any, name: str = name) -> int:
            calls[name] += 1
            raise KeyError(name)

        monkeypatch.setattr(f"serving.app.{name}", fail)
    monkeypatch.setattr("serving.service.POLL_S", 0.01)
    start(reservation_s=0.04)
    until(lambda: min(calls.values()) > 1, "both are called again after they failed")
