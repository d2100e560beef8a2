from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.optimize

from scheduling.core.highs import solve_milp


def test_a_line_of_the_solver_does_not_reach_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def talkative(cost: np.ndarray, integrality: int) -> tuple[np.ndarray, int]:
        os.write(1, b"HighsMipSolverData\n")
        return cost, integrality

    monkeypatch.setattr(scipy.optimize, "milp", talkative)
    cost = np.ones(2)
    assert solve_milp(cost, integrality=1) == (cost, 1)
    os.write(1, b"answer\n")
    assert capfd.readouterr() == ("answer\n", "HighsMipSolverData\n")
