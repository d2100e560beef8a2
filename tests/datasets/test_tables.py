from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.schema import TABLES, pandera_schema, table_fields
from datasets.tables import (
    empty_table,
    find_faults,
    make_table,
    point_targets,
    read_all,
    read_table,
    validate_table,
    write_table,
)
from profiling.errors import InputError, UnknownNameError


def example(table: str, **changes: Any) -> dict[str, Any]:
    return {field.name: field.example for field in table_fields(table) if not field.derived} | changes


def pair(set_id: str = "s", **changes: Any) -> list[dict[str, Any]]:
    return [example("colocation", set_id=set_id, member=m, **changes) for m in (0, 1)]


@pytest.mark.parametrize("name", list(TABLES))
def test_every_tables_examples_are_valid_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    table = make_table(name, [example(name, note=None) if name == "freezing" else example(name)])
    path = write_table(tmp_path, name, table)
    assert path == tmp_path / f"{name}.parquet"
    pd.testing.assert_frame_equal(read_table(tmp_path, name), table)
    assert list(pandera_schema(name).columns) == list(table.columns)


@pytest.mark.parametrize("name", list(TABLES))
def test_empty_tables_are_valid(name: str, tmp_path: Path) -> None:
    write_table(tmp_path, name, empty_table(name))
    assert len(read_table(tmp_path, name)) == 0


def test_optional_columns_may_be_missing() -> None:
    frame = pd.DataFrame(pair()).drop(columns=["set_memory_bytes", "step_time_s"])
    assert validate_table("colocation", frame)["set_memory_bytes"].isna().all()


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("throughput_ratio", -0.1, "above 0"),
        ("throughput_ratio", float("inf"), "number"),
        ("throughput_ratio", "fast", "number"),
        ("set_utilization_ratio", 1.2, "to 1"),
        ("sharing", "magic", "time-slice"),
        ("origin", "guessed", "measured"),
        ("batch_size", 1.5, "integer"),
        ("batch_size", 0, "from 1"),
        ("throughput_ratio", 0.0, "above 0"),
        ("censored", "perhaps", "true or false"),
        ("device", None, "text"),
        ("workload", "resnet18-cifar:batch_size=x", "job SPEC"),
    ],
)
def test_faults_name_row_column_expected_and_got(column: str, value: Any, expected: str) -> None:
    rows = [*pair("a"), *pair("b")]
    rows[2] |= {column: value}
    if column in ("set_utilization_ratio", "sharing", "origin", "device"):
        rows[3] |= {column: value}
    _, faults = find_faults("colocation", pd.DataFrame(rows, dtype=object))
    assert (faults[0].row, faults[0].column) == (3, column)
    assert expected in faults[0].expected
    with pytest.raises(InputError, match=f"row 3, column {column}"):
        validate_table("colocation", pd.DataFrame(rows, dtype=object))


def test_faults_show_integers_as_integers_beside_numbers() -> None:
    rows = pair()
    rows[0] |= {"throughput_ratio": -0.5}
    rows[1] |= {"batch_size": 0}
    _, faults = find_faults("colocation", pd.DataFrame(rows, dtype=object))
    assert {fault.got for fault in faults} == {"-0.5", "0"}


def test_unknown_and_missing_columns() -> None:
    frame = pd.DataFrame(pair()).rename(columns={"device": "gpu"})
    _, faults = find_faults("colocation", frame)
    assert {(fault.row, fault.column) for fault in faults} == {(0, "gpu"), (0, "device")}
    with pytest.raises(InputError) as several:
        validate_table("colocation", frame)
    assert several.value.hint == "1 more; see `cotenant data validate`"
    with pytest.raises(InputError) as one:
        validate_table("colocation", frame.drop(columns="gpu"))
    assert one.value.hint is None


def test_duplicate_keys_and_contradictory_sets() -> None:
    rows = pair()
    rows[1]["member"] = 0
    assert find_faults("colocation", pd.DataFrame(rows))[1][0].column == "set_id+member"
    rows = pair()
    rows[1]["device"] = "k80"
    assert "one value for all members" in find_faults("colocation", pd.DataFrame(rows))[1][0].expected


def test_incomplete_sets() -> None:
    _, faults = find_faults("colocation", pd.DataFrame([*pair("a"), pair("b")[1]]))
    assert [(f.row, f.column, f.expected) for f in faults] == [
        (3, "member", "rows for members 0 to 1 of set b")
    ]


def test_nothing_is_written_when_a_row_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_table(tmp_path, "colocation", pd.DataFrame(pair(throughput_ratio=-1)))
    assert list(tmp_path.iterdir()) == []


def test_reading_reports_faults(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cotenant data import"):
        read_all(tmp_path)
    (tmp_path / "solo.parquet").write_text("not Parquet")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_table(tmp_path, "solo")
    with pytest.raises(InputError, match="no table"):
        read_table(tmp_path, "colocation")
    with pytest.raises(InputError, match=r"is a file: expected a folder of tables; cotenant data validate"):
        read_table(tmp_path / "solo.parquet", "colocation")
    with pytest.raises(UnknownNameError, match="colocation"):
        read_table(tmp_path, "colocations")
    pd.DataFrame({"device": ["v100"]}).to_parquet(tmp_path / "solo.parquet")
    with pytest.raises(InputError, match=r"solo\.parquet, column"):
        read_table(tmp_path, "solo")


def test_point_targets_leave_out_bounds_and_hard_coded_values() -> None:
    rows = [*pair("a"), *pair("b", censored=True), *pair("c", is_target=False)]
    assert set(point_targets(make_table("colocation", rows))["set_id"]) == {"a"}
