"""The store on a real PostgreSQL server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from profiling.errors import UnavailableError
from serving.store import Store
from serving.store.tables import Base, ModelEventRow
from tests.serving import postgres
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.test_upgrade import REVISIONS, check_upgraded, write_earlier
from tests.waiting import LONG_S, until

pytestmark = [
    pytest.mark.skipif(find_spec("psycopg") is None, reason="psycopg is not installed (extra postgres)"),
    pytest.mark.skipif(
        postgres.programs() is None, reason="no PostgreSQL server here (Debian: apt-get install postgresql)"
    ),
]
CLUSTER = {"nodes": [{"name": f"n{i}", "gpus": [{"device": "v100", "count": 2}]} for i in range(4)]}


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Server]:
    with postgres.server() as server:
        yield server


@pytest.fixture
def url(database: postgres.Server) -> str:
    """An empty database."""
    engine = create_engine(database.url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return database.url


def test_workers_starting_together_upgrade_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store, [url] * 4))
    assert set(inspect(stores[0].engine).get_table_names()) == {*Base.metadata.tables, "alembic_version"}
    for store in stores:
        store.ping()
        store.close()


def test_a_lost_network_is_noticed_before_a_lane_is_stuck(url: str) -> None:
    """A lane of the store is stuck after four times `busy_s`; the process exits after as long again."""
    store = Store(url, busy_s=3.0)
    with store.engine.connect() as connection:
        settings = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    store.close()
    assert settings["tcp_user_timeout"] == "3000"
    idle_s, interval_s, count = (
        int(settings[f"keepalives_{name}"]) for name in ("idle", "interval", "count")
    )
    assert idle_s + interval_s * count <= 6


def test_the_server_notices_that_a_service_is_gone(url: str) -> None:
    """It would keep that service's lock on writes, for two hours by default."""
    store = Store(url, busy_s=3.0)
    # `SHOW` says 0 on a Unix socket.
    query = text("SELECT name, reset_val FROM pg_settings WHERE name LIKE 'tcp_%'")
    with store.engine.connect() as connection:
        settings = {name: int(value) for name, value in connection.execute(query)}
    store.close()
    assert settings["tcp_user_timeout"] == 3000
    assert (
        settings["tcp_keepalives_idle"]
        + settings["tcp_keepalives_interval"] * settings["tcp_keepalives_count"]
        <= 6
    )


def test_rows_of_an_earlier_version_are_kept(url: str) -> None:
    write_earlier(url, REVISIONS[0])
    check_upgraded(url)


def test_a_user_who_may_not_create_tables(database: postgres.Server, url: str) -> None:
    """As since PostgreSQL 15 every user but the owner of the database: trying again does not help."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("GRANT USAGE ON SCHEMA public TO PUBLIC"))
        connection.execute(text("CREATE ROLE guest LOGIN"))
    engine.dispose()
    with pytest.raises(UnavailableError, match="permission denied") as told:
        Store(f"postgresql+psycopg://guest@/postgres?host={database.folder}")
    assert "the owner of the database" in (told.value.hint or "")


def test_tables_of_another_program(url: str) -> None:
    store = Store(url)
    with store.engine.begin() as connection:
        connection.execute(text("DROP TABLE alembic_version"))
    store.close()
    with pytest.raises(UnavailableError, match="tables that are not this service's"):
        Store(url)


def test_a_database_without_an_encoding(database: postgres.Server, url: str) -> None:
    """As `initdb` makes them under the locale C."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0"))
    engine.dispose()
    plain = Store(url.replace("/postgres?", "/plain?"))
    with plain.write() as session:
        session.add(ModelEventRow(version="1", event="loaded", detail="é", at=1.0))
    with plain.read() as session:
        assert session.query(ModelEventRow.detail).scalar() == "é"
    plain.close()


