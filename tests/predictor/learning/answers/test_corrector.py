"""Corrected answers."""

from __future__ import annotations

import pytest

from predictor.learning.answers.corrector import at_step_time
from predictor.types import Quantity


@pytest.mark.parametrize(
    ("busy", "factor", "expected"),
    [
        (Quantity(0.6, 0.45, 0.75), 0.5, (0.3, 0.15, 0.45)),
        (Quantity(0.6, 0.45, 0.75), 1.5, (0.9, 0.75, 1.0)),
        (Quantity(0.95, 0.8, 1.0), 0.5, (0.475, 0.325, 0.625)),
        (Quantity(0.2, 0.05, 0.35), 0.5, (0.1, 0.0, 0.25)),
    ],
)
def test_utilisation_is_as_uncertain_at_another_step_time(
    busy: Quantity, factor: float, expected: tuple[float, float, float]
) -> None:
    now = at_step_time(busy, factor)
    assert (now.value, now.lower, now.upper) == pytest.approx(expected)
