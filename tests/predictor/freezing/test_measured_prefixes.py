"""What was measured with some prefixes, carried over to the others."""

import pytest

from predictor.freezing.measured_prefixes import MeasuredPrefixes


def predicted(prefix: int) -> float:
    return 10.0 - prefix


def test_each_prefix_is_scaled_from_the_longest_measured_one_before_it() -> None:
    step = MeasuredPrefixes({2: 16.0, 5: 5.0}, predicted)
    assert [step.scaled(k) for k in (0, 2, 4, 5, 7)] == pytest.approx([20.0, 16.0, 12.0, 5.0, 3.0])
    memory = MeasuredPrefixes({2: 9.0, 5: 6.5}, predicted)
    assert [memory.moved(k) for k in (0, 2, 4, 5, 7)] == pytest.approx([11.0, 9.0, 7.0, 6.5, 4.5])


def test_more_frozen_layers_do_not_raise_it() -> None:
    step = MeasuredPrefixes({0: 10.0, 5: 9.0}, predicted)
    answers = [step.scaled(k) for k in range(10)]
    assert answers == sorted(answers, reverse=True)
    assert answers[2:6] == [9.0] * 4


def test_measurements_that_contradict_each_other_are_answered_as_measured() -> None:
    step = MeasuredPrefixes({0: 5.0, 4: 6.0}, predicted)
    assert [step.scaled(k) for k in (0, 2, 4)] == pytest.approx([5.0, 6.0, 6.0])
