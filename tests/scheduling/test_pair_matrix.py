"""Slowdowns of all pairs, and the heat map."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.errors import InputError
from profiling.workload import ColocationSet
from scheduling.pair_matrix import pair_matrix, write_matrix
from tests.scheduling.tables import JOBS, table


def test_every_entry_equals_the_pairs_prediction() -> None:
    matrix = pair_matrix(table(memory_gib=11.0), "v100", JOBS)
    assert matrix.slowdown.shape == (6, 6)
    for row, first in enumerate(JOBS):
        for column, other in enumerate(JOBS):
            answer = table(memory_gib=11.0).predict_arrays([ColocationSet("v100", (first, other))])
            assert matrix.slowdown[row, column] == pytest.approx(answer.slowdown[0, 0])
            assert matrix.fits[row, column] == answer.fits[0]
    assert not matrix.fits[5, 0]
    assert matrix.to_json()["jobs"] == [str(job) for job in JOBS]
    assert pair_matrix(table(), "V100", JOBS).device == "v100"


def test_heat_map(tmp_path: Path) -> None:
    matrix = pair_matrix(table(memory_gib=11.0), "v100", JOBS, names=[f"mine-{i}" for i in range(len(JOBS))])
    assert matrix.to_json()["jobs"][0] == "mine-0"
    assert write_matrix(matrix, tmp_path / "m.svg").read_text().rstrip().endswith("</svg>")
    with pytest.raises(InputError, match=r"\.svg"):
        write_matrix(matrix, tmp_path / "m.bmp")
    with pytest.raises(InputError, match="needs jobs"):
        pair_matrix(table(), "v100", ())
