"""Jobs whose observed step times alone are further from the prediction than the process can explain.

A step time alone is a measurement of what was predicted, so it takes the prediction's place, as `step_time_s` in a SPEC would. Nothing of it
reaches other jobs: why a graph was so far off (an input pipeline, say) is not in any graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.config import PosteriorConfig
from predictor.learning.kernel import Members, kernel_of_itself
from predictor.learning.known_members import KnownMembers
from predictor.learning.observed import Observed
from predictor.learning.process import CANNOT_BE

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

_MOST_JOBS = 2**31


class MeasuredAlone:
    """By device and job; none by default.

    Args:
        jobs: [J] numbers of device and job as one (`_number`), rising.
        shifts: [J] log of measured over predicted step time alone.
    """

    def __init__(self, jobs: Integers | None = None, shifts: Floats | None = None) -> None:
        self._jobs = np.zeros(0, np.int64) if jobs is None else jobs
        self._shifts = np.zeros(0) if shifts is None else shifts

    @classmethod
    def among(
        cls, seen: Observed, kept: Integers, known: KnownMembers, config: PosteriorConfig
    ) -> MeasuredAlone:
        """Of rows `kept` of what was observed."""
        own, p = seen.own[kept], config.parameters
        is_alone = (seen.partners[kept] < 0).all(1) & known.solo_predicted[own] & config.learn_solo
        rows = kept[is_alone]
        own = seen.own[rows]
        if not len(rows):
            return cls()
        error = seen.log_step_s[rows] - seen.log_solo_s[rows]
        weight = np.minimum(seen.count[rows], config.repeats)
        # The same job alone under several sharing modes is one measurement.
        jobs, index = np.unique(_number(known.members)[own], return_inverse=True)
        total = np.bincount(index, weight)
        mean = np.bincount(index, weight * error) / total
        prior = float(kernel_of_itself(p).solo[0, 0])
        off = np.abs(mean) > CANNOT_BE * np.sqrt(prior + p.noise / np.minimum(total, config.repeats))
        return cls(jobs[off], mean[off])

    def of(self, members: Members) -> Floats:
        """[V] log of measured over predicted step time alone; 0 where the process explains it."""
        if not len(self._jobs):
            return np.zeros(len(members))
        wanted = _number(members)
        at = np.minimum(np.searchsorted(self._jobs, wanted), len(self._jobs) - 1)
        return np.where(self._jobs[at] == wanted, self._shifts[at], 0.0)


def _number(members: Members) -> Integers:
    return members.device * _MOST_JOBS + members.job
