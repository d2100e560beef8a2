"""A learner by ridge regression on the step times of jobs that run together, which any scheduler sees after a few steps.

A set that was observed is answered as observed. Elsewhere the predictor is corrected by the sets observed so far on that
device type and sharing mode: with s the predicted and t the observed slowdown of a member,

    log t - log s = a + b log s + u(member) + sum of v(others)

a: bias of the predictor on this device; b: correction of its spread; u, v: sensitivity and harm of a job beyond the
prediction. All are zero without observations, so that the learner starts as the predictor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from predictor.types import Floats, PredictionArrays, SetPredictor
from profiling.workload import ColocationSet, Workload
from scheduling.core.learner import SettledGpus
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload

# Prior standard deviations of a, b, u, v and of the residual, in log slowdown: a predictor is easily off by a third on a
# device that it never saw, a job by a sixth. Set beforehand; no measurement went into them.
_PRIOR, _NOISE = (0.3, 0.5, 0.15, 0.15), 0.15


class _Kind:
    """What was seen on one kind of device (type, sharing mode): the normal equations of the regression.

    Columns: a, b, then u and v of every job in the order in which they were first seen.
    """

    def __init__(self) -> None:
        self.numbers: dict[Workload, int] = {}
        self._known: dict[Workload, int] = {}
        self.gram: Floats = np.zeros((2, 2))
        self.moment: Floats = np.zeros(2)
        self.weights: Floats = np.zeros(2)

    def add(self, log_predicted: float, own: Workload, others: Sequence[Workload], log_ratio: float) -> None:
        for workload in (own, *others):
            if self._number(workload) < 0:
                self.numbers[workload.without_solo()] = len(self.numbers)
                self._known.clear()
        missing = 2 + 2 * len(self.numbers) - len(self.moment)
        self.gram = np.asarray(np.pad(self.gram, ((0, missing), (0, missing))), float)
        self.moment = np.asarray(np.pad(self.moment, (0, missing)), float)
        row = self._row(log_predicted, own, others, len(self.moment))
        self.gram += np.outer(row, row)
        self.moment += log_ratio * row

    def fit(self) -> None:
        """The posterior mean: least squares with the priors as further rows."""
        a, b, u, v = _PRIOR
        deviation = np.array([a, b, *([u, v] * len(self.numbers))])
        self.weights = np.asarray(
            np.linalg.solve(self.gram + np.diag((_NOISE / deviation) ** 2), self.moment), float
        )

    def log_factor(self, log_predicted: float, own: Workload, others: Sequence[Workload]) -> float:
        """What to add to the log of a predicted slowdown; jobs that were never seen add nothing of their own."""
        return float(self._row(log_predicted, own, others, len(self.weights)) @ self.weights)

    def _row(self, log_predicted: float, own: Workload, others: Sequence[Workload], width: int) -> Floats:
        row = np.zeros(width)
        row[:2] = 1.0, log_predicted
        for workload, column in ((own, 2), *((other, 3) for other in others)):
            number = self._number(workload)
            if 0 <= 2 * number + column < width:
                row[2 * number + column] += 1.0
        return row

    def _number(self, workload: Workload) -> int:
        """The job's place in the order, whatever was measured of it alone; negative for one that was not seen."""
        number = self._known.get(workload)
        if number is None:
            number = self._known[workload] = self.numbers.get(workload.without_solo(), -10)
        return number


class RidgeLearner:
    """A `Learner` over a predictor.

    Attributes:
        revision: counts the times it was fitted anew.
    """

    def __init__(self, predictor: SetPredictor) -> None:
        self.predictor = predictor
        self.revision = 0
        self._seen: dict[tuple[str, str, tuple[Workload, ...]], tuple[float, ...]] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._settled = SettledGpus()

    def observe(self, snapshot: SchedulingSnapshot) -> None:
        """Take in the pace of every job that shares its GPU now, once for each set of jobs."""
        changed = set()
        for gpu in self._settled.new(snapshot):
            tenants = sorted(snapshot.tenants[gpu], key=lambda t: str(current_workload(t)))
            kind = (snapshot.devices[gpu], snapshot.sharing[gpu])
            members = tuple(current_workload(t) for t in tenants)
            if (*kind, members) not in self._seen:
                self._learn(kind, members, tuple(1.0 / t.rate for t in tenants))
                changed.add(kind)
        for kind in changed:
            self._kinds[kind].fit()
        self.revision += bool(changed)

    def _learn(
        self, kind: tuple[str, str], members: tuple[Workload, ...], step_time_s: tuple[float, ...]
    ) -> None:
        self._seen[(*kind, members)] = step_time_s
        answer = self.predictor.predict_arrays([ColocationSet(kind[0], members, kind[1])])
        state = self._kinds.setdefault(kind, _Kind())
        for i, seconds in enumerate(step_time_s):
            ratio = float(np.log(seconds / answer.step_time_s[0, i]))
            state.add(float(np.log(answer.slowdown[0, i])), members[i], members[:i] + members[i + 1 :], ratio)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """As `SetPredictor`, corrected by what was seen; memory and what fits are the predictor's."""
        answer = self.predictor.predict_arrays(sets)
        slowdown = answer.slowdown.copy()
        for row, asked in enumerate(sets):
            state = self._kinds.get((asked.device, asked.sharing))
            if state is None or len(asked.workloads) < 2:
                continue
            members = tuple(sorted(asked.workloads, key=str))
            seen = self._seen.get((asked.device, asked.sharing, members))
            for i, own in enumerate(asked.workloads):
                if seen is not None:
                    slowdown[row, i] = seen[members.index(own)] / answer.solo_step_time_s[row, i]
                else:
                    others = [*asked.workloads[:i], *asked.workloads[i + 1 :]]
                    slowdown[row, i] *= np.exp(state.log_factor(float(np.log(slowdown[row, i])), own, others))
        slowdown = np.maximum(slowdown, 1.0)
        busy = answer.utilization_ratio * answer.slowdown / slowdown
        return replace(
            answer, slowdown=slowdown, step_time_s=answer.solo_step_time_s * slowdown, utilization_ratio=busy
        )
