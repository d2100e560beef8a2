"""Limits of corrected solo step times: the data sheet, and other batch sizes of the job observed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.known_members import KnownMembers
from predictor.learning.observed import Observed
from predictor.learning.solo_errors import SoloErrors

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Beyond any batch size and number of a job, so that one number orders two.
_MANY = 2**32


class SoloLimits:
    """Limits of the errors of predicted log solo step times.

    A step takes no less time than the same job's with a smaller batch that was observed alone on the device, and no
    more than with a larger one; where two such observations contradict each other, it lies between them. An
    implausible one that stands for its own job (`SoloErrors`) limits no other. Nor does a correction make a step
    shorter than at the device's peak rates, unless the job was seen to be faster than that beside others.

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
        members = known.members
        self._faster = np.unique(self._jobs(own[fast]))
        alone = np.unique(own[~together & (known.family[own] >= 0)])
        self._ignored: dict[int, dict[int, str]] = {}
        if len(alone):
            apart = solo.standing_apart(members.take(alone)) != 0.0
            if apart.any():
                self._ignored = _in_words(known, alone[apart], told[alone[apart]])
            alone = alone[~apart]
        key, first = np.unique(self._keys(alone), return_index=True)
        # As answers give it.
        step = known.log_step_s[told[alone[first]]]
        self._key, self._longest, self._shortest = key, step.copy(), step.copy()
        family = key // _MANY
        starts = np.flatnonzero(np.diff(family, prepend=-1))
        several = np.flatnonzero(np.diff(starts, append=len(key)) > 1)
        for start in starts[several].tolist():
            of_one = slice(start, int(np.searchsorted(family, family[start], "right")))
            self._longest[of_one] = np.maximum.accumulate(step[of_one])
            self._shortest[of_one] = np.minimum.accumulate(step[of_one][::-1])[::-1]

    def _keys(self, members: Integers) -> Integers:
        return self._known.family[members] * _MANY + self._known.batch_size[members]

    def _jobs(self, members: Integers) -> Integers:
        known = self._known.members
        return known.device[members] * _MANY + known.job[members]

    def within(self, members: Integers, error: Floats) -> Floats:
        """[R] errors within their limits.

        Args:
            members: [R] numbers of members; error: [R] of their predicted log solo step times.
        """
        known = self._known
        predicted, floor = known.log_step_s[members], known.log_floor_s[members]
        if len(self._key):
            asked = self._keys(members)
            smaller = self._observed(self._longest, asked, np.searchsorted(self._key, asked, "left") - 1)
            larger = self._observed(self._shortest, asked, np.searchsorted(self._key, asked, "right"))
            low = np.where(np.isnan(smaller), -np.inf, smaller) - predicted
            high = np.where(np.isnan(larger), np.inf, larger) - predicted
            error = np.clip(error, np.minimum(low, high), np.maximum(low, high))
        if len(self._faster):
            floor = np.where(np.isin(self._jobs(members), self._faster), -np.inf, floor)
        return np.maximum(error, np.minimum(floor - predicted, 0.0))

    def ignored_of(self, members: Sequence[int]) -> list[str]:
        """What was observed of the same jobs with other batch sizes and does not count, in words."""
        if not self._ignored:
            return []
        families = dict.fromkeys(int(self._known.family[m]) for m in members if self._known.solo_predicted[m])
        return [said for family in families for said in self._ignored.get(family, {}).values()]

    def _observed(self, step: Floats, asked: Integers, place: Integers) -> Floats:
        """[R] `step` at the places of observations, NaN where that is of no batch size of the job."""
        place = np.where(place < len(step), place, -1)
        same = (place >= 0) & (self._key[place] // _MANY == asked // _MANY)
        return np.where(same, step[place], np.nan)


def _in_words(known: KnownMembers, alone: Integers, told: Integers) -> dict[int, dict[int, str]]:
    """By family and batch size, what was observed of the members `alone` and is implausible."""
    keys, result = known.keys(), dict[int, dict[int, str]]()
    sizes = known.batch_size[alone]
    for k in np.argsort(sizes, kind="stable").tolist():
        number, step_s = int(alone[k]), math.exp(known.log_step_s[told[k]])
        said = f"{keys[number][0].model}: its step time of {step_s:.3g} s, observed alone with batch size {sizes[k]}, "
        said += "is implausible and says nothing of others"
        result.setdefault(int(known.family[number]), {})[int(sizes[k])] = said
    return result
