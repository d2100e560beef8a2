"""Contradictions and other units in users' files."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from datasets.contradictions import like_slowdowns, unlike_alone
from datasets.tables import make_table
from datasets.user_files import check_file, template
from tests.datasets.test_tables import example


def test_a_slowdown_entered_as_throughput_ratio_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(template().replace("0.71", "1.41"))
    (fault,) = check_file(path)[2]
    assert (fault.row, fault.column) == (2, "throughput_ratio")
    assert fault.expected.startswith("about 0.711,")
    # A bound is no point.
    path.write_text(template().replace("0.71,", "1,").replace("False", "True"))
    assert check_file(path)[2] == []


@pytest.mark.parametrize(
    ("ratios", "censored", "said"),
    [
        ((1.2, 1.41), "False", "2 of 2"),
        ((0.83, 0.71), "False", None),
        ((1.2, 0.9), "False", None),  # one job may be faster, by a baseline measured cold
        ((1.2, 1.41), "True", None),
    ],
)
def test_slowdowns_without_step_times_are_noticed(
    tmp_path: Path, ratios: tuple[float, float], censored: str, said: str | None
) -> None:
    path = tmp_path / "mine.csv"
    frame = pd.read_csv(io.StringIO(template())).drop(columns=["step_time_s", "solo_step_time_s"])
    frame.assign(throughput_ratio=ratios, censored=censored).to_csv(path, index=False)
    _, rows, faults = check_file(path)
    note = like_slowdowns(rows)
    assert (faults, note and note[:6]) == ([], said)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({"step_time_s": 0.31}, True),
        ({"step_time_s": 0.033}, False),
        ({"step_time_s": 0.31, "campaign": "another"}, False),
        ({"step_time_s": 0.31, "gpus": 2}, False),
    ],
)
def test_solo_runs_unlike_those_of_sets_are_noticed(changes: dict[str, object], noted: bool) -> None:
    sets = [
        example("colocation", set_id=name, member=member, solo_step_time_s=0.031)
        for name in "ab" for member in (0, 1)
    ]  # fmt: skip
    solo = make_table("solo", [example("solo", samples_per_s=None, **changes)])
    colocation = make_table("colocation", sets)
    assert ("0.31 and 0.031 s" in (unlike_alone(colocation, solo) or "")) is noted
    # In a slice, alone is another run.
    assert unlike_alone(colocation.assign(sharing="mig"), solo) is None


def test_memory_in_gigabytes_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    frame = pd.read_csv(io.StringIO(template()))
    frame.assign(set_memory_bytes=4.4).to_csv(path, index=False)
    _, _, faults = check_file(path)
    assert [(fault.row, fault.column) for fault in faults] == [
        (1, "set_memory_bytes"),
        (2, "set_memory_bytes"),
    ]
    assert "bytes" in faults[0].expected


@pytest.mark.parametrize(
    ("table", "column"),
    [("colocation", "set_memory_bytes"), ("solo", "memory_bytes"), ("memory", "memory_bytes")],
)
def test_more_memory_than_the_card_has_is_a_fault(tmp_path: Path, table: str, column: str) -> None:
    path = tmp_path / "mine.csv"
    frame = pd.read_csv(io.StringIO(template(table))).drop(columns="upper_bound_bytes", errors="ignore")

    def faults(**values: object) -> list[tuple[int, str]]:
        frame.assign(**values).to_csv(path, index=False)
        found = check_file(path, table)[2]
        assert all("at most 1.71799e+10 bytes" in f.expected for f in found)
        return [(f.row, f.column) for f in found]

    assert faults(**{column: 16 * 2**30}) == []
    assert faults(**{column: 16 * 2**30 + 1}) == [(row + 1, column) for row in range(len(frame))]
    # A core is one of any machine.
    assert faults(device="cpu", **{column: 1e11}) == []
    if "gpus" in frame:
        assert faults(gpus=4, **{column: 5e10}) == []


def test_a_percentage_is_not_a_throughput_ratio(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(template().replace("0.71,0.0218,0.0155", "71,,"))
    (fault,) = check_file(path)[2]
    assert (fault.row, fault.column, fault.got) == (2, "throughput_ratio", "71.0")
    assert "at most 2" in fault.expected


@pytest.mark.parametrize(
    ("column", "value"),
    [("set_memory_bytes", 1e18), ("step_time_s", 1e8), ("solo_step_time_s", 1e8), ("step_time_s", 1e-9)],
)
def test_impossible_values_suggest_another_unit(tmp_path: Path, column: str, value: float) -> None:
    path = tmp_path / "mine.csv"
    pd.read_csv(io.StringIO(template())).assign(**{column: value}).to_csv(path, index=False)
    faults = check_file(path)[2]
    assert {(fault.row, fault.column, fault.got) for fault in faults} >= {
        (1, column, repr(value)),
        (2, column, repr(value)),
    }


def test_a_rate_that_contradicts_the_step_time_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "solo.csv"
    path.write_text(template("solo").replace("2064.5", "32.3"))  # steps per second
    (fault,) = check_file(path)[2]
    assert (fault.row, fault.column, fault.got) == (1, "samples_per_s", "32.3")
    assert fault.expected.startswith("about 2065,")
    spec = "resnet18-cifar:batch_size=64"
    path.write_text(
        template("solo").replace("2064.5", "4129").replace(spec, f'"{spec},gradient_accumulation=2"')
    )
    assert check_file(path)[2] == []


def test_a_set_of_one_job_is_a_fault_unless_other_processes_ran(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    header, first, _ = template().splitlines()
    path.write_text(f"{header}\n{first}\n")
    (fault,) = check_file(path)[2]
    assert (fault.row, fault.column) == (1, "set_id")
    path.write_text(f"{header},processes\n{first},2\n")
    assert check_file(path)[2] == []


@pytest.mark.parametrize(
    ("bounds", "column"),
    [
        ({"lower_bound_bytes": 2.2e9}, "lower_bound_bytes"),
        ({"upper_bound_bytes": 2.0e9}, "upper_bound_bytes"),
        ({"memory_bytes": None, "lower_bound_bytes": 2.6e9}, "lower_bound_bytes"),
        ({"memory_bytes": None}, None),
    ],
)
def test_bounds_of_memory_contradict_neither_each_other_nor_the_value(
    tmp_path: Path, bounds: dict[str, float | None], column: str | None
) -> None:
    path = tmp_path / "memory.csv"
    pd.read_csv(io.StringIO(template("memory"))).assign(**bounds).to_csv(path, index=False)
    assert [fault.column for fault in check_file(path)[2]] == ([column] if column else [])


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("freezing", "frozen_prefix", 42),
        ("scaling", "sync_time_s", 0.04),
        ("scaling", "nodes", 9),
        ("kernels", "duration_s", 107_000),  # nanoseconds
        ("operators", "latency_s", 120),  # microseconds
    ],
)
def test_parts_exceed_no_whole_and_calls_are_in_seconds(
    tmp_path: Path, table: str, column: str, value: float
) -> None:
    path = tmp_path / f"{table}.csv"
    pd.read_csv(io.StringIO(template(table))).assign(**{column: value}).to_csv(path, index=False)
    (fault,) = check_file(path, table)[2]
    assert (fault.row, fault.column) == (1, column)
