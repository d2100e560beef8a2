"""How much smaller than assumed the predictor's errors of slowdowns are, for each architecture on a device.

A predictor that was trained on some of a cluster's jobs errs far less on these than on others. The error of a set is
therefore a Gaussian process times a scale (Rasmussen and Williams 2006, section 4.2.3), which is learned from the
observations: that of the member whose errors are largest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from models.features import Floats
from predictor.learning.prior_variance import PriorVariance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.covariances import Evidence
    from predictor.learning.kernel import KernelParameters, Members

# Factors on variances to choose from, the squares of scales; few, so that they rarely change.
_FACTORS = 2.0 ** np.arange(-5, 1)
# Standard deviation of the log of a factor before anything was observed.
_DEVIATION = 0.5
# Median of the square of a standard normal variable.
_MEDIAN = 0.455
# Mean squared errors of more than this many variances say that observations are wrong, not how large errors are.
_ABSURD = 9.0


@dataclass(frozen=True, slots=True)
class OutputScale:
    """Scales of errors.

    Attributes:
        table: [architectures, devices] scale, at most 1, by the numbers of `Members`; 1 beyond these.
    """

    table: Floats

    @classmethod
    def of(
        cls, parameters: KernelParameters, members: Members, own: Integers, error: Floats, noise: Floats
    ) -> OutputScale:
        """Learn from N observations, in any order: the most probable factors on variances (section 5.4.1).

        The median error of a job's sets says how well the job is known, even if a few of its partners are not.

        Args:
            own: [N] numbers of the observed members.
            error: [N] observed minus predicted, on the scale of `predictor.learning.link`.
            noise: [N] variance of the observation.
        """
        if not len(own):
            return cls(np.ones((0, 0)))
        variance, devices = PriorVariance(parameters).beside_one, int(members.device.max()) + 1
        place = members.model[own] * devices + members.device[own]
        there, count = np.unique(place, return_counts=True)
        squared, typical = (ndimage.median(values, place, there) for values in (error**2 / _MEDIAN, noise))
        spread = _FACTORS[:, None] * variance + typical
        unlikely = count * (np.log(spread) + squared / spread)
        unlikely += ((np.log(_FACTORS) / _DEVIATION) ** 2)[:, None]
        factor = np.where(squared > _ABSURD * (variance + typical), 1.0, _FACTORS[unlikely.argmin(0)])
        table = np.ones((int(members.model.max()) + 1) * devices)
        table[there] = np.sqrt(factor)
        return cls(table.reshape(-1, devices))

    def of_members(self, members: Members) -> Floats:
        """[V] scale of every member by itself."""
        result = np.ones(len(members))
        known = (members.model < len(self.table)) & (members.device < self.table.shape[1])
        result[known] = self.table[members.model[known], members.device[known]]
        return result

    def of_sets(self, members: Members, numbers: Integers) -> Floats:
        """[S] scale of sets, given as numbers [S, M] of their members, -1 where a set has fewer."""
        return largest(self.of_members(members), numbers)

    def removed(self, evidence: Evidence) -> Evidence:
        """The evidence as of a process without scales: what that says of a set is to be multiplied by the set's."""
        scale = self.of_sets(evidence.members, evidence.rows.members)
        return replace(
            evidence,
            target=evidence.target / scale,
            noise=evidence.noise / scale**2,
            steep=evidence.steep / scale,
            # Where all others are predicted well, a row that is not is news, not noise.
            doubt=scale**-2,
        )


def largest(scale: Floats, numbers: Integers) -> Floats:
    """[S] the largest of the scales [V] of the members `numbers` [S, M], -1 where a set has fewer."""
    result = scale[numbers[:, 0]]
    for column in numbers.T[1:]:
        result = np.maximum(result, np.where(column >= 0, scale[column], 0.0))
    return result
