from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.measure.statistics import common_window, summarize, within

TIMES = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=30)


@given(TIMES)
def test_median_is_in_range_and_mad_is_non_negative(values: list[float]) -> None:
    summary = summarize(values, 0.05)
    assert min(values) <= summary.median <= max(values)
    assert summary.mad >= 0


@given(st.floats(1e-3, 1e3), st.integers(2, 10))
def test_equal_repeats_are_stable(value: float, count: int) -> None:
    summary = summarize([value] * count, 0.05)
    assert (summary.mad, summary.verdict) == (0.0, "stable")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0], "single"),
        ([1.0, 1.01, 0.99, 1.0, 1.02], "stable"),
        ([1.0, 1.5, 0.7, 1.2, 0.6], "noisy"),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.2, 1.2], "drifting"),
    ],
)
def test_verdicts(values: list[float], verdict: str) -> None:
    assert summarize(values, 0.05).verdict == verdict


def test_only_whole_steps_of_the_common_window_count() -> None:
    fast = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    slow = [0.5, 2.5, 4.5]
    start, end = common_window([fast, slow])
    assert (start, end) == (0.5, 4.5)
    inside = within(fast, start, end)
    assert inside is not None
    assert (inside.steps, inside.step_time_s) == (3, 1.0)
    other = within(slow, start, end)
    assert other is not None
    assert (other.steps, other.step_time_s) == (2, 2.0)
    assert within([0.0, 10.0], start, end) is None


@given(st.lists(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=20), min_size=1, max_size=4))
def test_steps_never_exceed_the_window(durations: list[list[float]]) -> None:
    boundaries = []
    for some in durations:
        ends = [0.0]
        for d in some:
            ends.append(ends[-1] + d)
        boundaries.append(ends)
    start, end = common_window(boundaries)
    for b in boundaries:
        window = within(b, start, end)
        if window is not None:
            assert window.steps * window.step_time_s <= end - start + 1e-6
