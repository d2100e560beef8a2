"""Learners that are Gaussian processes, and their average.

Their means are a constant, a prior or a predictor's answers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.features import Floats
from predictor.evaluation.protocols.few_shot.fitting import fit_parameters
from predictor.evaluation.protocols.few_shot.learners import FewShotAnswer, FewShotLearner, Fold
from predictor.examples.examples import Integers
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.expectation import Expectation
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.link import from_scale, slope, to_scale
from predictor.gaussian_process.process import UNEXPLAINED, Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.network_share import at_share, learned_share
from predictor.learning.evidence.prior import Prior, contradicts, plausible
from predictor.learning.evidence.training_pairs import TrainingPairs
from predictor.types import LEVEL_90


class Conditioned:
    """A Gaussian process over the test rows, conditioned on more and more of them.

    Args:
        parameters: kernel parameters.
        start: expectation of the test rows before any observation, as errors of `prior`.
        prior: [T] on the scale of `predictor.gaussian_process.link`.
        log_slowdown: [T] measured; used for observed rows only.
    """

    def __init__(
        self, parameters: KernelParameters, start: Expectation, prior: Floats, log_slowdown: Floats
    ) -> None:
        self.parameters, self.start, self.centre = parameters, start, prior
        self.noise = parameters.noise * slope(log_slowdown, parameters.knee) ** 2
        self.observed = to_scale(log_slowdown, parameters.knee) - prior

    def expectation(self, seen: Integers) -> Expectation:
        """Expectation of the test rows after observing those numbered `seen`."""
        if not len(seen):
            return self.start
        return self.start.observe(seen, self.observed[seen], self.noise[seen])

    def expected_noise(self, expected: Expectation) -> Floats:
        """[T] variance of an observation at its expected value, which is known before it is made."""
        return self.parameters.noise * self._slope(expected.mean) ** 2

    def _slope(self, mean: Floats) -> Floats:
        return slope(from_scale(mean + self.centre, self.parameters.knee), self.parameters.knee)

    def answer(self, seen: Integers) -> FewShotAnswer:
        expected = self.expectation(seen)
        return process_answer(expected.mean + self.centre, np.diag(expected.covariance), self.parameters)

    def gains(self, expected: Expectation, unseen: Floats) -> Floats:
        """[T] weights of the rows in the probe rule, in units of log slowdown.

        `unseen` [T] is 1 for the rows to be learned about.
        """
        return unseen / np.maximum(self._slope(expected.mean) ** 2, 1e-9)


class ProcessLearner(Conditioned):
    """The Gaussian process of `predictor.gaussian_process`, fitted to and conditioned on the training rows first.

    Args:
        fold: the rows.
        prior: [train rows + test rows] log slowdowns predicted without having learned from the row; None: a
            constant.
    """

    def __init__(self, fold: Fold, prior: Floats | None = None) -> None:
        measured, points, test = fold.measured, fold.train_points, fold.test_rows
        rows, scale = measured.rows, fold.scale
        log_slowdown = -fold.log_ratio
        parameters = fit_parameters(
            measured.features, scale, measured.members, rows.take(points), fold.train.set_index[points],
            log_slowdown[points], prior=None if prior is None else prior[points],
        )  # fmt: skip
        members = replace(measured.members, place=scale.place(measured.features, parameters))
        observed = to_scale(log_slowdown, parameters.knee)
        noise = parameters.noise * slope(log_slowdown, parameters.knee) ** 2
        centre = np.zeros(len(log_slowdown)) if prior is None else to_scale(prior, parameters.knee)
        centre += float((observed - centre)[points].mean())
        process = Process(
            parameters,
            Evidence(members, rows.take(points), (observed - centre)[points], noise[points], points),
            most_rows=len(points),
        )
        start = Expectation(*process.joint(members, rows.take(test)))
        super().__init__(parameters, start, centre[test], log_slowdown[test])


class CorrectedLearner(Conditioned):
    """A predictor's answers, corrected by observations as in the service.

    Args:
        prior: of the predictor's errors.
        members: that `rows` number, beginning with those of `prior`.
        rows: the test rows.
        expected: [T] log slowdowns predicted; of_networks: [T] by the predictor's networks alone.
        log_slowdown: as for `Conditioned`.
    """

    def __init__(
        self,
        prior: Prior,
        members: Members,
        rows: Rows,
        expected: Floats,
        of_networks: Floats,
        log_slowdown: Floats,
    ) -> None:
        p = prior.parameters
        self._informed, self._ignorant = (
            Expectation(*one.process.joint(members, rows)) for one in (prior, Prior.nothing(p))
        )
        self._prior, self._model = prior, members.model[rows.own]
        self._expected, self._of_networks = expected, of_networks
        super().__init__(p, self._informed, to_scale(expected, p.knee), log_slowdown)
        self.start = self.start_of(np.zeros(0, np.int64))

    def start_of(self, seen: Integers) -> Expectation:
        """Before any observation, according to whether those numbered `seen` contradict the training pairs."""
        rows = self._plausible(seen)
        both = (e.covariance[np.ix_(rows, rows)] for e in (self._informed, self._ignorant))
        if len(self._prior.training) and not contradicts(
            self.observed[rows], self.noise[rows], self._model[rows], *both
        ):
            return self._informed
        return replace(self._ignorant, covariance=UNEXPLAINED * self._ignorant.covariance)

    def _plausible(self, seen: Integers) -> Integers:
        plain = np.diag(self._ignorant.covariance)[seen]
        return seen[plausible(self.observed[seen], UNEXPLAINED * plain, self.noise[seen])]

    def _moved(self, start: Expectation, seen: Integers) -> Floats:
        """[T] change of the expected values because of the networks' weight, learned from those numbered `seen`."""
        rows, towards = self._plausible(seen), self._of_networks - self._expected

        def at(network_share: float) -> Floats:
            return to_scale(at_share(self._expected, towards, network_share), self.parameters.knee)

        share = learned_share(
            self.observed[rows],
            self.noise[rows],
            (at(1.0) - at(0.0))[rows],
            start.covariance[np.ix_(rows, rows)],
        )
        return at(share) - self.centre

    def variances(self, seen: Integers, expected: Expectation) -> tuple[Floats, Floats]:
        """[T] variances with and without observations, by which the service narrows intervals."""
        start = self.start_of(seen)
        after, before, plain = (np.diag(e.covariance) for e in (expected, start, self._ignorant))
        if start is self._informed:
            rows = zip(after.tolist(), before.tolist(), plain.tolist(), strict=True)
            after, before = np.array([self._prior.without_pairs(*row) for row in rows]).reshape(-1, 2).T
        return np.maximum(after, 0.0), np.maximum(before, 0.0)

    def expectation(self, seen: Integers) -> Expectation:
        if not len(seen):
            return self.start
        start = self.start_of(seen)
        start = replace(start, mean=start.mean + self._moved(start, seen))
        return start.observe(seen, self.observed[seen], self.noise[seen])


