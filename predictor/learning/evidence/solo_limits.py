"""Limits of corrected solo step times: the data sheet, and the same job observed alone with other options or on other
slices of the card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.cost.order import at_most
from models.features import Floats
from predictor.examples.plausibility import BOOSTED
from predictor.gaussian_process.job_keys import jobs_on_devices, unfrozen_on_devices
from predictor.gaussian_process.known_members import KnownMembers
from predictor.learning.evidence.observed import Observed
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Comparisons made at once.
_AT_ONCE = 1_000_000


class SoloLimits:
    """Limits of the errors of predicted log solo step times.

    A step takes no less time than the same job's with options that ask for less (`models.cost.order`: a smaller batch,
    more frozen layers), or on a larger slice of the card, that was observed alone, and no more than with options that
    ask for more, or on a smaller slice; where two such observations contradict each other, it lies between them. An
    implausible one that stands for its own job (`SoloErrors`) limits no other. Nor does a correction make a step shorter
    than at the device's peak rates, unless the job was seen to be faster than that beside others.

    Args:
        seen: the observations.
        told: [V] number of each known member once what was observed of it alone is stated.
        known: the members.
        solo: errors of solo step times.
    """

    def __init__(self, seen: Observed, told: Integers, known: KnownMembers, solo: SoloErrors) -> None:
        self._known = known
        own, together = seen.own, (seen.partners >= 0).any(1)
        fast = np.flatnonzero(together & (seen.log_step_s < known.log_floor_s[own]))
        self._faster = np.unique(self._jobs(own[fast]))
        alone = np.unique(own[~together & (known.family[own] >= 0)])
        self._ignored, self._ignored_words = alone[:0], list[str]()
        if len(alone):
            apart = solo.standing_apart(known.members.take(alone)) != 0.0
            if apart.any():
                self._ignored = alone[apart][np.lexsort(known.load[alone[apart]].T[::-1])]
                self._ignored_words = _in_words(known, self._ignored, told[self._ignored])
            alone = alone[~apart]
        self._alone = alone[np.argsort(known.family[alone], kind="stable")]
        # As answers give it.
        self._log_step_s = known.log_step_s[told[self._alone]]

    def _jobs(self, members: Integers) -> Integers:
        return jobs_on_devices(self._known.members, members)

    def within(self, members: Integers, error: Floats) -> Floats:
        """[R] errors within their limits.

        Args:
            members: [R] numbers of members; error: [R] of their predicted log solo step times.
        """
        known = self._known
        predicted = known.log_step_s[members]
        if len(self._alone):
            low, high = self._ends(members)
            error = np.clip(error, np.minimum(low, high) - predicted, np.maximum(low, high) - predicted)
        return np.maximum(error, np.minimum(self._log_floor_s(members) - predicted, 0.0))

    def least_s(self, members: Integers) -> Floats:
        """[R] lower ends of the intervals of predicted solo step times, as in answers without observations."""
        return np.asarray(BOOSTED * np.exp(self._log_floor_s(members)))

    def _log_floor_s(self, members: Integers) -> Floats:
        """[R] log step times at the device's peak rates, -inf for jobs that were seen to be faster."""
        floor = self._known.log_floor_s[members]
        if len(self._faster):
            floor = np.where(np.isin(self._jobs(members), self._faster), -np.inf, floor)
        return floor

    def ignored_of(self, members: Sequence[int]) -> list[str]:
        """What was observed of the same jobs with other options than frozen layers and does not count, in words."""
        if not len(self._ignored):
            return []
        asked = np.array([m for m in members if self._known.solo_predicted[m]], np.int64)
        less, more = self._compared(self._ignored, asked)
        alike, used = (
            np.equal.outer(names[self._ignored], names[asked])
            for names in (self._known.family, unfrozen_on_devices(self._known.members))
        )
        found = np.flatnonzero((alike & ~used & (less | more)).any(1))
        return list(dict.fromkeys(self._ignored_words[k] for k in found))

    def _ends(self, members: Integers) -> tuple[Floats, Floats]:
        """[R] longest observed log step time of options that ask for less than a member's, -inf without any, and
        shortest of those that ask for more, inf without any."""
        low, high = np.full(len(members), -np.inf), np.full(len(members), np.inf)
        family = self._known.family[members]
        order = np.argsort(family, kind="stable")
        families, first, count = np.unique(family[order], return_index=True, return_counts=True)
        of_alone = self._known.family[self._alone]
        starts, ends = (np.searchsorted(of_alone, families, side) for side in ("left", "right"))
        for k in np.flatnonzero(ends > starts):
            observed, step = self._alone[starts[k] : ends[k]], self._log_step_s[starts[k] : ends[k], None]
            size = max(_AT_ONCE // len(step), 1)
            for at in range(first[k], first[k] + count[k], size):
                places = order[at : min(at + size, first[k] + count[k])]
                less, more = self._compared(observed, members[places])
                low[places] = np.broadcast_to(step, less.shape).max(0, where=less, initial=-np.inf)
                high[places] = np.broadcast_to(step, more.shape).min(0, where=more, initial=np.inf)
        return low, high

    def _compared(self, one: Integers, other: Integers) -> tuple[Bools, Bools]:
        """[N, M] whether members one [N] ask for less than other [M], and for more; of one family."""
        left, right = self._known.load[one], self._known.load[other]
        differs = (left != left[0]).any(0) | (right != left[0]).any(0)
        below = at_most(left[:, differs], right[:, differs])
        above = at_most(right[:, differs], left[:, differs]).T
        return below & ~above, above & ~below


def _in_words(known: KnownMembers, alone: Integers, told: Integers) -> list[str]:
    """What was observed of the members `alone` and is implausible."""
    keys = known.keys()
    return [
        f"{keys[number][0].model}: the step time of {math.exp(known.log_step_s[now]):.3g} s, observed alone on "
        f"{keys[number][1]} for {keys[number][0].without_solo()}, is implausible and does not limit other jobs"
        for number, now in zip(alone.tolist(), told.tolist(), strict=True)
    ]
