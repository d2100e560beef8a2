"""A Gaussian process over the same members that teaches the network besides the forest.

It is the process of `predictor.learning` around a constant. On architectures that nobody measured it errs elsewhere than a forest: it
compares a job with those measured as a whole, where trees cut one number at a time. Too slow to serve, as the forest is.
"""

from __future__ import annotations

import numpy as np

from models.features import (
    DEMAND_WIDTH,
    DEVICE_FEATURES,
    PACE_FEATURES,
    SOLO_FEATURES,
    WORKLOAD_FEATURES,
    Floats,
)
from predictor.examples.examples import Integers
from predictor.learning.covariances import Evidence
from predictor.learning.fitting import fit_parameters
from predictor.learning.kernel import Members
from predictor.learning.known_members import Numbers
from predictor.learning.link import from_scale, slope, to_scale
from predictor.learning.measured import partners_of
from predictor.learning.members import MEMBER_WIDTH, MemberScale, solo_values
from predictor.learning.process import Process
from predictor.learning.rows import Rows
from predictor.training.teachers.mixtures import MixedPairs, Seen

# Measured rows that are used exactly; of more, so many stand in for all.
MOST_ROWS = 3_000


class ProcessTeacher:
    """A process for each way in which the sets are seen.

    Args:
        embedding: leading columns of the member features that it does not see.
    """

    def __init__(self, embedding: int) -> None:
        self.embedding = embedding

    def fit(self, ways: list[Seen], log_ratio: Floats) -> ProcessTeacher:
        """Learn from the same sets, seen in several ways.

        Args:
            ways: the sets as they are seen.
            log_ratio: [T] target; NaN is left out.
        """
        self.ways_ = [_Way(seen, log_ratio, self.embedding) for seen in ways]
        return self

    def answer(self, pairs: MixedPairs) -> Floats:
        """[V] log ratios of invented members; each is of a model of its own."""
        result = np.zeros(len(pairs.features))
        for number, way in enumerate(self.ways_):
            chosen = np.flatnonzero(pairs.way == number)
            places = [pairs.place[row] for row in chosen]
            result[chosen] = way.answer(pairs.features[chosen], pairs.demand[chosen], places, self.embedding)
        return result


class _Way:
    def __init__(self, seen: Seen, log_ratio: Floats, embedding: int) -> None:
        examples = seen.examples
        index: dict[tuple[int, tuple[str, ...]], int] = {}
        own = np.array(
            [
                index.setdefault((variant, seen.place(row)), len(index))
                for row, variant in enumerate(seen.where.tolist())
            ]
        )
        variants = np.array([variant for variant, _ in index])
        features = member_columns(seen.variants.features[variants], seen.variants.demand[variants], embedding)
        models, jobs = Numbers(), Numbers()
        self.places = Numbers()
        numbers = np.array(
            [
                (models[job.workload.model], jobs[job.workload.without_solo()], self.places[place])
                for job, place in ((seen.variants.jobs[variant], place) for variant, place in index)
            ]
        ).T
        rows = Rows(own, partners_of(own, examples.set_index), np.zeros(len(own)))
        points = np.flatnonzero(~np.isnan(log_ratio) & ~examples.censored & (rows.partners >= 0).any(1))
        rows, log_slowdown = rows.take(points), -log_ratio[points]
        self.scale = MemberScale.fit(features[np.unique(rows.own)])
        members = Members(np.zeros((len(index), 0)), *numbers)
        self.parameters = parameters = fit_parameters(
            features, self.scale, members, rows, examples.set_index[points], log_slowdown
        )
        members.place = self.scale.place(features, parameters)
        target = to_scale(log_slowdown, parameters.knee)
        self.centre = float(target.mean())
        noise = parameters.noise * slope(log_slowdown, parameters.knee) ** 2
        evidence = Evidence(
            members, rows, target - self.centre, noise, np.zeros(len(points), bool), np.arange(len(points))
        )
        self.process = Process(parameters, evidence, MOST_ROWS)

    def answer(
        self, features: Floats, demand: Floats, places: list[tuple[str, ...]], embedding: int
    ) -> Floats:
        count = len(features)
        alone = -1 - np.arange(count, dtype=np.int64)  # models, jobs and places that were never measured
        setting = np.array([self.places.get(place, -1) for place in places], dtype=np.int64)
        members = Members(
            self.scale.place(member_columns(features, demand, embedding), self.parameters),
            alone,
            alone,
            setting,
        )
        own: Integers = np.arange(count)
        mean, _ = self.process.answer(members, Rows(own, (own ^ 1)[:, None], np.zeros(count)), False)
        return -from_scale(mean + self.centre, self.parameters.knee)


def member_columns(features: Floats, demand: Floats, embedding: int) -> Floats:
    """[V, MEMBER_WIDTH] as `member_features`, from what the network sees of members."""
    cuts = np.cumsum([embedding, len(WORKLOAD_FEATURES), len(SOLO_FEATURES)])
    _, graph, solo, device = np.split(features, cuts, 1)
    assert device.shape[1] == len(DEVICE_FEATURES)
    want, pace = np.split(demand, [DEMAND_WIDTH - len(PACE_FEATURES)], 1)
    result = np.concatenate([solo_values(solo), pace, want, graph], 1)
    assert result.shape[1] == MEMBER_WIDTH
    return result
