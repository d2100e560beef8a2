from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError
from scheduling.sia.configurations import configurations
from scheduling.sia.ilp import solve, solve_full, total_worth
from scheduling.sia.objective import SiaConfig, restart_factor, utilities


def test_configurations_of_the_paper() -> None:
    table = configurations([3, 2], [4, 8])
    assert [(c.nodes, c.gpus) for c in table if c.kind == 0] == [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12)]
    assert [(c.nodes, c.gpus) for c in table if c.kind == 1] == [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16)]


def test_restart_factor() -> None:
    assert restart_factor(10.0, 0, 30.0) == 1.0
    assert restart_factor(300.0, 2, 30.0) == pytest.approx(240.0 / 330.0)
    assert restart_factor(300.0, 100, 30.0) == 0.01


@pytest.mark.parametrize("p", [-0.5, 0.5])
def test_more_goodput_and_less_change_are_worth_more(p: float) -> None:
    goodput = np.array([[10.0, 19.0, np.nan]])
    worth = utilities(goodput, np.ones(1), np.array([0.9]), np.array([-1]), SiaConfig(p=p))
    assert worth[0, 1] > worth[0, 0] > 0
    assert worth[0, 2] == -np.inf
    held = utilities(goodput, np.ones(1), np.array([0.5]), np.array([0]), SiaConfig(p=p))
    assert held[0, 0] > held[0, 1]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.sampled_from([-0.5, 0.5, 1.0]), st.booleans())
def test_same_objective_as_the_full_matrix(jobs: int, seed: int, p: float, copies: bool) -> None:
    rng = np.random.default_rng(seed)
    table = configurations([6, 3, 2], [4, 8, 8])
    gpus, kinds = np.array([c.gpus for c in table]), np.array([c.kind for c in table])
    rows = max(jobs // 4, 1) if copies else jobs
    goodput = rng.uniform(1, 5, (rows, 3))[:, kinds] * gpus ** rng.uniform(0.3, 1.0, (rows, 1))
    goodput[gpus[None, :] > 2 ** rng.integers(0, 6, (rows, 1))] = np.nan
    goodput = goodput[np.arange(jobs) % rows]
    present = np.array([rng.choice(np.flatnonzero(row > 0)) if rng.random() < 0.5 else -1 for row in goodput])
    worth = utilities(goodput, np.ones(jobs), rng.uniform(0.5, 1, jobs), present, SiaConfig(p=p))
    capacity = np.array([24, 24, 16])
    ours = solve(worth, gpus, kinds, capacity, gap=1e-8)
    full = solve_full(worth, gpus, kinds, capacity, gap=1e-8)
    assert total_worth(worth, ours) == pytest.approx(total_worth(worth, full), rel=1e-6)
    chosen = np.flatnonzero(ours >= 0)
    assert (np.bincount(kinds[ours[chosen]], gpus[ours[chosen]], 3) <= capacity).all()


def test_as_published_utilities_are_rounded_and_changes_are_free() -> None:
    config = SiaConfig(lambda_a=0.0, decimals=2)
    goodput = np.array([[1.0, 15.0, 16.0]])
    worth = utilities(goodput, np.ones(1), np.ones(1), np.array([1]), config)
    np.testing.assert_allclose(worth, [[0.1, 1.1 - 0.26, 1.1 - 0.25]])
    with pytest.raises(InputError, match="decimals"):
        SiaConfig(decimals=-1)


def test_forced_configurations_are_kept() -> None:
    worth = np.array([[1.0, 0.1], [0.2, 1.0]])
    gpus, kinds, capacity = np.array([1, 2]), np.array([0, 0]), np.array([3])
    assert solve(worth, gpus, kinds, capacity, {0: 1}).tolist() == [1, 0]
    with pytest.raises(InfeasibleError):
        solve(worth, gpus, kinds, np.array([1]), {0: 1})


def test_prices_above_all_values_leave_a_valid_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    # The search for prices may stop there: nothing is near the best of its row, which is to have nothing.
    monkeypatch.setattr("scheduling.sia.ilp._gpu_prices", lambda *_: np.array([5.0]))
    worth = np.array([[1.0], [0.7], [0.7]])
    chosen = solve(worth, np.array([1]), np.array([0]), np.array([1]))
    assert chosen.tolist() == [0, -1, -1]