def test_a_password_beside_the_address(
    database: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `deploy/compose.yaml`: an address would need `@` and `%` escaped."""
    store = Store(url)
    with store.engine.begin() as connection:
        connection.execute(text("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'p@ss%w/rd:'"))
    store.close()
    rules = database.folder / "data" / "pg_hba.conf"
    open_to_all = rules.read_text()
    rules.write_text("local all guarded scram-sha-256\n" + open_to_all)
    try:
        database.run("pg_ctl", "reload")
        address = f"postgresql+psycopg://guarded@/postgres?host={database.folder}"
        monkeypatch.setenv("PGPASSWORD", "wrong")
        with pytest.raises(UnavailableError):
            Store(address)
        monkeypatch.setenv("PGPASSWORD", "p@ss%w/rd:")
        store = Store(address)
        store.ping()
        store.close()
    finally:
        rules.write_text(open_to_all)
        database.run("pg_ctl", "reload")


def test_data_survives_a_restart(start: Start, url: str) -> None:
    client = start(database_url=url)
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 200
    placed = client.post("/v1/placements", json={"job": "lstm-wikitext2", "iterations": 50}).json()
    assert client.post(f"/v1/placements/{placed['id']}/confirm").status_code == 200
    seen = {
        "of": {"device": "v100", "jobs": ["lstm-wikitext2"]},
        "step_time_s": 0.15,
        "placement_id": placed["id"],
    }
    body, once = {"observations": [seen] * 10}, {"Idempotency-Key": "a"}
    first = client.post("/v1/observations", json=body, headers=once)
    assert client.post("/v1/observations", json=body, headers=once).json() == first.json()
    entry = client.post("/v1/workloads", json={"workload": "lstm-wikitext2", "batch_size": 20}).json()
    assert (
        client.put("/v1/cluster/nodes/n9", json={"gpus": []}, headers={"If-Match": '"1"'}).status_code == 412
    )
    again = start(database_url=url)
    assert again.get("/v1/cluster").json() == client.get("/v1/cluster").json()
    assert again.get(f"/v1/placements/{placed['id']}").json()["state"] == "confirmed"
    assert len(again.get("/v1/observations").json()["items"]) == 10
    assert again.get(f"/v1/workloads/{entry['hash']}").status_code == 200
    answer = again.post("/v1/predict", json=seen["of"]).json()
    assert answer["members"][0]["step_time_s"]["value"] == pytest.approx(0.15, rel=0.02)
    page = again.get("/").text
    assert "33.3 %" in page, "error by day"
    assert again.post(f"/v1/placements/{placed['id']}/end").status_code == 200


def test_concurrent_decisions_do_not_collide(start: Start, url: str) -> None:
    """8 GPUs, 12 huge jobs from two services: each GPU gets one, the rest wait, and numbers are unique."""
    clients = [start(database_url=url), start(database_url=url)]
    clients[0].put("/v1/cluster", json=CLUSTER)
    # 10.6 GB each (see the table): two do not fit on 16 GB.
    body = {"job": "resnet18-cifar:batch_size=960", "iterations": 1000}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda i: clients[i % 2].post("/v1/placements", json=body), range(12)))
    entries = [a.json() for a in answers if a.status_code == 201]
    assert all(a.status_code in (201, 409) for a in answers), [a.text for a in answers]
    placed = [(e["node"], e["gpu"]) for e in entries if e["state"] == "decided"]
    assert len(placed) == len(set(placed)) == 8
    numbers = [e["sequence"] for e in entries]
    assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(postgres.pooler() is None, reason="no PgBouncer here (Debian: apt-get install pgbouncer)")
def test_transactions_may_run_on_different_connections(
    start: Start, url: str, database: postgres.Server
) -> None:
    """Neither prepared statements nor locks of a session, which others would have."""
    seen = {"of": {"device": "v100", "jobs": ["lstm-wikitext2"]}, "step_time_s": 0.15}
    with database.pooled() as pooled:
        clients = [start(database_url=pooled), start(database_url=pooled)]
        clients[0].put("/v1/cluster", json=CLUSTER)

        def ask(number: int) -> list[int]:
            client = clients[number % 2]
            job = {"job": "lstm-wikitext2", "iterations": 50}
            placed = client.post("/v1/placements", json=job)
            ended = client.post(f"/v1/placements/{placed.json().get('id')}/end")
            observed = client.post("/v1/observations", json={"observations": [seen]})
            return [placed.status_code, ended.status_code, observed.status_code]

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(ask, range(40))) == [[201, 200, 201]] * 40
        engine = create_engine(url)
        with engine.connect() as connection:
            kept = connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
            assert kept.scalar_one() == 0
        engine.dispose()


def test_statements_are_prepared_without_a_pooler(url: str) -> None:
    """A node's report would take the server twice the processor time."""
    store = Store(url)
    for _ in range(10):
        with store.write() as session:
            session.query(ModelEventRow).count()
    with store.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements"))
    store.close()


def test_values_that_postgres_cannot_store(start: Start, url: str) -> None:
    client = start(database_url=url)
    client.put("/v1/cluster", json=CLUSTER)
    asked = {"job": "lstm-wikitext2", "job_id": "a\x00b"}
    problem(client.post("/v1/placements", json=asked), 422)
    assert client.get("/v1/placements").json()["items"] == []
    assert client.get("/", params={"placed": "a\x00b"}).status_code == 422


def test_placements_that_no_longer_report(start: Start, url: str) -> None:
    client = start(database_url=url, stale_s=0.01)
    client.put("/v1/cluster", json=CLUSTER)
    for job_id in ("waiting-for-it", "silent"):
        placed = client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": job_id}).json()
    client.post(f"/v1/placements/{placed['id']}/confirm")
    until(lambda: client.get(f"/v1/placements/{placed['id']}").json()["stale"], "it is stale")
    page = client.get("/?placed=not+reporting").text
    assert "1 placed job has" in page
    assert "waiting-for-it" not in page.partition('id="placements"')[2]


def test_writers_take_turns_and_readers_see_one_state(url: str) -> None:
    store = Store(url, busy_s=0.3)
    event: dict[str, Any] = {"event": "loaded", "detail": "", "at": 1.0}
    inside, leave = threading.Event(), threading.Event()

    def slow_writer() -> None:
        with store.write() as session:
            session.add(ModelEventRow(version="slow", **event))
            session.flush()
            inside.set()
            leave.wait(LONG_S)

    def count(session: Any) -> int:
        return session.query(ModelEventRow).count()

    thread = threading.Thread(target=slow_writer)
    thread.start()
    inside.wait(LONG_S)
    with pytest.raises(UnavailableError, match="lock"), store.write():
        pass
    with store.read() as session:
        assert count(session) == 0
        leave.set()
        thread.join()
        assert count(session) == 0, "the reader's state"
    with store.read() as session:
        assert count(session) == 1
    store.close()


@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
def test_a_writer_sees_what_was_written_before_its_turn(url: str, default: str) -> None:
    """Whatever isolation the database has by default."""
    first = Store(url)
    with first.engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE postgres SET default_transaction_isolation = '{default}'"))
    second = Store(url)  # its connections have the new default
    inside, seen = threading.Event(), list[int]()

    def waiting_writer() -> None:
        inside.wait(LONG_S)
        with second.write() as session:
            seen.append(session.query(ModelEventRow).count())

    thread = threading.Thread(target=waiting_writer)
    thread.start()
    try:
        with first.write() as session:
            session.add(ModelEventRow(version="1", event="loaded", detail="", at=1.0))
            session.flush()
            inside.set()
            with first.engine.connect() as watcher:
                waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                until(lambda: watcher.execute(waiting).scalar(), "the second writer waits")
        thread.join()
        assert seen == [1]
    finally:
        with first.engine.begin() as connection:
            connection.execute(text("ALTER DATABASE postgres RESET default_transaction_isolation"))
        first.close()
        second.close()


def test_a_database_behind_a_socket_is_named_with_it(database: postgres.Server, url: str) -> None:
    """`export-observations` would take the databases of two servers for one, and replace the rows of the other."""
    store = Store(f"{url}&password=secret")
    assert "secret" not in store.name
    assert make_url(store.name).query == {"host": str(database.folder)}
    store.close()


def test_server_down(start: Start, url: str, database: postgres.Server) -> None:
    client = start(database_url=url)
    client.put("/v1/cluster", json=CLUSTER)
    database.stop()
    try:
        problem(client.put("/v1/cluster/nodes/x", json={"gpus": []}), 503)
        problem(client.post("/v1/placements", json={"job": "resnet18-cifar"}), 503)
        problem(client.get("/v1/health/ready"), 503)
        asked = {"device": "v100", "jobs": ["resnet18-cifar"]}
        assert client.post("/v1/predict", json=asked).status_code == 200, "predictions go on"
    finally:
        database.start()
    assert client.put("/v1/cluster/nodes/x", json={"gpus": []}).status_code == 201
    assert client.get("/v1/cluster").json()["version"] == 2


def test_reports_of_memory_are_kept_and_withdrawn(start: Start, url: str) -> None:
    client = start(database_url=url)
    asked = {"device": "v100", "jobs": ["resnet18-cifar:memory_bytes=9e9", "lstm-wikitext2"]}
    told = [{"of": asked, "out_of_memory": True}, {"of": asked, "step_time_s": 0.2}]
    first, _ = client.post("/v1/observations", json={"observations": told}).json()["observations"]
    assert first["step_time_s"] is None
    assert len(client.get("/v1/observations").json()["items"]) == 2
    assert not client.post("/v1/predict", json=asked).json()["fits"]
    assert client.get("/").status_code == 200, "errors by day and job leave it out"
    assert client.delete(f"/v1/observations/{first['id']}").status_code == 204
    until(lambda: client.post("/v1/predict", json=asked).json()["fits"], "it is withdrawn")