class PosteriorLearner(CorrectedLearner):
    """The service's correction of a predictor that was fitted to a fold's training sets.

    Args:
        fold: the rows.
        expected: [T] log slowdowns of the test rows, predicted without having learned from them.
        of_networks: [T] the same by the predictor's networks alone.
    """

    def __init__(self, fold: Fold, expected: Floats, of_networks: Floats) -> None:
        measured, test, points = fold.measured, fold.test_rows, fold.train_points
        p = PosteriorConfig().parameters
        members = replace(measured.members, place=fold.scale.place(measured.features, p))
        pairs = points[(measured.rows.partners[points] >= 0).sum(1) == 1]
        rows = Rows(measured.rows.own[pairs], measured.rows.partners[pairs].max(1)[:, None])
        training = TrainingPairs.among(p, members, rows, -fold.log_ratio[pairs])
        super().__init__(
            Prior(p, training, members),
            members,
            measured.rows.take(test),
            expected,
            of_networks,
            -fold.log_ratio[test],
        )  # fmt: skip


class Averaged:
    """The geometric mean of several learners' answers, and of the ends of their intervals."""

    def __init__(self, *parts: FewShotLearner) -> None:
        self.parts = parts

    def answer(self, seen: Integers) -> FewShotAnswer:
        answers = [part.answer(seen) for part in self.parts]
        lower = [a.lower for a in answers if a.lower is not None]
        upper = [a.upper for a in answers if a.upper is not None]
        middle = np.mean([a.log_ratio for a in answers], 0)
        return FewShotAnswer(middle, np.mean(lower, 0), np.mean(upper, 0)) if lower else FewShotAnswer(middle)


def process_answer(mean: Floats, variance: Floats, parameters: KernelParameters) -> FewShotAnswer:
    """Log ratios from mean and variance on the scale."""
    middle, quick, slow = log_slowdowns(mean, variance, parameters)
    return FewShotAnswer(-middle, -slow, -quick)


def log_slowdowns(
    mean: Floats, variance: Floats, parameters: KernelParameters
) -> tuple[Floats, Floats, Floats]:
    """[N] log slowdowns and the ends of their 90 % intervals, for a new measurement, its noise included.

    Args:
        mean, variance: [N] on the scale, prior mean included.
        parameters: knee and noise.
    """
    knee, noise = parameters.knee, LEVEL_90**2 * parameters.noise
    apart = LEVEL_90 * np.sqrt(np.maximum(variance, 1e-9))
    middle, quick, slow = (from_scale(mean + shift, knee) for shift in (0.0, -apart, apart))
    return (
        middle,
        middle - np.sqrt((middle - quick) ** 2 + noise),
        middle + np.sqrt((slow - middle) ** 2 + noise),
    )
