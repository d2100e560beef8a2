"""A process's means for every member beside every other one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, MemberKernel, Members

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Cached members of one setting; beyond that, the block is rebuilt from the members of the call.
_KEPT = 2048
# Rows answered together if all of a call have more members than that.
_TOGETHER = 128


class PairTable(Protocol):
    """Anything with a mean for any member beside any partner."""

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] mean of every member beside every partner."""
        ...


@dataclass(frozen=True)
class PairWeights:
    """A conditioned process, reduced to weights of the pairs it has seen.

    Attributes:
        parameters: kernel parameters.
        members: the U members that it has seen.
        weight: [U, U] weight of every member beside every partner.
        numbers: [U] numbers of these members in the evidence.
        private: (setting, job, mean) of jobs with an effect of their own.
    """

    parameters: KernelParameters
    members: Members
    weight: Floats
    numbers: Integers
    private: tuple[tuple[int, int, float], ...] = ()

    def table(self, own: Members, partners: Members) -> Floats:
        """[V, W] mean of every member beside every partner, without forming a row for each."""
        weight = self.weight
        kernel = MemberKernel.of(self.parameters, own, self.members)
        beside = kernel if partners is own else MemberKernel.of(self.parameters, partners, self.members)
        total = (
            kernel.constant * weight.sum()
            + (kernel.job @ weight.sum(1))[:, None]
            + beside.partner @ weight.sum(0)
        )
        for left, right in zip(kernel.left, beside.right, strict=True):
            total += (left @ weight) @ right.T
        for setting, job, extra in self.private:
            total[(own.setting == setting) & (own.job == job)] += extra
        return np.asarray(total)


class PairBlocks:
    """Cached means by member; one block of [V, V] per device and sharing mode.

    Args:
        means: means of pairs.
        answer: maps the mean over partners to an answer; by default, the answer is the mean.
        alone: the answer for a member without partners.
    """

    def __init__(
        self, means: PairTable, answer: Callable[[Floats], Floats] | None = None, alone: float = 0.0
    ) -> None:
        self.means, self._answer, self._alone = means, answer, alone
        self._members: Members | None = None
        self._local = np.zeros(0, np.int64)
        self._known: dict[int, Integers] = {}
        self._blocks: dict[int, Floats] = {}
        self._pairs: dict[int, Floats] = {}
        self._lock = threading.Lock()

    def of_sets(self, members: Members, rows: Integers) -> Floats:
        """[S, M] answer for each member beside the others of its set.

        Args:
            members: all members so far; numbers keep their meaning between calls.
            rows: [S, M] numbers of members, -1 where a set has fewer; members of a set share their setting.
        """
        result = np.full(rows.shape, self._alone)
        if rows.shape[1] < 2 or not len(rows):
            return result
        settings = members.setting[rows[:, 0]]
        present = np.flatnonzero(np.bincount(settings))
        for setting in present.tolist():
            if len(present) == 1:
                result = self._of_setting(members, setting, rows)
            else:
                here = settings == setting
                result[here] = self._of_setting(members, setting, rows[here])
        return result

    def of_pairs(self, members: Members, setting: int, rows: Integers) -> Floats:
        """[P] means of the first of each of `rows` [P, 2] beside the second; all are of one setting."""
        if len(parts := _parts(rows)) > 1:
            return np.concatenate([self._emptied().of_pairs(members, setting, part) for part in parts])
        with self._lock:
            self._cache(members, setting, rows)
            return np.asarray(self._blocks[setting][self._local[rows[:, 0]], self._local[rows[:, 1]]])

    def _emptied(self) -> PairBlocks:
        return PairBlocks(self.means, self._answer, self._alone)

    def _of_setting(self, members: Members, setting: int, rows: Integers) -> Floats:
        if len(parts := _parts(rows)) > 1:
            return np.concatenate([self._emptied().of_sets(members, part) for part in parts])
        with self._lock:
            self._cache(members, setting, rows)
            block, pairs = self._blocks[setting], self._pairs[setting]
            place = np.where(rows >= 0, self._local[rows], 0)
        size = rows.shape[1]
        if size == 2 and (rows >= 0).all():
            width, flat = pairs.shape[1], pairs.ravel()
            first, second = place[:, 0], place[:, 1]
            return np.stack([flat[first * width + second], flat[second * width + first]], 1)
        present = rows >= 0
        occupancy = np.where(present, members.occupancy[rows], 0.0)
        beside = occupancy[:, None, :] * ~np.eye(size, dtype=bool)
        means = beside * block[place[:, :, None], place[:, None, :]]
        # Column by column: numpy reduces rows of two or three slowly.
        total, weight = (sum(each.T, np.zeros(rows.shape[::-1])).T for each in (means, beside))
        answer = total / np.where(weight > 0, weight, 1.0)
        if self._answer is not None:
            answer = self._answer(answer)
        return np.where(present & (present.sum(1) > 1)[:, None], answer, self._alone)

    def _cache(self, members: Members, setting: int, rows: Integers) -> None:
        """Make sure that the setting's block has all members of `rows`."""
        # Another thread may have come with more members.
        if self._members is None or len(self._members) < len(members):
            self._members = members
            more = np.full(len(members) - len(self._local), -1, dtype=np.int64)
            self._local = np.concatenate([self._local, more])
        members = self._members
        lacking = rows[(self._local[rows] < 0) & (rows >= 0)]
        if not len(lacking) and setting in self._blocks:
            return
        new = np.unique(lacking)
        known = self._known.get(setting, np.zeros(0, np.int64))
        if len(known) + len(new) > _KEPT and len(known):
            self._local[known] = -1
            known, new = np.zeros(0, np.int64), np.unique(rows[rows >= 0])
            del self._blocks[setting], self._pairs[setting]
        everyone = np.concatenate([known, new])
        old, fresh, both = (members.take(index) for index in (known, new, everyone))
        right = self.means.table(old, fresh) if len(known) else np.zeros((0, len(new)))
        below = self.means.table(fresh, both)
        self._blocks[setting] = _grown(self._blocks.get(setting), right, below)
        if self._answer is None:
            self._pairs[setting] = self._blocks[setting]
        else:
            answers = self._answer(right), self._answer(below)
            self._pairs[setting] = _grown(self._pairs.get(setting), *answers)
        self._known[setting] = everyone
        self._local[new] = np.arange(len(known), len(everyone))


def _parts(rows: Integers) -> list[Integers]:
    """`rows` in parts, if one block for all their members would be too large: it grows with the square of these."""
    if rows.size <= _KEPT or len(rows) < 2 or len(np.unique(rows)) <= _KEPT:
        return [rows]
    return np.array_split(rows, -(-len(rows) // min(_TOGETHER, len(rows) // 2)))


def _grown(block: Floats | None, right: Floats, below: Floats) -> Floats:
    """[V + W, V + W] from `block` [V, V], `right` [V, W] and `below` [W, V + W]; None stands for V = 0."""
    return below if block is None else np.concatenate([np.concatenate([block, right], 1), below])
