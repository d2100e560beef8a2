"""Prior variance of members beside partners; the covariances between partners are cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.kernel import KernelParameters, MemberKernel, Members, kernel_of_itself
from predictor.learning.pair_table import PairBlocks

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


class _SameMember:
    """Covariance of a member beside one partner with itself beside another; the same for all members."""

    def __init__(self, parameters: KernelParameters) -> None:
        self.parameters = parameters

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] for every two partners."""
        itself, kernel = kernel_of_itself(self.parameters), MemberKernel.of(self.parameters, own, partners)
        total = itself.job[0, 0] + kernel.partner + kernel.constant
        for left, right in zip(itself.left, kernel.right, strict=True):
            total += left[0, 0] * right
        return np.asarray(total)


class PriorVariance:
    """Prior variance of rows (own, partners); rows differ only in how alike their partners are.

    Attributes:
        beside_one: variance of a member beside one partner.
    """

    def __init__(self, parameters: KernelParameters) -> None:
        one = np.zeros(1, dtype=np.int64)
        same = _SameMember(parameters)
        self.beside_one = float(kernel_of_itself(parameters).one_by_one(one, one, one, one)[0])
        self._together = PairBlocks(same)

    def beside(self, members: Members, partners: Integers) -> Floats:
        """[R] variance of members beside partners [R, K], -1 where there are fewer; 0 without partners."""
        present = partners >= 0
        count = present.sum(1)
        result = np.where(count == 1, self.beside_one, 0.0)
        several = np.flatnonzero(count > 1)
        first = partners[several, present[several].argmax(1)]
        settings = members.setting[first]
        for setting in np.unique(settings).tolist():
            rows = several[settings == setting]
            block, place = self._together.block(members, setting, partners[rows])
            share = present[rows] / count[rows][:, None]
            both = block[place[:, :, None], place[:, None, :]]
            result[rows] = np.einsum("ra,rb,rab->r", share, share, both)
        return result

    def between(self, members: Members, one: Integers, other: Integers) -> Floats:
        """[P] covariance of any member beside `one` with the same member beside `other`, both of one
        setting."""
        settings, result = members.setting[one], np.zeros(len(one))
        for setting in np.unique(settings).tolist():
            rows = np.flatnonzero(settings == setting)
            block, place = self._together.block(members, setting, np.stack([one[rows], other[rows]], 1))
            result[rows] = block[place[:, 0], place[:, 1]]
        return result
