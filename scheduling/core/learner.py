"""Interface of a belief that learns while jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from predictor.types import PredictionArrays
from profiling.workload import ColocationSet
from scheduling.core.set_cache import Ints
from scheduling.core.state import SchedulingSnapshot


class Learner(Protocol):
    """A `SetPredictor` that observes how fast a snapshot's jobs run.

    Attributes:
        revision: grows whenever an answer may have changed.
    """

    @property
    def revision(self) -> int: ...

    def observe(self, snapshot: SchedulingSnapshot) -> None:
        """Observe the pace of the running jobs; each stretch is learned from once."""
        ...

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        ...


class SettledGpus:
    """Shared GPUs whose tenants have run together since they last changed.

    Each such stretch is reported once.
    """

    def __init__(self) -> None:
        self._reported: Ints = np.zeros(0, np.int64)

    def new(self, snapshot: SchedulingSnapshot) -> list[int]:
        """Numbers of the GPUs that settled since the last call.

        GPUs of gangs are excluded, because a gang runs at the pace of its slowest GPU, which says nothing
        about the others.
        """
        if not self._reported.size:
            self._reported = np.full(len(snapshot), -1, np.int64)
        settled = []
        for gpu in np.flatnonzero((snapshot.tenant_count > 1) & (self._reported != snapshot.stamp)).tolist():
            tenants = snapshot.tenants[gpu]
            # Jobs just co-located, or restarting, have not done a step yet.
            if any(t.rate <= 0 or t.updated_s >= snapshot.now_s for t in tenants):
                continue
            self._reported[gpu] = snapshot.stamp[gpu]
            if all(len(t.gpus) == 1 for t in tenants):
                settled.append(gpu)
        return settled
