"""Ways to learn from a few observed sets of a new model.

All have the same interface: observations in, predictions of the remaining rows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from models.features import Floats
from predictor.examples.examples import Examples, Integers
from predictor.examples.featurizer import Featurizer
from predictor.gaussian_process.known_members import Numbers
from predictor.gaussian_process.measured import MeasuredRows
from predictor.gaussian_process.members import MemberScale


@dataclass(frozen=True, slots=True)
class FewShotAnswer:
    """Log throughput ratios of the test rows.

    Attributes:
        log_ratio: [T].
        lower, upper: [T] ends of 90 % intervals, if the learner gives them.
    """

    log_ratio: Floats
    lower: Floats | None = None
    upper: Floats | None = None


class FewShotLearner(Protocol):
    """Fitted on a fold's training rows, then queried with more and more observed test rows."""

    def answer(self, seen: Integers) -> FewShotAnswer:
        """Predict all test rows, given the measurements of the rows `seen` (numbers of test rows)."""
        ...


@dataclass(frozen=True)
class Fold:
    """Input of a learner: all rows of both sides.

    It must use measurements of test rows only if they are `seen`.

    Attributes:
        train, test: the two sides.
        measured: the rows of both, train first.
        train_points: numbers of training rows with a measured, uncensored target.
        log_ratio: [train rows + test rows] measured.
    """

    train: Examples
    test: Examples
    measured: MeasuredRows
    train_points: Integers
    log_ratio: Floats

    @classmethod
    def of(cls, train: Examples, test: Examples, featurizer: Featurizer) -> Fold:
        """Both sides with their features."""
        both = Examples.joined([train, test])
        points = np.flatnonzero(train.scored)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratio = np.log(both.ratio)
        return cls(train, test, MeasuredRows.of(both, featurizer), points, log_ratio)

    @cached_property
    def scale(self) -> MemberScale:
        """Scale of the features of the members in training points."""
        return MemberScale.fit(self.measured.features[np.unique(self.measured.rows.own[self.train_points])])

    @property
    def test_rows(self) -> Integers:
        """Numbers of the test rows among all rows."""
        first = len(self.train.workloads)
        return np.arange(first, first + len(self.test.workloads))


class Correction:
    """A rule that corrects predictions made without observations.

    Args:
        fold: the rows.
        base: [T] uncorrected log ratio of the test rows.
    """

    def __init__(self, fold: Fold, base: Floats) -> None:
        self.fold, self.base = fold, base
        test = fold.test_rows
        self.own, self.partners = fold.measured.rows.own[test], fold.measured.rows.partners[test]
        self.setting = fold.measured.members.setting[self.own]
        self.observed = fold.log_ratio[test]


class Uncorrected(Correction):
    """The base prediction as it is."""

    def answer(self, seen: Integers) -> FewShotAnswer:
        del seen
        return FewShotAnswer(self.base)


class FactorPerJob(Correction):
    """One factor per job and device: `n / (n + 5)` of the mean log error of its n observations."""

    def answer(self, seen: Integers) -> FewShotAnswer:
        count, total = np.zeros(len(self.fold.measured.members)), np.zeros(len(self.fold.measured.members))
        np.add.at(count, self.own[seen], 1.0)
        np.add.at(total, self.own[seen], (self.observed - self.base)[seen])
        return FewShotAnswer(self.base + (total / (count + 5.0))[self.own])


class Ridge(Correction):
    """Ridge regression on log slowdowns: offset and scale per device, sensitivity and pressure per job."""

    deviations, noise = (0.3, 0.5, 0.15, 0.15), 0.15

    def answer(self, seen: Integers) -> FewShotAnswer:
        result = self.base.copy()
        for setting in np.unique(self.setting):
            here = np.flatnonzero(self.setting == setting)
            known = here[np.isin(here, seen)]
            if not len(known):
                continue
            jobs = Numbers()
            columns = [(jobs[self.own[r]], [jobs[p] for p in self.partners[r] if p >= 0]) for r in here]
            design = np.zeros((len(here), 2 + 2 * len(jobs)))
            design[:, 0], design[:, 1] = 1.0, -self.base[here]
            for row, (own, others) in enumerate(columns):
                design[row, 2 + 2 * own] = 1.0
                for other in others:
                    design[row, 3 + 2 * other] += 1.0
            a, b, u, v = self.deviations
            prior = (self.noise / np.array([a, b, *([u, v] * len(jobs))])) ** 2
            picked = design[np.isin(here, known)]
            error = (self.base - self.observed)[known]
            weights = np.linalg.solve(picked.T @ picked + np.diag(prior), picked.T @ error)
            result[here] -= design @ weights
        return FewShotAnswer(result)


