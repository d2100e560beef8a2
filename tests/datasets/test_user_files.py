from __future__ import annotations

import csv
import io
import os
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets.schema import TABLES
from datasets.tables import read_table
from datasets.user_files import add_rows, check_file, guess_table, template
from profiling.errors import InputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (template().replace(",", ";"), "another separator"),
        (template().replace(",", "\t"), "another separator"),
        # Commas that remain are those of a SPEC, or decimal.
        (
            template().replace(",", ";").replace("batch_size=20", "batch_size=20,precision=amp"),
            "another separator",
        ),
        (template().replace("measured\n", "measured,\n"), "longer than its header"),
        (template().partition("\n")[0] + "\n", "no rows"),
        ("", "mine.csv is empty"),
        ("\n\n", "mine.csv is empty"),
        (template() + "a,b" * 30 + "\n", "line 4: not CSV: expected 18 cells, as in the rows before, got 31"),
        ('[{"set_id": "a/1", "member": 0}]', "expected a CSV or Parquet file, got JSON"),
        ('{\n  "rows": [\n    1, 2\n  ]\n}\n', "expected a CSV or Parquet file, got JSON"),
        (
            template().replace("workload", "device", 1),
            "a column twice: expected each column once, got device",
        ),
    ],
)
def test_a_fault_of_the_file_is_reported_once(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        check_file(path)


def test_byte_order_marks_and_line_ends_of_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xef\xbb\xbf" + template().replace("\n", "\r\n").encode())
    assert check_file(path)[2] == []


def test_spaces_around_cells_and_names_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(template().replace(",mine,", ", mine ,").replace("member,", "member ,"))
    _, rows, faults = check_file(path)
    assert (faults, rows["source"].tolist()) == ([], ["mine", "mine"])


def test_spellings_of_a_device_in_a_set_are_one_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(template().replace("1,v100,", "1,V100,"))
    _, rows, faults = check_file(path)
    assert (faults, rows["device"].tolist()) == ([], ["v100", "v100"])
    path.write_text(template().replace("1,v100,", "1,v101,").replace("0,v100,", "0,v101,"))
    assert [(fault.row, fault.column, fault.got) for fault in check_file(path)[2]] == [
        (1, "device", "'v101'"),
        (2, "device", "'v101'"),
    ]


def test_of_tables_with_the_same_columns_the_file_is_of_the_one_it_lacks_least() -> None:
    solo = ("device", "workload", "step_time_s", "source", "campaign", "licence", "origin")
    assert guess_table(pd.DataFrame(columns=[*solo])) == "solo"
    assert guess_table(pd.DataFrame(columns=[*solo, "gpus", "placement"])) == "scaling"
    for table in TABLES:
        assert guess_table(pd.DataFrame(columns=[field.name for field in TABLES[table]])) == table


@pytest.mark.parametrize("text", ["1e20", "9223372036854775808", "-1e30"])
def test_a_too_large_integer_is_a_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.csv"
    header, first, second = template().splitlines()
    path.write_text(f"{header},batch_size\n{first},{text}\n{second},20\n")
    (fault,) = check_file(path)[2]
    assert (fault.row, fault.column, fault.got) == (1, "batch_size", repr(text))


def test_rows_to_be_added_have_a_source_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(template())
    assert check_file(path, to_add=True)[2] == []
    path.write_text(template().replace(",mine,", ",gavel,"))
    assert check_file(path)[2] == []
    (fault,) = check_file(path, to_add=True)[2]
    assert (fault.row, fault.column, fault.got) == (1, "source", "'gavel'")
    assert "cotenant data import gavel" in fault.expected
    path.write_text(template().replace(",mine,", ",feedback,"))
    (fault,) = check_file(path, to_add=True)[2]
    assert "`data export-observations` write these rows, and replace them" in fault.expected


def _rows() -> pd.DataFrame:
    return pd.read_csv(io.StringIO(template()))


@pytest.mark.parametrize(
    ("column", "cells", "got"),
    [
        ("workload", [{"model": "resnet18-cifar"}] * 2, "cannot be imported"),
        ("throughput_ratio", [[0.83], [0.71]], "'[0.83]'"),
        ("step_time_s", pd.to_timedelta([37.3, 21.8], unit="ms"), "'0 days 00:00:00.037300'"),
        ("set_memory_bytes", pd.to_datetime(["2026-01-01"] * 2), "'2026-01-01 00:00:00'"),
    ],
)
def test_cells_of_parquet_that_are_no_text_or_number_are_faults(
    tmp_path: Path, column: str, cells: Any, got: str
) -> None:
    _rows().assign(**{column: cells}).to_parquet(tmp_path / "mine.parquet")
    fault = check_file(tmp_path / "mine.parquet")[2][0]
    assert (fault.row, fault.column) == (1, column)
    assert got in fault.got


def test_columns_that_pandas_wrote_from_an_index_are_read(tmp_path: Path) -> None:
    _rows().set_index(["set_id", "member"]).to_parquet(tmp_path / "mine.parquet")
    assert check_file(tmp_path / "mine.parquet")[2] == []
    _rows().iloc[::-1].to_parquet(tmp_path / "mine.parquet")
    assert check_file(tmp_path / "mine.parquet")[2] == []


def test_a_column_twice_in_parquet_is_named(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(_rows())
    table = table.append_column("device", table["device"])
    pq.write_table(table, tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="a column twice: expected each column once, got device"):
        check_file(tmp_path / "mine.parquet")


def test_empty_parquet_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(template())
    check_file(tmp_path / "mine.csv")[1].iloc[:0].to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="no rows"):
        check_file(tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="is a folder: expected a CSV or Parquet file"):
        check_file(tmp_path)


def test_parquet_is_recognised_by_content(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(template())
    rows = check_file(tmp_path / "mine.csv")[1]
    rows.to_parquet(tmp_path / "mine.pq")
    pd.testing.assert_frame_equal(check_file(tmp_path / "mine.pq")[1], rows)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(template(),))
    writer.start()
    assert check_file(pipe)[2] == []
    writer.join()


def test_numbers_of_parquet_are_shown_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    pd.read_csv(io.StringIO(template())).assign(batch_size=1e30).to_parquet(path)
    assert {fault.got for fault in check_file(path)[2]} == {"1e+30"}


def test_sets_of_another_campaign_with_the_same_ids_are_refused(tmp_path: Path) -> None:
    first = pd.read_csv(io.StringIO(template()))
    add_rows(tmp_path, "colocation", first)
    for column in ("campaign", "source"):
        with pytest.raises(InputError, match=r"other sets with these ids.*mine-2026-01/v100/0001.*--replace"):
            add_rows(tmp_path, "colocation", first.assign(**{column: "second"}))
    assert read_table(tmp_path, "colocation")["campaign"].tolist() == ["mine-2026-01"] * 2
    add_rows(tmp_path, "colocation", first.assign(campaign="second"), replace=True)
    assert read_table(tmp_path, "colocation")["campaign"].tolist() == ["second"] * 2


def test_another_value_of_a_run_names_the_run(tmp_path: Path) -> None:
    (tmp_path / "solo.csv").write_text(template("solo"))
    run = check_file(tmp_path / "solo.csv")[1]
    add_rows(tmp_path, "solo", run)
    again = run.assign(step_time_s=0.05, samples_per_s=1280.0)
    with pytest.raises(
        InputError, match=r"other values.*v100/resnet18-cifar:batch_size=64/1/mine.*--replace"
    ):
        add_rows(tmp_path, "solo", again)
    add_rows(tmp_path, "solo", again, replace=True)
    assert read_table(tmp_path, "solo")["step_time_s"].tolist() == [0.05]


def test_the_example_of_a_scaling_run_agrees_with_itself() -> None:
    (row,) = csv.DictReader(template("scaling").splitlines())
    on_each = [int(gpus) for gpus in row["placement"].split("-")]
    assert (sum(on_each), len(on_each)) == (int(row["gpus"]), int(row["nodes"]))
