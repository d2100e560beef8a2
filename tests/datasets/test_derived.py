"""Columns derived from a SPEC, and tables written before these columns existed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets import bundled
from datasets.derived import columns_of
from datasets.fields import JOB_OPTIONS
from datasets.schema import TABLES, table_fields
from datasets.tables import find_faults, make_table, read_table
from profiling.errors import InputError
from profiling.workload import Workload
from tests.datasets.test_tables import example

SPEC = (
    "timm/resnet50:batch_size=8,image_size=160,mode=inference,precision=amp,compiler=compile,"
    "memory_layout=channels-last,data_on_device=true,sm_share_ratio=0.5"
)


def test_job_options_are_columns() -> None:
    row = make_table("solo", [example("solo", workload=SPEC)]).iloc[0]
    assert (row["architecture"], row["batch_size"], row["image_size"]) == ("timm/resnet50", 8, 160)
    assert (row["mode"], row["framework"], row["compiler"]) == ("inference", "torch", "compile")
    assert (row["precision"], row["memory_layout"], row["sm_share_ratio"]) == ("amp", "channels-last", 0.5)
    assert row["data_on_device"]


def test_every_option_column_is_a_field_of_a_workload() -> None:
    said = columns_of(SPEC)
    workload = Workload.parse(SPEC)
    assert all(said[field.name] == getattr(workload, field.name) for field in JOB_OPTIONS)
    assert columns_of("resnet18-cifar:batch_size=x") == {}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("precision", "fp32", "amp"),
        ("mode", "training", "inference"),
        ("data_on_device", False, "True"),
        ("batch_size", 16, "8"),
        ("sm_share_ratio", 1.0, "0.5"),
        ("image_size", 224, "160"),
    ],
)
def test_a_column_that_contradicts_the_spec_is_a_fault(column: str, value: Any, expected: str) -> None:
    frame = pd.DataFrame([example("solo", workload=SPEC) | {column: value}], dtype=object)
    _, faults = find_faults("solo", frame)
    assert [(f.row, f.column) for f in faults] == [(1, column)]
    assert faults[0].expected.startswith(expected)


def test_user_named_architecture_and_unspecified_batch_size() -> None:
    row = example("solo", workload="a3c-pong", architecture="mine", batch_size=4)
    kept = make_table("solo", [row]).iloc[0]
    assert (kept["architecture"], kept["batch_size"]) == ("mine", 4)


def test_an_invalid_spec_is_one_fault() -> None:
    frame = pd.DataFrame([example("solo", workload="resnet18-cifar:batch_size=x")], dtype=object)
    assert [(f.row, f.column) for f in find_faults("solo", frame)[1]] == [(1, "workload")]


def test_processes_are_at_least_the_members() -> None:
    rows = [example("colocation", member=m) for m in range(3)]
    assert make_table("colocation", rows)["processes"].tolist() == [3, 3, 3]
    more = make_table("colocation", [{**row, "processes": 7} for row in rows])
    assert more["processes"].tolist() == [7, 7, 7]
    with pytest.raises(InputError, match="processes"):
        make_table("colocation", [{**row, "processes": 2} for row in rows])


def test_memory_needs_a_value_or_a_bound() -> None:
    row = example("memory", memory_bytes=None, lower_bound_bytes=None)
    assert make_table("memory", [row])["upper_bound_bytes"].notna().all()
    with pytest.raises(InputError, match="at least one"):
        make_table("memory", [{**row, "upper_bound_bytes": None}])


@pytest.mark.parametrize("name", ["workloads", "solo", "colocation", "graphs"])
def test_tables_of_the_first_version_are_read(name: str, tmp_path: Path) -> None:
    """They stored only the given columns, none derived from the SPEC."""
    since = {
        "processes", "power_w", "repeat", "framework_version", "macs_per_sample", "activations_per_sample",
        "pooled_activations_per_sample", "layer_count", "occurrences",
    }  # fmt: skip
    before = {"architecture", "batch_size", "precision"}
    full = make_table(name, [example(name, workload="resnet18-cifar:batch_size=64,precision=amp")])
    columns = [f.name for f in table_fields(name) if f.name in before or not (f.derived or f.name in since)]
    if name == "graphs":
        columns.remove("workload")
    full[columns].to_parquet(tmp_path / f"{name}.parquet", index=False)
    read = read_table(tmp_path, name)
    assert list(read.columns) == [f.name for f in TABLES[name]]
    assert read["architecture"].tolist() == ["resnet18-cifar"]
    if name != "graphs":
        assert read["mode"].tolist() == ["training"]
        assert read["precision"].tolist() == ["amp"]


def test_bundled_tables_are_read() -> None:
    tables = bundled.load()
    assert set(tables["solo"]["mode"]) == {"training"}
    assert (
        tables["colocation"]["processes"]
        == tables["colocation"].groupby("set_id")["member"].transform("size")
    ).all()