class RefittedTrees:
    """Extremely randomised trees, refitted with the observations.

    Their features are those of a member and the mean of its partners'.

    Args:
        fold: the rows.
        prior: [train rows + test rows] predicted log slowdowns, an additional feature; None: no such feature.
    """

    trees = 100

    def __init__(self, fold: Fold, prior: Floats | None = None) -> None:
        self.fold = fold
        rows, features = fold.measured.rows, np.nan_to_num(fold.measured.features)
        present = rows.partners >= 0
        total = (features[rows.partners] * present[..., None]).sum(1)
        count = present.sum(1)[:, None]
        columns = [features[rows.own], total / np.maximum(count, 1), count]
        self.features = np.hstack(columns if prior is None else [*columns, prior[:, None]])

    def answer(self, seen: Integers) -> FewShotAnswer:
        from sklearn.ensemble import ExtraTreesRegressor

        test = self.fold.test_rows
        known = np.concatenate([self.fold.train_points, test[seen]])
        model = ExtraTreesRegressor(self.trees, min_samples_leaf=2, max_features=0.5, random_state=0)
        model.fit(self.features[known], self.fold.log_ratio[known])
        return FewShotAnswer(model.predict(self.features[test]))


class Factorisation:
    """Jobs x partners of a device as biases and low-rank factors, by alternating least squares.

    This is Paragon's method (ASPLOS 2013).
    """

    rank, ridge, sweeps = 3, 0.3, 15

    def __init__(self, fold: Fold) -> None:
        self.fold = fold

    def answer(self, seen: Integers) -> FewShotAnswer:
        fold, rows = self.fold, self.fold.measured.rows
        test = fold.test_rows
        known = np.concatenate([fold.train_points, test[seen]])
        row, column = np.nonzero(rows.partners[known] >= 0)
        own, other = rows.own[known][row], rows.partners[known][row, column]
        value = fold.log_ratio[known][row]
        count = len(fold.measured.members)
        setting = fold.measured.members.setting
        level = np.array(
            [
                value[setting[own] == s].mean() if (setting[own] == s).any() else value.mean()
                for s in range(setting.max() + 1)
            ]
        )[setting]
        rest = value - level[own]
        rng = np.random.default_rng(0)
        left = rng.normal(0, 0.1, (count, self.rank + 2))
        right = rng.normal(0, 0.1, (count, self.rank + 2))
        left[:, 0], right[:, 1] = 1.0, 1.0
        for _ in range(self.sweeps):
            self._solve(left, right, own, other, rest, fixed=0)
            self._solve(right, left, other, own, rest, fixed=1)
        asked = rows.partners[test]
        answers = np.zeros(len(test))
        for place, (o, partners) in enumerate(zip(rows.own[test], asked, strict=True)):
            present = partners[partners >= 0]
            answers[place] = level[o] + float(np.mean(right[present] @ left[o])) if len(present) else level[o]
        return FewShotAnswer(np.minimum(answers, np.log(1.2)))

    def _solve(
        self, mine: Floats, theirs: Floats, own: Integers, other: Integers, rest: Floats, fixed: int
    ) -> None:
        """Solve for one side given the other.

        Column `fixed` of `mine` stays 1, so the other side's column is its bias.
        """
        free = [k for k in range(mine.shape[1]) if k != fixed]
        order = np.argsort(own, kind="stable")
        starts = np.searchsorted(own[order], np.arange(len(mine) + 1))
        mine[:, free] = 0.0
        for job in range(len(mine)):
            pick = order[starts[job] : starts[job + 1]]
            if len(pick):
                features = theirs[other[pick]]
                error = rest[pick] - features[:, fixed]
                features = features[:, free]
                inner = features.T @ features + self.ridge * np.eye(len(free))
                mine[job, free] = np.linalg.solve(inner, features.T @ error)
