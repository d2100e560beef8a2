"""Tables that a training refuses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import datasets
from datasets.tables import write_table
from predictor.training.training_tables import training_tables
from profiling.errors import InputError

Tables = tuple[pd.DataFrame, pd.DataFrame]


def test_sets_that_are_bundled_too_are_refused() -> None:
    bundled_tables = Path(datasets.__file__).parent / "bundled"
    with pytest.raises(InputError, match=r"share sets.*--no-bundled"):
        training_tables(bundled_tables, bundled=True)


def test_tables_of_bounds_only_are_refused(measured: Tables, tmp_path: Path) -> None:
    for name, table in zip(("colocation", "solo"), measured, strict=True):
        write_table(tmp_path, name, table.assign(censored=True) if name == "colocation" else table)
    with pytest.raises(InputError, match=r"nothing to train on.*no bound \(censored\)"):
        training_tables(tmp_path, bundled=False)


def test_empty_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to train on"):
        training_tables(None, bundled=False)
    with pytest.raises(InputError, match="no table"):
        training_tables(tmp_path, bundled=False)


def test_sources_whose_licence_does_not_allow_it_are_refused(measured: Tables, tmp_path: Path) -> None:
    colocation, solo = measured
    lucid = {"source": "lucid", "licence": "LicenseRef-S-Lab-1.0"}
    write_table(tmp_path, "colocation", colocation.assign(**lucid))
    write_table(tmp_path, "solo", solo.assign(**lucid))
    with pytest.raises(InputError, match=r"lucid .*--own-use"):
        training_tables(tmp_path, bundled=False)
    assert len(training_tables(tmp_path, bundled=False, own_use=True)[0]) == len(colocation)


def test_disturbed_sets_are_used_if_asked_for(measured: Tables, tmp_path: Path) -> None:
    """Not the bundled measurements alone, because all of the user's were disturbed."""
    for name, table in zip(("colocation", "solo"), measured, strict=True):
        write_table(tmp_path, name, table.assign(disturbed=name == "colocation"))
    with (
        pytest.warns(UserWarning, match="other processes disturbed"),
        pytest.raises(InputError, match="no sets of"),
    ):
        training_tables(tmp_path, bundled=True)
    assert len(training_tables(tmp_path, bundled=False, disturbed=True)[0]) == len(measured[0])
