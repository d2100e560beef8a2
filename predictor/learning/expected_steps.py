"""What a posterior expects of the step times of a job beside others and alone, so that probes can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.expectation import Expectation
from predictor.gaussian_process.link import slope
from predictor.types import LEVEL_90, Bools, Quantity
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.posterior import Posterior


# Once a job's step time alone is known, this part of the variance of slowdowns is left: the squared ratio of their
# errors on Lucid and on ParvaGPU (`python -m benchmarks.observed_alone`: 18.0 to 14.9 %, 10.1 to 8.7 %).
_LEFT_ONCE_ALONE = 0.7
# Noise of what is then known; keeps matrices regular.
_EXACTLY = 1e-9


@dataclass(frozen=True, slots=True)
class ExpectedSteps:
    """R log step times of the members of some pairs, pair by pair; then what the job alone tells.

    Attributes:
        errors: joint expectation of these [R], of the job's log solo step time, and [R] of what it says of each of
            the slowdowns; means are 0.
        noise: [R + 1 + R] variance of an observation of each.
        alone: numbers of the rows that the job alone tells; empty if its solo step time was stated or observed.
    """

    errors: Expectation
    noise: Floats
    alone: Integers

    @classmethod
    def of(cls, posterior: Posterior, pairs: Sequence[ColocationSet]) -> ExpectedSteps:
        """The error of a step time is that of the slowdown and, unless the solo step time was stated or observed, of
        that.

        A pair says of a solo step time what jobs have in common (`SoloErrors`). What the predictor's own interval
        has on top of that, such as an input pipeline, is believed only once it is confirmed or the job ran alone, so
        for a pair it is noise. Of 41 of Lucid's jobs known by graph, six had such errors: observed alone, their step
        times beside others were then off by 6 %, and by 76 % if they had been observed in a pair; those of the rest
        by 14 and 13 %.

        Args:
            posterior: what is known so far.
            pairs: of one job, the first of each, and its partners.
        """
        rows, log_slowdown = posterior.rows_of(pairs)
        steep = slope(log_slowdown, posterior.config.parameters.knee)
        members, place = np.unique(rows.own, return_inverse=True)
        solo, unconfirmed, predicted = _solo(posterior, pairs, members, place)
        # A slowdown absorbs what is wrong with the solo step time that it was learned with.
        keys = list(zip(rows.own.tolist(), rows.partners[:, 0].tolist(), strict=True))
        shifts, _ = posterior.state.pair_answers.beside(keys)
        absorbed = [-s.covariance / s.solo_variance if s.solo_variance else 0.0 for s in shifts]
        count = len(rows)
        share = np.zeros((count + 1, len(members)))
        share[np.arange(count), place] = 1.0 - np.array(absorbed) / steep
        share[count, place[0]] = 1.0
        total = np.zeros((2 * count + 1, 2 * count + 1))
        total[: count + 1, : count + 1] = share @ solo @ share.T
        of_slowdowns = posterior.state.process.joint(posterior.members, rows)[1] / np.outer(steep, steep)
        total[:count, :count] += of_slowdowns
        noise = np.full(len(total), posterior.config.parameters.noise)
        noise[:count] += share[np.arange(count), place] ** 2 * unconfirmed[place]
        alone = np.arange(count, len(total)) if predicted[place[0]] else np.zeros(0, np.int64)
        if len(alone):
            told = np.diag(of_slowdowns) * (1.0 / _LEFT_ONCE_ALONE - 1.0)
            here, beside = np.arange(count), alone[1:]
            total[here, here] += told
            total[here, beside] = total[beside, here] = total[beside, beside] = told
            noise[beside] = _EXACTLY
        return cls(Expectation(np.zeros(len(total)), total), noise, alone)

    @classmethod
    def of_one(cls, posterior: Posterior, alone: ColocationSet) -> ExpectedSteps:
        """The error of the solo step time of a job that fits beside no other: R is 0.

        Args:
            posterior: what is known so far.
            alone: the job's set of one.
        """
        members, first = posterior.rows_of([alone])[0].own, np.zeros(1, np.int64)
        solo, _, predicted = _solo(posterior, [alone], members, first)
        noise = np.full(1, posterior.config.parameters.noise)
        return cls(Expectation(np.zeros(1), solo), noise, first[predicted])


def _solo(
    posterior: Posterior, pairs: Sequence[ColocationSet], members: Integers, place: Integers
) -> tuple[Floats, Floats, Bools]:
    """[J, J] covariance of the log solo step times of `members` [J], [J] the part that is not in common with any
    other job, and [J] whether they are predictions.

    Args:
        place: [R] of the members of `pairs` among them.
    """
    errors, known = posterior.state.solo, posterior.members.take(members)
    predicted = posterior.corrects_solo(members)
    covariance = errors.joint(known)[1]
    apart = np.flatnonzero(errors.standing_apart(known))
    covariance[apart] = covariance[:, apart] = 0.0
    covariance[apart, apart] = errors.answer(known)[1][apart]
    covariance *= np.outer(predicted, predicted)
    answers = [m.solo_step_time_s for prediction in posterior.predict_many(pairs) for m in prediction.members]
    whole = np.zeros(len(members))
    whole[place] = [_variance(answer) for answer in answers]
    unconfirmed = np.maximum(whole - np.diag(covariance), 0.0) * predicted
    covariance[np.diag_indices_from(covariance)] += unconfirmed
    return covariance, unconfirmed, predicted


def _variance(step_time_s: Quantity) -> float:
    return (math.log(step_time_s.upper / step_time_s.value) / LEVEL_90) ** 2
