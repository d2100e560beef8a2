"""Prior variance of members beside partners, and covariances between partners, which are cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, MemberKernel, Members, kernel_of_itself
from predictor.gaussian_process.pair_table import PairBlocks

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Numbers in the largest array made at a time.
_TOGETHER = 2**21


class _SameMember:
    """Covariance of a member beside one partner with itself beside another; the same for all members."""

    def __init__(self, parameters: KernelParameters) -> None:
        self.parameters = parameters

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] for every two partners."""
        return self.of(MemberKernel.of(self.parameters, own, partners))

    def of(self, kernel: MemberKernel) -> Floats:
        """For every two partners, of any shape."""
        itself = kernel_of_itself(self.parameters)
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
        self._same = _SameMember(parameters)
        self.beside_one = float(self._same.of(kernel_of_itself(parameters))[0, 0])
        self._together = PairBlocks(self._same)

    def beside(self, members: Members, partners: Integers) -> Floats:
        """[R] variance of members beside partners [R, K], -1 where there are fewer; 0 without partners."""
        present = partners >= 0
        count = present.sum(1)
        result = np.where(count == 1, self.beside_one, 0.0)
        several, width = np.flatnonzero(count > 1), members.place.shape[1]
        # Row by row, because the partners of all rows are too many to compare with each other.
        together = max(1, _TOGETHER // (partners.shape[1] * max(partners.shape[1], width)))
        for start in range(0, len(several), together):
            rows = several[start : start + together]
            occupancy = np.where(present[rows], members.occupancy[partners[rows]], 0.0)
            share = occupancy / occupancy.sum(1, keepdims=True)
            kernel = MemberKernel.within(self._same.parameters, members, partners[rows])
            result[rows] = np.einsum("ra,rb,rab->r", share, share, self._same.of(kernel))
        return result

    def between(self, members: Members, one: Integers, other: Integers) -> Floats:
        """[P] covariance of any member beside `one` with the same member beside `other`, both of one
        setting."""
        settings, result = members.setting[one], np.zeros(len(one))
        for setting in np.unique(settings).tolist():
            rows = np.flatnonzero(settings == setting)
            result[rows] = self._together.of_pairs(members, setting, np.stack([one[rows], other[rows]], 1))
        return result
