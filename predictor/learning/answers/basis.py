"""The basis of a corrected answer: the observations that moved it most, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from models.features import Floats
from predictor.learning.evidence.observed import Observed
from predictor.types import MemberPrediction

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

Label = tuple[str, tuple[str, ...], str]


class Influence(NamedTuple):
    """An observed set and its share of an answer's correction, from -1 to 1; negative if it speeds the job
    up."""

    job: str
    partners: tuple[str, ...]
    device: str
    observations: int
    weight: float


class Basis(NamedTuple):
    """The basis of an answer: how many observations, and the most influential ones."""

    observations: int
    heaviest: tuple[Influence, ...]


class Bases:
    """Explains which observations answers are based on.

    Args:
        seen: the observations.
        rows: [used] numbers in `seen` of the rows that answers are made from.
        labels: cache of job, partners and device of rows of `seen` in words.
    """

    def __init__(self, seen: Observed, rows: Integers, labels: dict[int, Label]) -> None:
        self._seen, self._rows, self._labels = seen, rows.tolist(), labels
        self._count = seen.count[rows].astype(np.float32)

    def of(self, added: Floats, most: int = 3) -> list[Basis]:
        """The basis of R answers.

        Args:
            added: [R, used] contribution of each used row.
            most: number of influences to name.
        """
        if not added.shape[1]:
            return [Basis(0, ())] * len(added)
        size, everyone = np.abs(added), np.arange(len(added))
        total, best = size.sum(1).tolist(), size.argmax(1)
        least = 0.01 * size[everyone, best]
        count = ((size > least[:, None]) @ self._count).tolist()
        heaviest: list[list[Influence]] = [[] for _ in count]
        # For three influences, repeated maxima are faster than sorting.
        for place in range(min(most, added.shape[1])):
            if place:
                size[everyone, best] = -1.0
                best = size.argmax(1)
            named = size[everyone, best] > least
            weights, places = added[everyone, best].tolist(), best.tolist()
            for row in np.flatnonzero(named).tolist():
                heaviest[row].append(self._influence(places[row], weights[row] / total[row]))
        return [Basis(round(number), tuple(found)) for number, found in zip(count, heaviest, strict=True)]

    def _influence(self, place: int, weight: float) -> Influence:
        number = self._rows[place]
        if number not in self._labels:
            device, _, own, others = self._seen.keys[number]
            self._labels[number] = str(own), tuple(map(str, others)), device
        return Influence(*self._labels[number], int(self._seen.count[number]), weight)


def reason_of(model: str, before: MemberPrediction, after: MemberPrediction, basis: Basis) -> str:
    """What moved the answer for a job of `model`; empty if the printed numbers do not change.

    The slowdown is given before and after, because the predictor's own reasons refer to the one before.
    """
    step = after.step_time_s.value / before.step_time_s.value
    was, now = (f"{member.slowdown.value:.2f}x" for member in (before, after))
    parts = [f"slowdown from {was} to {now}"] if was != now else []
    if abs(math.log(step)) >= 0.005:
        parts.append(f"step time by {step:.2f}x")
    if not parts or not basis.heaviest:
        return ""
    first, count = basis.heaviest[0], basis.observations
    where = f"beside {' and '.join(first.partners)}" if first.partners else "alone"
    return (
        f"{model}: {count} {'observation corrects' if count == 1 else 'observations correct'} its "
        f"{' and its '.join(parts)}, most of all {first.job} {where} on {first.device}"
    )
