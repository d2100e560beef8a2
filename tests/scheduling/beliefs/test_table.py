"""Predictions from measured tables."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.errors import UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import NoisyPredictor, Solo, TablePredictor

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


def test_what_was_not_measured_names_the_devices_on_which_it_was() -> None:
    table = TablePredictor({("v100", A): Solo(0.1), ("t4", B): Solo(0.1)}, {})
    with pytest.raises(UnknownNameError, match=r"a was not measured alone on t4.* on which it was: v100"):
        table.predict_arrays([ColocationSet("t4", (A,))])
    with pytest.raises(UnknownNameError, match=r"gpt_pmp was measured alone on no GPU type: .*\bsia\b"):
        table.predict_arrays([ColocationSet("t4", (Workload("gpt_pmp"),))])


CARD_TO_SMALLEST = ["a100", *(f"a100:mig={part}" for part in ("7g", "4g", "3g", "2g", "1g.10gb", "1g"))]


def test_times_on_slices_have_seeded_errors_but_none_is_slower_than_a_smaller() -> None:
    jobs = [Workload(f"job{k}") for k in range(200)]
    table = TablePredictor({(d, job): Solo(0.1) for d in CARD_TO_SMALLEST for job in jobs}, {})
    alone = [ColocationSet(d, (job,)) for d in CARD_TO_SMALLEST for job in jobs]

    def ratios(sigma: float, seed: int, sets: list[ColocationSet]) -> np.ndarray:
        return NoisyPredictor(table, sigma, seed).predict_arrays(sets).step_time_s[:, 0] / 0.1

    true = ratios(0.2, 1, alone)
    by_size = true.reshape(len(CARD_TO_SMALLEST), -1)
    assert (by_size[:2] == 1).all()
    assert (np.diff(by_size, axis=0) >= 0).all()
    assert 0.02 < np.abs(np.log(by_size[2])).mean() < 0.1
    assert ratios(0.2, 1, alone[::-1])[::-1].tolist() == true.tolist()  # whatever is asked first
    assert ratios(0.2, 2, alone).tolist() != true.tolist()
    assert (ratios(0.0, 1, alone) == 1).all()
    scarce = TablePredictor({("a100:mig=3g", A): Solo(0.1)}, {})
    answer = NoisyPredictor(scarce).predict_arrays([ColocationSet("a100:mig=3g", (A,))])
    assert answer.step_time_s[0, 0] != 0.1
