"""Jobs whose observed solo step times are further from the prediction than the process can explain.

An observed solo step time replaces the prediction, as `step_time_s` in a SPEC would. It does not affect other
jobs, because the cause of such an error (an input pipeline, say) is not in any graph.
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
    """Measured solo step times by device and job; none by default.

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
        """From the rows `kept` of the observations."""
        own, p = seen.own[kept], config.parameters
        is_alone = (seen.partners[kept] < 0).all(1) & known.solo_predicted[own] & config.learn_solo
        rows = kept[is_alone]
        own = seen.own[rows]
        if not len(rows):
            return cls()
        error = seen.log_step_s[rows] - seen.log_solo_s[rows]
        weight = np.minimum(seen.count[rows], config.repeats)
        # The same job alone under several sharing modes counts as one measurement.
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
