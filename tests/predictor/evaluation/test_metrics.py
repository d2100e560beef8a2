from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import mean_absolute_percentage_error, r2_score, root_mean_squared_error

from predictor.evaluation.metrics import bootstrap, coverage, mae, mape_percent, r2, rmse, score, spearman
from profiling.errors import InputError

FINITE = st.floats(0.01, 100)
VECTORS = st.lists(st.tuples(FINITE, FINITE), min_size=3, max_size=40).map(lambda rows: np.array(rows).T)


@given(VECTORS)
def test_agree_with_scikit_learn_and_scipy(rows: np.ndarray) -> None:
    y, p = rows
    assert mape_percent(y, p) == pytest.approx(100 * mean_absolute_percentage_error(y, p))
    assert rmse(y, p) == pytest.approx(root_mean_squared_error(y, p))
    assert rmse(y, p) >= mae(y, p) * (1 - 1e-12)
    if np.ptp(y) > 0:
        assert r2(y, p) == pytest.approx(r2_score(y, p))
        if np.ptp(p) > 0:
            assert spearman(y, p) == pytest.approx(spearmanr(y, p)[0])


@given(VECTORS)
def test_perfect_predictions(rows: np.ndarray) -> None:
    y = rows[0]
    result = score(y, y)
    assert (result["mape_percent"], result["mae"], result["rmse"]) == (0, 0, 0)
    assert result["r2"] in (1, None)


def test_undefined_metrics_are_none_and_bad_vectors_are_refused() -> None:
    assert score([1.0, 1.0], [0.5, 0.5])["r2"] is None
    assert score([0.0], [1.0])["mape_percent"] is None
    assert score([1.0, 4.0], [2.0, 2.0])["geometric_factor"] == pytest.approx(2.0)
    assert math.isnan(spearman([1, 2], [3, 3]))
    for y, p in (([], []), ([1.0], [1.0, 2.0]), ([math.nan], [1.0]), ([[1.0]], [[1.0]])):
        with pytest.raises(InputError):
            score(y, p)


def test_coverage_includes_the_ends() -> None:
    assert coverage([1, 2, 3, 4], [1, 0, 3.5, 4], [2, 1, 5, 4]) == 0.5
    result = score([1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 1.9])
    assert (result["coverage_90"], result["median_width"]) == (0.5, pytest.approx(0.7))


def test_bootstrap_is_seeded_contains_the_value_and_widens_with_groups() -> None:
    generator = np.random.default_rng(0)
    common = np.repeat(generator.normal(size=50), 4)
    y = generator.uniform(1, 2, 200)
    p = y + 0.1 * common
    alone = bootstrap(y, p, np.arange(200), resamples=300)
    grouped = bootstrap(y, p, np.repeat(np.arange(50), 4), resamples=300)
    assert alone == bootstrap(y, p, np.arange(200), resamples=300)
    for low, high in (alone["mae"], grouped["mae"]):
        assert low is not None
        assert high is not None
        assert low <= mae(y, p) <= high
    width = [interval["mae"][1] - interval["mae"][0] for interval in (alone, grouped)]  # type: ignore[operator]
    assert width[1] > 1.5 * width[0]
