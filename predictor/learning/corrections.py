"""Corrections of every job beside every other one, worked out once, so that a batch of sets only looks them up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.kernel import Members
from predictor.learning.process import Process

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Jobs of one device whose corrections are kept; with more, they are worked out anew from those asked for.
_KEPT = 2048


class Corrections:
    """Posterior means by member; one block of [V, V] per device, sharing mode and campaign.

    Args:
        process: given what was observed. Nothing here outlives it.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._local = np.zeros(0, np.int64)
        self._known: dict[int, Integers] = {}
        self._blocks: dict[int, Floats] = {}
        self._solo: Floats = np.zeros(0)
        self._lock = threading.Lock()

    def solo(self, members: Members) -> Floats:
        """[V] error of the predicted log solo step time of all members."""
        with self._lock:
            if len(self._solo) < len(members):
                new = members.take(slice(len(self._solo), len(members)))
                self._solo = np.concatenate([self._solo, self.process.solo(new)])
            return self._solo

    def of_sets(self, members: Members, rows: Integers) -> Floats:
        """[S, M] mean correction of each member beside the others of its set; 0 for a member alone.

        Args:
            members: all there are; numbers keep their meaning between calls.
            rows: [S, M] numbers of members, -1 where a set has fewer; members of a set share their setting.
        """
        result = np.zeros(rows.shape)
        if rows.shape[1] < 2 or not len(self.process.evidence.rows):
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

    def _of_setting(self, members: Members, setting: int, rows: Integers) -> Floats:
        with self._lock:
            self._meet(members, setting, rows)
            block, place = self._blocks[setting], self._local[rows]
        size = rows.shape[1]
        if size == 2 and (rows >= 0).all():
            width, flat = block.shape[1], block.ravel()
            first, second = place[:, 0], place[:, 1]
            return np.stack([flat[first * width + second], flat[second * width + first]], 1)
        present = rows >= 0
        place = np.where(present, place, 0)
        total, count = np.zeros(rows.shape), np.maximum(present.sum(1) - 1, 1)
        for i in range(size):
            for j in range(size):
                if i != j:
                    both = present[:, i] & present[:, j]
                    total[:, i] += np.where(both, block[place[:, i], place[:, j]], 0.0)
        return total / count[:, None]

    def _meet(self, members: Members, setting: int, rows: Integers) -> None:
        """Have a block with all members of `rows`."""
        if len(self._local) < len(members):
            more = np.full(len(members) - len(self._local), -1, dtype=np.int64)
            self._local = np.concatenate([self._local, more])
        lacking = rows[(self._local[rows] < 0) & (rows >= 0)]
        if not len(lacking) and setting in self._blocks:
            return
        new = np.unique(lacking)
        known = self._known.get(setting, np.zeros(0, np.int64))
        if len(known) + len(new) > _KEPT and len(known):
            self._local[known] = -1
            known, new = np.zeros(0, np.int64), np.unique(rows[rows >= 0])
            self._blocks.pop(setting)
        everyone = np.concatenate([known, new])
        old, fresh, both = (members.take(index) for index in (known, new, everyone))
        block = np.empty((len(everyone), len(everyone)))
        if len(known):
            block[: len(known), : len(known)] = self._blocks[setting]
            block[: len(known), len(known) :] = self.process.table(old, fresh)
        block[len(known) :] = self.process.table(fresh, both)
        self._known[setting], self._blocks[setting] = everyone, block
        self._local[new] = np.arange(len(known), len(everyone))
