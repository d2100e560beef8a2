"""The cache of answers keeps those used last, of one belief."""

from __future__ import annotations

from typing import Any, cast

from serving.answers import AnswerCache
from serving.feedback import Belief


def test_keeps_the_most_recently_used_answers_of_one_belief() -> None:
    cache: AnswerCache[int] = AnswerCache(limit=2)
    first, second = (cast(Belief, cast(Any, object())) for _ in range(2))
    assert cache.get(first, b"a") is None
    cache.put(first, b"a", 1)
    cache.put(first, b"b", 2)
    assert cache.get(first, b"a") == 1
    cache.put(first, b"c", 3)
    assert [cache.get(first, key) for key in (b"a", b"b", b"c")] == [1, None, 3]
    cache.put(second, b"a", 4)
    assert cache.get(first, b"a") == 1, "an answer of another belief is not kept"
    assert cache.get(second, b"a") is None
    assert cache.get(first, b"a") is None, "nor is what was kept before"
    cache.put(first, bytes(5000), 5)
    assert cache.get(first, bytes(5000)) is None
    cache.clear()
    assert cache.get(first, b"a") is None
