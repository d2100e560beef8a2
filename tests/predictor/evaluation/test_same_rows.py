from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor.evaluation.held_out import HeldOutAnswers
from predictor.evaluation.same_rows import Candidate, compare_on_same_rows
from predictor.examples.examples import Examples
from predictor.fitted.fitted import Manifest
from profiling.errors import UnavailableError

Tables = tuple[pd.DataFrame, pd.DataFrame]


def off_by(factor: float, learned: list[str]) -> Any:
    """A predictor of `factor` times the measured value, which claims to have been trained on these sets."""

    def predict_log_ratio(examples: Examples, _network_share: float) -> tuple[np.ndarray, np.ndarray]:
        assert not set(examples.set_ids) & set(learned)
        assert set(examples.campaign) == {""}, "users name no campaign"
        return np.zeros(len(examples.ratio)), -np.log(factor * examples.ratio)

    def nothing(rows: Any, _sharing: str) -> Any:
        return np.zeros(rows.shape)

    return SimpleNamespace(
        fitted_=SimpleNamespace(
            manifest=Manifest(tuple(learned)),
            model=SimpleNamespace(predict_log_ratio=predict_log_ratio, campaigns=()),
        ),
        table_=SimpleNamespace(
            rows=lambda keys: range(len(keys)),
            contention=lambda _network_share: SimpleNamespace(excess=nothing, unbounded_excess=nothing),
        ),
    )


@pytest.fixture(scope="module")
def sets(measured: Tables) -> list[str]:
    return sorted(measured[0].set_id.astype(str).unique())


def test_both_predict_the_same_rows(measured: Tables, sets: list[str]) -> None:
    challenger = Candidate("version 2", off_by(1.1, sets[:3]))
    incumbent = Candidate("version 1", off_by(1.2, sets[2:5]))
    result = compare_on_same_rows(challenger, incumbent, *measured)
    assert result["sets"] == len(sets) - 5
    assert result["left_out"] == {"challenger": 3, "incumbent": 3}
    assert result["metrics"]["challenger"]["mape_percent"] == pytest.approx(10)
    assert result["metrics"]["incumbent"]["mape_percent"] == pytest.approx(20)
    assert result["rows"] == result["metrics"]["challenger"]["n"] == result["metrics"]["incumbent"]["n"]
    assert result["difference_points"] == pytest.approx({"value": -10, "lower": -10, "upper": -10})


def test_stored_predictions_of_left_out_sets_count(measured: Tables, sets: list[str]) -> None:
    colocation, solo = measured
    rows = colocation[colocation.set_id.isin(sets[:2])].sample(frac=1, random_state=0)
    ratio = 0.7 * rows.throughput_ratio.to_numpy(dtype=float)
    challenger = Candidate("version 2", off_by(1.0, sets), HeldOutAnswers.of(rows, solo, ratio))
    incumbent = Candidate("version 1", off_by(1.2, sets[1:2]))
    result = compare_on_same_rows(challenger, incumbent, colocation, solo)
    assert result["sets"] == 1
    assert result["left_out"] == {"challenger": len(sets) - 2, "incumbent": 1}
    assert result["metrics"]["challenger"]["mape_percent"] == pytest.approx(30)


def test_no_set_new_to_both(measured: Tables, sets: list[str]) -> None:
    half = len(sets) // 2
    challenger, incumbent = (
        Candidate(name, off_by(1.0, learned))
        for name, learned in (("version 2", sets[:half]), ("the shipped predictor", sets[half:]))
    )
    with pytest.raises(UnavailableError, match=f"{half} of {len(sets)} sets learned by version 2"):
        compare_on_same_rows(challenger, incumbent, *measured)


def test_stored_predictions_are_not_for_other_sets_of_the_same_id(measured: Tables, sets: list[str]) -> None:
    """Neither for one on another device, nor for one with another partner."""
    colocation, solo = measured
    rows = colocation[colocation.set_id.isin(sets[:3])]
    held_out = HeldOutAnswers.of(rows, solo, rows.throughput_ratio.to_numpy(dtype=float))
    partner = (rows.set_id == sets[1]) & (rows.member == 1)
    asked = rows.assign(
        device=rows.device.mask(rows.set_id == sets[0], "k80"),
        workload=rows.workload.mask(partner, "other:batch_size=1"),
    )
    known = ~np.isnan(held_out.ratio_of(asked))
    assert known.tolist() == (rows.set_id == sets[2]).tolist()
