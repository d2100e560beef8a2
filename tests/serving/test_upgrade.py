"""Databases of earlier versions: their rows are kept, and an interrupted upgrade goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, Table, create_engine, event, text

import serving.store
from serving.store import Store
from serving.store.tables import Base

CONFIG = Config()
CONFIG.set_main_option("script_location", str(Path(serving.store.__file__).parent / "migrations"))
REVISIONS = [script.revision for script in ScriptDirectory.from_config(CONFIG).walk_revisions()][::-1]
NODE = {
    "name": "a",
    "position": 0,
    "gpus": json.dumps([{"id": "0", "device": "v100", "sharing": "time-slice"}]),
}
PLACED: dict[str, Any] = {"job": "graph:0123:step_time_s=0.1", "job_id": "j", "node": "a", "gpu": "0"}
# In the columns of the first version, which all later ones have.
ROWS: dict[str, dict[str, Any]] = {
    "cluster": {"id": 1, "version": 3, "links": "[]"},
    "nodes": NODE,
    "placements": PLACED
    | {"id": "p", "sequence": 1, "state": "confirmed", "decision": "{}", "model_version": "m", "cluster_version": 3}
    | {"created_at": 1.0, "updated_at": 1.0},
    "tenants": PLACED | {"iterations_left": 9.0, "placement_id": "p"},
    "tokens": {"name": "ops", "digest": "d", "scopes": '["read"]', "created_at": 1.0},
    "observations": {"device": "v100", "sharing": "time-slice", "jobs": '["resnet18-cifar"]', "member": 0}
    | {"step_time_s": 0.1, "predicted_step_time_s": 0.1, "predicted_lower_s": 0.09, "predicted_upper_s": 0.11}
    | {"error_ratio": 0.0, "model_version": "m", "observed_at": 1.0, "placement_id": "p"},
}  # fmt: skip


def write_earlier(url: str, revision: str) -> None:
    """A database with the tables of that revision and a row in most."""
    engine = create_engine(url)
    with engine.connect() as connection:
        CONFIG.attributes["connection"] = connection
        command.upgrade(CONFIG, revision)
        # A column of the second version that the service fills.
        later = {"tenants": {"model": "graph:0123"}} if revision != REVISIONS[0] else {}
        for table, row in ROWS.items():
            values = row | later.get(table, {})
            names = ", ".join(f":{name}" for name in values)
            connection.execute(text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({names})"), values)
        connection.commit()
    engine.dispose()


def check_upgraded(url: str) -> None:
    store = Store(url)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == [], "the tables are those of `tables.py`"
        for table, row in ROWS.items():
            stored = connection.execute(text(f"SELECT * FROM {table}")).mappings().one()
            # SQLite keeps JSON as text.
            found = {name: json.dumps(v) if isinstance(v := stored[name], list | dict) else v for name in row}
            assert found == row, table
        model = connection.execute(text("SELECT model FROM tenants")).scalar_one()
        assert model == "graph:0123", "by which its graph is found"
        if store.sqlite:
            made = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'observations'"))
            assert "AUTOINCREMENT" in made.scalar_one(), "no number is given twice"
    store.close()


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_of_an_earlier_version_are_kept(tmp_path: Path, revision: str) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    write_earlier(url, revision)
    check_upgraded(url)


@pytest.mark.parametrize("present", [1, 2, 3])
def test_parts_of_a_revision_that_another_had_before(tmp_path: Path, present: int) -> None:
    """The fifth revision was published before all that it made for a while, which is in the sixth."""
    url = f"sqlite:///{tmp_path}/store.db"
    write_earlier(url, "0005")
    parts = (
        "CREATE INDEX ix_tenants_job_id ON tenants (job_id)",
        "CREATE TABLE counters (name VARCHAR(40) NOT NULL PRIMARY KEY, value INTEGER NOT NULL)",
        "INSERT INTO counters VALUES ('observations_withdrawn', 1)",
    )
    engine = create_engine(url)
    with engine.begin() as connection:
        for part in parts[:present]:
            connection.execute(text(part))
    engine.dispose()
    check_upgraded(url)


def test_an_interrupted_upgrade_goes_on(tmp_path: Path) -> None:
    """After a kill at any of its changes: the files as they are then."""
    url = f"sqlite:///{tmp_path}/store.db"
    write_earlier(url, REVISIONS[0])
    killed = list[Path]()

    def copy(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("ALTER", "CREATE", "DROP", "INSERT", "UPDATE")):
            killed.append(tmp_path / str(len(killed)))
            killed[-1].mkdir()
            for file in tmp_path.glob("store.db*"):
                shutil.copy(file, killed[-1])

    event.listen(Engine, "after_cursor_execute", copy)
    try:
        check_upgraded(url)
    finally:
        event.remove(Engine, "after_cursor_execute", copy)
    assert len(killed) > len(REVISIONS)
    for folder in killed:
        check_upgraded(f"sqlite:///{folder}/store.db")


@pytest.mark.parametrize("table", Base.metadata.tables.values(), ids=str)
def test_columns_that_refer_to_another_table_have_an_index(table: Table) -> None:
    """Without one, each row deleted there costs a look at every row here, in a transaction that others wait for."""
    firsts = [next(iter(index.columns)) for index in table.indexes] + list(table.primary_key)[:1]
    assert {c.name for c in table.columns if c.foreign_keys} <= {c.name for c in firsts}
