from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InputError
from scheduling.elastic.controller import FreezingController, best_prefix
from scheduling.elastic.penalty import (
    FreezingGuards,
    allowed_prefixes,
    frozen_penalty,
    norm_shares,
)

SHARES = np.array([0.0, 0.1, 0.3, 0.6, 1.0])


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1e6), min_size=1, max_size=30))
def test_shares_rise_from_0_to_1(norms: list[float]) -> None:
    shares = norm_shares(np.array(norms))
    assert shares[0] == 0.0
    assert np.all(np.diff(shares) >= -1e-12)
    assert shares[-1] == pytest.approx(1.0) or not np.any(np.array(norms) > 0)


def test_penalty() -> None:
    np.testing.assert_allclose(frozen_penalty(SHARES, 2.0), SHARES**2)


def test_guards() -> None:
    guards = FreezingGuards(kappa=2.0, max_norm_share=0.5, warmup_progress=0.1, max_debt_ratio=0.1)
    assert allowed_prefixes(SHARES, 0.05, 0.0, guards).tolist() == [True, False, False, False, False]
    assert allowed_prefixes(SHARES, 0.5, 0.0, guards).tolist() == [True, True, True, False, False]
    few = FreezingGuards(max_debt_ratio=0.05)
    # In debt only prefixes whose own penalty stays within the ratio are left: 0.1 ** 2 is, 0.3 ** 2 is not.
    assert allowed_prefixes(SHARES, 0.5, 0.2, few).tolist() == [True, True, False, False, False]
    many = allowed_prefixes(np.stack([SHARES, SHARES]), np.array([[0.05], [0.5]]), np.zeros((2, 1)), guards)
    assert many.sum(axis=1).tolist() == [1, 3]


@pytest.mark.parametrize("options", [{"kappa": 0.1}, {"max_norm_share": 1.5}, {"max_debt_ratio": -0.1}])
def test_invalid_guards_are_rejected(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="out of range"):
        FreezingGuards(**options)


def test_best_prefix_trades_speed_for_penalty() -> None:
    speed = np.array([1.0, 1.2, 1.5, 5.0, 9.0])
    guards = FreezingGuards()
    assert best_prefix(speed, SHARES, 0.5, 0.0, guards) == 2
    assert best_prefix(speed, SHARES, 0.01, 0.0, guards) == 0
    assert (
        best_prefix(np.array([1.0, 1.015, 1.0, 1.0, 1.0]), SHARES, 0.5, 0.0, guards) == 0
    )  # gains under 2 %


@settings(deadline=None)
@given(kappa=st.floats(1, 3), ratio=st.floats(0.01, 0.2), seed=st.integers(0, 1000))
def test_debt_stays_under_its_cap(kappa: float, ratio: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    speed = np.linspace(1.0, draw.uniform(1, 4), 5)
    guards = FreezingGuards(kappa=kappa, max_debt_ratio=ratio)
    controller = FreezingController(speed, 500.0, guards)
    while controller.progress < 1.0:
        controller.decide(SHARES)
        controller.advance(5.0, SHARES)
        # One round may go over by what it adds itself.
        assert controller.debt <= ratio * controller.progress + 0.01
    assert controller.progress == 1.0


def test_unfreezes_when_the_learning_rate_drops() -> None:
    controller = FreezingController(np.array([1.0, 1.2, 1.5, 5.0, 9.0]), 100.0, progress=0.5)
    assert controller.decide(SHARES, learning_rate=0.1) == 2
    assert controller.decide(SHARES, learning_rate=0.01) == 0
    controller.advance(6.0, SHARES)
    assert controller.decide(SHARES, learning_rate=0.01) == 2
    again = FreezingController(controller.throughput, 100.0)
    again.load_state_dict(controller.state_dict())
    assert again.state_dict() == controller.state_dict()
