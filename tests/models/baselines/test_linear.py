from __future__ import annotations

import numpy as np
import pytest

from models.baselines.linear import least_relative_error


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_weights_do_not_depend_on_the_unit(unit: float) -> None:
    x = np.column_stack([np.linspace(1.0, 40.0, 50), np.ones(50)])
    y = unit * (1.2 * x[:, 0] + 2.0)
    assert least_relative_error(x, y) == pytest.approx([1.2 * unit, 2.0 * unit], rel=1e-6)
    assert least_relative_error(x * unit, y) == pytest.approx([1.2, 2.0], rel=1e-6)
