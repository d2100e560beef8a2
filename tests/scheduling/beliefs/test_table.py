"""Predictions from measured tables."""

from __future__ import annotations

import pytest

from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor

A, B = Workload("a"), Workload("b")


@pytest.mark.parametrize(
    ("spelt", "asked"), [("V100", "v100"), ("rtx_3090", "RTX 3090"), ("my own", "my own")]
)
def test_a_device_is_the_same_however_it_is_spelt(spelt: str, asked: str) -> None:
    table = TablePredictor(
        {(spelt, job): Solo(0.1, 2e9) for job in (A, B)}, {(spelt, (A, B)): (0.8, 0.5)}, {spelt: 3e9},
        {(spelt, (A, B)): 3.5e9},
    )  # fmt: skip
    answer = table.predict_arrays([ColocationSet(asked, (B, A))])
    assert answer.slowdown[0].tolist() == pytest.approx([2.0, 1.25])
    assert not answer.fits[0]
    assert table.workloads(asked) == (A, B)
