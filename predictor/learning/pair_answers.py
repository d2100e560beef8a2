"""What the process says of members beside partners, put together from pairs, so that a new set of known jobs costs a mean and no solve."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.learning.kernel import Members, kernel_of_itself
from predictor.learning.prior_variance import PriorVariance
from predictor.learning.process import Process
from predictor.learning.rows import Rows

# Pairs that are kept; a pair is some kilobytes.
_KEPT = 8192
_ALONE = -1


@dataclass(frozen=True, slots=True)
class Answers:
    """Of R rows.

    Attributes:
        mean, variance, prior_variance: [R].
        added: [R, N] what each row of the evidence adds to the mean.
    """

    mean: Floats
    variance: Floats
    prior_variance: Floats
    added: Floats


class PairAnswers:
    """Means, explained variances and influences of pairs (own, partner) of numbers of members; partner -1: the solo step time.

    Args:
        process: given what was observed. Nothing here outlives it.
        prior: variances under the process's kernel, which do.
    """

    def __init__(self, process: Process, prior: PriorVariance) -> None:
        self.process, self._prior = process, prior
        self._index: dict[tuple[int, int], int] = {}
        self._mean = np.zeros(0)
        self._half = np.zeros((0, process.explained_width), np.float32)
        self._added = np.zeros((0, len(process.used)), np.float32)
        self._lock = threading.Lock()

    def beside(self, members: Members, own: Integers, partners: Integers) -> Answers:
        """Rows of members beside partners [R, K], -1 where there are fewer; a member without any is not moved."""
        has_partner = partners >= 0
        share = has_partner / np.maximum(has_partner.sum(1, keepdims=True), 1)
        # A member's solo step time is no part of this: what stands for a missing partner has no share.
        pairs = np.stack([np.broadcast_to(own[:, None], partners.shape), partners], -1)
        answers = self._answers(members, pairs, share, self._prior.beside(members, partners))
        extra = np.where(has_partner.any(1), self.process.own_variance(members, own), 0.0)
        return Answers(
            answers.mean, np.maximum(answers.variance + extra, 0.0), answers.prior_variance, answers.added
        )

    def alone(self, members: Members, own: Integers) -> Answers:
        """Solo step times of members."""
        alone = np.full((len(own), 1), _ALONE, dtype=np.int64)
        prior = np.full(len(own), kernel_of_itself(self.process.parameters).solo[0, 0])
        pairs = np.stack([own[:, None], alone], -1)
        return self._answers(members, pairs, np.ones((len(own), 1)), prior)

    def _answers(self, members: Members, pairs: Integers, share: Floats, prior: Floats) -> Answers:
        with self._lock:
            at = self._places(members, pairs.reshape(-1, 2), share.ravel()).reshape(share.shape)
            mean, half, added = self._mean, self._half, self._added
        weights = share.astype(np.float32)
        combined = np.einsum("rk,rkd->rd", weights, half[at])
        return Answers(
            (share * mean[at]).sum(1),
            np.maximum(prior - self.process.explained_by(combined), 0.0),
            prior,
            np.einsum("rk,rkn->rn", weights, added[at]),
        )

    def _places(self, members: Members, pairs: Integers, share: Floats) -> Integers:
        """[P] positions of pairs, worked out where they are new; 0 for those without a share."""
        wanted = [(i, j) if s else None for (i, j), s in zip(pairs.tolist(), share.tolist(), strict=True)]
        new = [key for key in dict.fromkeys(wanted) if key is not None and key not in self._index]
        if len(self._index) + len(new) > _KEPT:
            self._index = {}
            self._mean, self._half, self._added = self._mean[:0], self._half[:0], self._added[:0]
            new = [key for key in dict.fromkeys(wanted) if key is not None]
        if new or not len(self._mean):
            own, partner = np.array(new or [(0, _ALONE)], dtype=np.int64).T
            rows = Rows(own, partner[:, None], np.where(partner == _ALONE, 1.0, 0.0))
            mean, half, added = self.process.parts(members, rows)
            start = len(self._mean)
            self._index.update({key: start + k for k, key in enumerate(new)})
            self._mean = np.concatenate([self._mean, mean])
            self._half = np.concatenate([self._half, half.astype(np.float32)])
            self._added = np.concatenate([self._added, added.astype(np.float32)])
        return np.array([0 if key is None else self._index[key] for key in wanted], dtype=np.int64)
