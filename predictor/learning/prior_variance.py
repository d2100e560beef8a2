"""Prior variance of members beside partners, with what it takes of each two partners kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.kernel import KernelParameters, MemberKernel, Members, kernel_of_itself

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Members whose covariances are kept; with more, it begins anew with those asked for.
_KEPT = 1024


class PriorVariance:
    """Of rows (own, partners) of a kernel.

    A member has the same covariance with itself whatever it is, so that rows differ only in how alike their partners are.
    """

    def __init__(self, parameters: KernelParameters) -> None:
        self.parameters = parameters
        itself = kernel_of_itself(parameters)
        self._one = float(itself.job[0, 0] + itself.constant + itself.partner[0, 0])
        self._one += sum(float(a[0, 0] * b[0, 0]) for a, b in zip(itself.left, itself.right, strict=True))
        self._place = np.zeros(0, np.int64)
        self._known = np.zeros(0, np.int64)
        self._together: Floats = np.zeros((0, 0))
        self._lock = threading.Lock()

    def beside(self, members: Members, partners: Integers) -> Floats:
        """[R] for members beside partners [R, K], -1 where there are fewer; 0 without any."""
        present = partners >= 0
        count = present.sum(1)
        result = np.where(count == 1, self._one, 0.0)
        several = np.flatnonzero(count > 1)
        if not len(several):
            return result
        partners, present = partners[several], present[several]
        with self._lock:
            self._meet(members, partners[present])
            place, together = self._place[partners], self._together
        place = np.where(present, place, 0)
        share = present / count[several][:, None]
        both = together[place[:, :, None], place[:, None, :]]
        result[several] = np.einsum("ra,rb,rab->r", share, share, both)
        return result

    def _meet(self, members: Members, asked: Integers) -> None:
        if len(self._place) < len(members):
            more = np.full(len(members) - len(self._place), -1, dtype=np.int64)
            self._place = np.concatenate([self._place, more])
        new = np.unique(asked[self._place[asked] < 0])
        if not len(new):
            return
        if len(self._known) + len(new) > _KEPT:
            self._place[self._known] = -1
            self._known, self._together, new = self._known[:0], np.zeros((0, 0)), np.unique(asked)
        everyone, start = np.concatenate([self._known, new]), len(self._known)
        below = self._of(members.take(new), members.take(everyone))
        above = np.concatenate([self._together, below[:, :start].T], 1)
        self._together = np.concatenate([above, below])
        self._known = everyone
        self._place[new] = np.arange(start, len(everyone))

    def _of(self, some: Members, others: Members) -> Floats:
        """[V, W] covariance of a member beside one of `some` with the same member beside one of `others`."""
        itself, kernel = kernel_of_itself(self.parameters), MemberKernel.of(self.parameters, some, others)
        total = itself.job[0, 0] + kernel.partner + kernel.constant
        for left, right in zip(itself.left, kernel.right, strict=True):
            total += left[0, 0] * right
        return np.asarray(total)
