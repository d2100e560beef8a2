from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from predictor.types import PredictionArrays
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload
from scheduling.elastic.pairs import choose_pair

JOBS = (Workload("a"), Workload("b"))
PENALTIES = (np.array([0.0, 0.05, 0.4]), np.array([0.0, 0.05, 0.4]))
RATES = (1.0 / (1.0 - 0.06 * np.array([0, 4, 8])),) * 2


class Additive:
    """Step time grows with the sum of both demands; each frozen layer lowers it, and the memory."""

    def __init__(self, memory: float, interference: float = 0.8) -> None:
        self.memory, self.interference = memory, interference

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        mask = np.array([[len(s.workloads) > k for k in (0, 1)] for s in sets])
        prefix = np.array([[w.frozen_prefix for w in (*s.workloads, Workload("none"))][:2] for s in sets])
        demand = np.where(mask, 1.0 - 0.06 * prefix, 0.0)
        step = np.where(mask, demand + self.interference * demand[:, ::-1], 1.0)
        alone = np.where(mask, demand, 1.0)
        held = np.where(mask, 10.0 - prefix, 0.0)
        total = held.sum(axis=1)
        return PredictionArrays(mask, alone, step, step / alone, held, demand, total, total <= self.memory)


def test_chooses_both_prefixes_together() -> None:
    pair = choose_pair(JOBS, ((0, 4, 8), (0, 4, 8)), PENALTIES, RATES, Additive(100.0), "v100")
    assert pair is not None
    # Alone each would take 4 (0.95 / 0.76, against 1 and 0.6 / 0.52); beside the other as well.
    assert pair.prefixes == (1, 1)
    assert pair.gain == pytest.approx(2 / 1.8)


def test_prefixes_change_only_for_a_sufficient_gain() -> None:
    arguments = (JOBS, ((0, 4), (0, 4)), tuple(p[:2] for p in PENALTIES), tuple(r[:2] for r in RATES))
    for least, prefixes in ((0.02, (1, 1)), (0.3, (0, 1))):
        stays = choose_pair(
            *arguments, Additive(100.0), "v100", min_gain=0.5, present=(0, 1), min_prefix_gain=least
        )
        assert stays is not None
        assert stays.prefixes == prefixes


def test_memory_is_respected() -> None:
    tight = choose_pair(JOBS, ((0, 4, 8), (0, 4, 8)), PENALTIES, RATES, Additive(8.0), "v100", min_gain=1.0)
    assert tight is not None
    assert sum((0, 4, 8)[i] for i in tight.prefixes) >= 12
    none = (np.zeros(1), np.zeros(1))
    assert choose_pair(JOBS, ((0,), (0,)), none, (np.ones(1), np.ones(1)), Additive(8.0), "v100") is None


def test_insufficient_gain_is_refused() -> None:
    none, unit = (np.zeros(1), np.zeros(1)), (np.ones(1), np.ones(1))
    pair = choose_pair(JOBS, ((0,), (0,)), none, unit, Additive(100.0), "v100", min_gain=1.1)
    assert pair is not None  # 2 / 1.8 = 1.11
    assert choose_pair(JOBS, ((0,), (0,)), none, unit, Additive(100.0), "v100", min_gain=1.2) is None
    with pytest.raises(InputError, match="differ"):
        choose_pair(JOBS, ((0, 1), (0,)), none, unit, Additive(1.0), "v100")
