"""Observed step times as evidence, in two stages: of solo step times, then of slowdowns given these.

A step time observed in a set is the product of a solo step time and a slowdown. If the former was predicted,
the observations of a job first give an estimate of it: the median of observed over predicted step times. How
its slowdowns differ from the predicted ones is learned given that estimate; they absorb what is wrong with it.
Learning both at once is a nonlinear problem whose solution is arbitrary: solo step times that are too short,
with slowdowns that are too large, fit nearly as well and make slowdowns vary less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.link import slope, to_scale
from predictor.gaussian_process.observed_sets import SET_VARIANCE
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.observed import Observed
from predictor.learning.evidence.prior import Prior
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.learning.evidence.solo_limits import SoloLimits

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Observed rows of a job whose partners count for the uncertainty of its estimate.
_PARTNERS = 16
# Noise moves in steps of this much of the log slope, so that most rows keep theirs when an estimate moves.
_GRID = 0.25


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Observations behind the evidence of a process.

    Attributes:
        process: conditioned on them.
        seen: the observations; rows: [R] numbers of those that are its evidence, in its order, after training pairs.
        expected: [R] predicted for these, on the scale of `predictor.gaussian_process.link`.
        known: the members.
    """

    process: Process
    seen: Observed
    rows: Integers
    expected: Floats
    known: KnownMembers


def of_solo_step_times(
    seen: Observed,
    kept: Integers,
    known: KnownMembers,
    config: PosteriorConfig,
    prior: Prior,
    earlier: SoloErrors | None = None,
) -> tuple[SoloErrors, Integers, Integers]:
    """Errors of predicted solo step times from the rows `kept`.

    Only observations alone count for jobs that have some. Of `earlier` errors, what was computed is reused.

    Returns:
        the errors, the rows that they are from, and for each of these the job's place among the errors.
    """
    p = prior.parameters
    kept = kept[known.solo_predicted[seen.own[kept]]]
    if not (config.learn_solo and len(kept)):
        return SoloErrors.nothing(p), kept[:0], kept[:0]
    members, own = known.members, seen.own[kept]
    together = np.asarray((seen.partners[kept] >= 0).any(1))
    # Job by job, rows alone first.
    order = np.lexsort((seen.rank[kept], together, members.job[own], members.device[own]))
    kept, own, together = kept[order], own[order], together[order]
    new = (np.diff(members.job[own], prepend=-1) != 0) | (np.diff(members.device[own], prepend=-1) != 0)
    job, first = np.cumsum(new) - 1, np.flatnonzero(new)
    like = together == together[first[job]]
    kept, own, together, job = kept[like], own[like], together[like], job[like]
    if len(first) > config.most_rows:
        lowest = np.argpartition(seen.rank[kept[_starts(job)]], config.most_rows)[: config.most_rows]
        some = np.isin(job, lowest)
        kept, own, together = kept[some], own[some], together[some]
        job = np.unique(job[some], return_inverse=True)[1]
    first = _starts(job)
    expected = seen.log_solo_s[kept] + np.where(together, seen.log_slowdown[kept], 0.0)
    low, high = _middle(seen.log_step_s[kept] - expected, job)
    # Of two that contradict each other, the one nearer to the prediction.
    error = np.where(np.abs(low) < np.abs(high), low, high)
    steep = _middle(slope(seen.log_slowdown[kept], p.knee), job)[0]
    place = np.arange(len(job)) - first[job]
    few = place < _PARTNERS
    width = seen.partners.shape[1]
    partners = np.full((len(first), _PARTNERS, width), -1, dtype=np.int64)
    partners[job[few], place[few]] = seen.partners[kept[few]]
    of_slowdown = prior.variances(members, Rows(own[first], partners.reshape(len(first), -1)))
    count = np.minimum(np.bincount(job, seen.count[kept]), config.repeats)
    noise = of_slowdown / steep**2 + p.noise / count
    confirmed = ~together[first] | (np.bincount(job) > 1)
    return SoloErrors.after(earlier, p, members.take(own[first]), error, noise, confirmed), kept, job


def of_slowdowns(
    seen: Observed,
    kept: Integers,
    known: KnownMembers,
    config: PosteriorConfig,
    solo: SoloErrors,
    limits: SoloLimits,
) -> Evidence:
    """Evidence of the process from the rows `kept`, all of jobs beside others, given solo step times."""
    p, own = config.parameters, seen.own[kept]
    wrong, apart = np.zeros(len(known.members)), np.zeros(len(known.members))
    if len(solo):
        used = np.unique(own[known.solo_predicted[own]])
        members = known.members.take(used)
        wrong[used] = limits.within(used, solo.mean_of(known.members, used))
        apart[used] = solo.standing_apart(members)
    slowdown = seen.log_step_s[kept] - seen.log_solo_s[kept] - wrong[own]
    count, steep = np.minimum(seen.count[kept], config.repeats), slope(slowdown, p.knee)
    # What a set of three or more does beyond its pairs says nothing of them.
    own_effect = np.where((seen.partners[kept] >= 0).sum(1) > 1, SET_VARIANCE, 0.0)
    grid = np.where(known.solo_predicted[own], _GRID * np.round(np.log(steep) / _GRID), np.log(steep))
    return Evidence(
        known.members,
        Rows(own, seen.partners[kept]),
        to_scale(slowdown, p.knee) - to_scale(seen.log_slowdown[kept], p.knee),
        (p.noise / count + apart[own] ** 2) * np.exp(2.0 * grid) + own_effect,
        seen.rank[kept],
        count,
        steep,
        own_effect=own_effect,
    )


def _starts(groups: Integers) -> Integers:
    """First row of each of the groups 0, 1, ..., whose rows are adjacent."""
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _middle(values: Floats, groups: Integers) -> tuple[Floats, Floats]:
    """Lower and upper median of each of the groups 0, 1, ..., whose rows are adjacent."""
    values, first, count = values[np.lexsort((values, groups))], _starts(groups), np.bincount(groups)
    return values[first + (count - 1) // 2], values[first + count // 2]
