from __future__ import annotations

from datasets.bundled import FOLDER, load
from datasets.schema import TABLES
from datasets.sources import SOURCES, get_source
from datasets.tables import read_parquet
from profiling.workload import Workload


def test_bundled_tables_are_only_ours_and_have_a_card() -> None:
    tables = load()
    assert set(tables) == set(TABLES)
    filled = [table for table in tables.values() if len(table)]
    for table in filled:
        assert not set(table["source"]) & set(SOURCES)
        assert set(table["licence"]) == {"Apache-2.0"}
    assert not filled or (FOLDER / "CARD.md").is_file()


def test_bundled_specs_say_where_the_batch_was() -> None:
    assert set(read_parquet(FOLDER / "measurements.parquet").host_input) == {"resident"}
    for name in ("solo", "colocation", "freezing"):
        table = read_parquet(FOLDER / f"{name}.parquet")
        cached = table.note.eq("cached-activations") if "note" in table else table.workload.isna()
        on_device = table.workload.map(lambda spec: Workload.parse(spec).data_on_device)
        assert (on_device != cached).all()


def test_what_may_be_shipped() -> None:
    assert {s.name for s in SOURCES.values() if s.may_ship} == {
        s.name for s in SOURCES.values() if s.licence in ("MIT", "Apache-2.0")
    }
    assert not get_source("gpumemnet").may_ship
    assert all(source.licence and source.use for source in SOURCES.values())
