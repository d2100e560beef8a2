"""A cache of answers: a prediction depends only on the request, the model and its corrections."""

from __future__ import annotations

from typing import Generic, TypeVar

from cachetools import LRUCache

from serving.feedback import Belief

A = TypeVar("A")
_LONGEST_BYTES = 4096


class AnswerCache(Generic[A]):
    """The `limit` most recently used answers of one belief, by request body.

    Cleared when the belief changes.
    """

    def __init__(self, limit: int = 16_384) -> None:
        self.limit = limit
        self._belief: Belief | None = None
        self._answers: LRUCache[bytes, A] = LRUCache(limit)

    def get(self, belief: Belief, asked: bytes) -> A | None:
        """The cached answer to the request body `asked`; None if there is none."""
        if belief is not self._belief:
            self._belief = belief
            self._answers = LRUCache(self.limit)  # clearing would take milliseconds
            return None
        return self._answers.get(asked)

    def put(self, belief: Belief, asked: bytes, answer: A) -> None:
        """Store an answer of `belief`, unless the belief has changed or the request is too long to keep."""
        if belief is self._belief and len(asked) <= _LONGEST_BYTES:
            self._answers[asked] = answer

    def clear(self) -> None:
        """Clear the cache because something else that answers depend on has changed. Thread-safe."""
        self._belief = None
