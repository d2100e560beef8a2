from __future__ import annotations

import numpy as np
import pytest

from predictor.fitted.domain import Domain
from predictor.fitted.intervals import (
    GROUPS,
    LEVEL,
    UNMEASURED_DEVICE_FACTOR,
    Intervals,
    conformal_quantile,
    effective_members,
)


def test_intervals_have_nominal_coverage() -> None:
    """Noise grows with the slowdown, as in measurements; calibrated on one half, checked on the other."""
    rng = np.random.default_rng(0)
    slow = rng.uniform(0, 0.7, 4000)
    error = rng.standard_t(5, 4000) * (0.05 + slow) * 0.3
    half = slice(0, 2000), slice(2000, None)
    intervals = Intervals.fit(
        {"solo": (error[half[0]], slow[half[0]]), "graph": (2 * error[half[0]], slow[half[0]])},
        error[half[0]],
        np.arange(-20.0, 0.0) / 100,
    )
    assert intervals.utilization_error == 0.19
    for group, factor in (("solo", 1), ("graph", 2)):
        covered = np.abs(factor * error[half[1]]) <= intervals.half_width(slow[half[1]], group)
        assert 0.88 <= covered.mean() <= 0.92
    assert intervals.quantile["graph"] == pytest.approx(2 * intervals.quantile["solo"])
    assert (np.diff(intervals.half_width(np.array([0.0, 0.1, 0.5]), "solo")) > 0).all()


def test_knowing_less_never_makes_an_interval_narrower() -> None:
    slow = np.full(100, 0.4)
    wide, narrow = np.linspace(0, 0.9, 100), np.linspace(0, 0.45, 100)
    intervals = Intervals.fit({"solo": (wide, slow), "graph": (narrow, slow)}, narrow, narrow)
    assert (
        intervals.quantile["graph"] == intervals.quantile["solo"] == pytest.approx(0.9 * 0.9 / 0.45, rel=0.02)
    )
    unseen = intervals.widened_by({"solo": (3 * wide, slow), "graph": (3 * narrow, slow)})
    assert unseen.device_factor == pytest.approx({"solo": 3.0, "graph": 3.0})
    ordered = Intervals.fit({"solo": (narrow, slow), "graph": (wide, slow)}, narrow, narrow)
    assert ordered.quantile["graph"] == pytest.approx(2 * ordered.quantile["solo"])
    unseen = ordered.widened_by({"solo": (4 * narrow, slow), "graph": (wide, slow)})
    assert unseen.device_factor == pytest.approx({"solo": 4.0, "graph": 2.0})
    # Too few held-out rows say nothing about unmeasured devices, so they are not taken for measured ones.
    few = ordered.widened_by({"solo": (narrow[:3], slow[:3]), "graph": (wide[:0], slow[:0])})
    assert few.device_factor == pytest.approx(dict.fromkeys(GROUPS, UNMEASURED_DEVICE_FACTOR))
    assert (few.is_calibrated, few.is_calibrated_for_devices) == (True, False)
    assert unseen.is_calibrated_for_devices
    assert not Intervals().is_calibrated
    none = np.zeros(0)
    alone = Intervals.fit({"solo": (none, none), "graph": (narrow, slow)}, none, none)
    assert alone.quantile["solo"] == alone.quantile["graph"] < 1.5


def test_conformal_quantile() -> None:
    # ceil((9 + 1) * 0.9) = 9: the largest of nine; with nineteen the 18th.
    assert conformal_quantile(np.arange(1.0, 10)) == 9
    assert conformal_quantile(np.arange(1.0, 20)) == 18
    assert conformal_quantile(np.array([3.0])) == 3
    assert conformal_quantile(np.zeros(0)) == 1.5
    assert LEVEL == 0.9


def test_domain() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3))
    names = [f"model{i // 2}" for i in range(40)]
    domain = Domain.fit(points, names)
    assert all(domain.contains(p) for p in points)
    assert not domain.contains(np.full(3, 50.0))
    # The same architecture twice does not make the radius 0.
    assert Domain.fit(np.repeat(points, 2, 0), [n for n in names for _ in range(2)]).radius > 0


def test_domain_of_no_or_one_architecture() -> None:
    assert Domain().contains(np.zeros(3))
    domain = Domain.fit(np.array([[0.0, 0.0], [0.0, 1.0]]), ["only", "only"])
    assert domain.radius == 1.0
    assert domain.contains(np.array([0.0, 1.5]))
    assert not domain.contains(np.array([9.0, 9.0]))


def test_interval_width_at_full_load_does_not_depend_on_the_number_of_jobs() -> None:
    intervals = Intervals(quantile={"solo": 0.8, "graph": 1.2})
    sizes = np.array([2, 3, 8])
    halves = intervals.half_width(np.log(sizes), "graph", sizes)
    np.testing.assert_allclose(halves, 1.2 * (0.05 + np.log(2)))
    assert intervals.half_width(np.log(2), "graph") == pytest.approx(halves[0])


def test_effective_members_of_equal_ones_are_all_and_an_idle_one_does_not_count() -> None:
    use = np.array([0.3, 0.3, 0.3, 0.9, 0.6, 0.001, 0.7, 0.0, 0.0])
    count = effective_members(use, np.array([0, 0, 0, 1, 1, 1, 2, 3, 3]), 4)
    np.testing.assert_allclose(count, [3.0, 2.0, 2.0, 2.0], atol=0.01)
