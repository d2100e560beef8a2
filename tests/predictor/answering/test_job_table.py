"""The table of jobs that answers are made from."""

from __future__ import annotations

import numpy as np

from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

PAIR = ColocationSet("v100", tuple(Workload.parse(f"{name}:batch_size=24") for name in ("alpha", "beta")))


def test_caches_of_the_latest_weights_are_kept(predictor: Predictor) -> None:
    """A service that learns comes by more and more weights of the networks."""
    table, rows = predictor.table_, predictor.rows([PAIR])
    shares = np.linspace(0.0, 1.0, 9).tolist()
    excess = [table.excess(rows, "time-slice", share) for share in shares]
    assert set(table._contention) == set(shares[-4:])
    assert table.contention(shares[-2]) is table.contention(shares[-2])
    np.testing.assert_array_equal(table.excess(rows, "time-slice", shares[0]), excess[0])
