"""How many requests may wait, and for how long new workloads do."""

from __future__ import annotations

import time

import pytest

from serving.delay import DelayLimit, SpareTime
from serving.lanes import OverloadError
from serving.middleware import headers_for
from tests.waiting import LONG_S


def test_the_limit_falls_while_requests_wait_too_long_and_rises_again() -> None:
    limit = DelayLimit(LONG_S)
    for _ in range(40):
        assert limit.admit()
    limit.adapt(2 * LONG_S)
    assert limit.limit == 0.7 * 40
    assert not limit.admit()
    for _ in range(40):
        limit.begun(time.perf_counter())
    limit.adapt(0.0)
    assert limit.limit == 0.7 * 40 + limit.STEP
    for _ in range(100):
        limit.adapt(2 * LONG_S)
    assert limit.limit == limit.FLOOR
    for _ in range(100):
        limit.adapt(0.0)
    assert limit.START <= limit.limit < limit.START + limit.STEP, "nobody has come near it"
    for _ in range(round(limit.limit)):
        limit.wait()
    limit.adapt(0.0)
    limit.adapt(0.0)
    assert limit.limit >= limit.START + 2 * limit.STEP


def test_new_workloads_wait_while_requests_are_shed() -> None:
    limit = DelayLimit(LONG_S)
    spare = SpareTime(limit, ratio=1e-6)
    for _ in range(100):
        spare.take(4)  # nothing is shed
    for _ in range(10):
        limit.refused()
        limit.adapt(0.0)
    assert limit.shedding
    spare.take(1)
    with pytest.raises(OverloadError, match="new workloads wait") as refused:
        spare.take(1)
    assert headers_for(refused.value)["Retry-After"] == str(round(spare.MEAN_S / spare.ratio))
    for _ in range(200):
        limit.adapt(0.0)
    assert not limit.shedding
    spare.take(1)


def test_retry_after_of_new_workloads_follows_from_their_cost() -> None:
    limit = DelayLimit(LONG_S)
    spare = SpareTime(limit, ratio=0.5)
    for _ in range(10):
        limit.refused()
        limit.adapt(0.0)
    for _ in range(100):
        spare.spent(400 * LONG_S, 4)
    spare.take(2)
    with pytest.raises(OverloadError) as refused:
        spare.take(1)
    assert refused.value.retry_after_s == pytest.approx(2 * 100 * LONG_S / 0.5, rel=0.1)
