"""Answers that were given before: a prediction depends on its set and the model alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from profiling.workload import ColocationSet
from serving.model_life import Serving

A = TypeVar("A")


class AnswerCache(Generic[A]):
    """The last `limit` answers of one model; empty again as soon as another one serves."""

    def __init__(self, limit: int = 16_384) -> None:
        self.limit = limit
        self._serving: Serving | None = None
        self._answers: OrderedDict[ColocationSet, A] = OrderedDict()

    def get(self, serving: Serving, asked: ColocationSet) -> A | None:
        """What `serving` answered to this set, if it is still known."""
        if serving is not self._serving:
            self._serving = serving
            self._answers.clear()
            return None
        answer = self._answers.get(asked)
        if answer is not None:
            self._answers.move_to_end(asked)
        return answer

    def put(self, serving: Serving, asked: ColocationSet, answer: A) -> None:
        """Keep an answer of `serving`, unless another model serves by now."""
        if serving is self._serving:
            self._answers[asked] = answer
            if len(self._answers) > self.limit:
                self._answers.popitem(last=False)
