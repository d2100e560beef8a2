"""Lanes: bounded in length and time, fair among callers, detected when stuck, abandoned when unneeded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from serving.lanes import CALLER, Lane, OverloadError, current_call
from serving.metrics import Metrics
from tests.waiting import LONG_S, until_async


def lane(**bounds: Any) -> Lane:
    return Lane("test", Metrics(), **bounds)


async def ask(target: Lane, caller: str, function: Any, *arguments: Any) -> Any:
    CALLER.set(caller)
    return await target.run(function, *arguments)


def test_callers_take_turns() -> None:
    order: list[str] = []

    async def run() -> None:
        target, gate = lane(), threading.Event()
        first = asyncio.create_task(ask(target, "x", gate.wait, LONG_S))
        await asyncio.sleep(0)
        many = [asyncio.create_task(ask(target, "greedy", order.append, "greedy")) for _ in range(10)]
        await asyncio.sleep(0)
        few = asyncio.create_task(ask(target, "modest", order.append, "modest"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, few, *many)

    asyncio.run(run())
    assert order.index("modest") <= 1


def test_the_longest_queue_is_refused_first() -> None:
    async def run() -> list[Any]:
        target, gate = lane(length=4), threading.Event()
        first = asyncio.create_task(ask(target, "x", gate.wait, LONG_S))
        await asyncio.sleep(0)
        greedy = [asyncio.create_task(ask(target, "greedy", int)) for _ in range(6)]
        await asyncio.sleep(0)
        modest = asyncio.create_task(ask(target, "modest", int))
        await asyncio.sleep(0)
        gate.set()
        await first
        return await asyncio.gather(modest, *greedy, return_exceptions=True)

    modest, *greedy = asyncio.run(run())
    assert modest == 0
    assert sum(isinstance(g, OverloadError) for g in greedy) == 3


def test_waiting_is_bounded() -> None:
    async def run() -> None:
        target, gate = lane(wait_s=0.1), threading.Event()
        first = asyncio.create_task(ask(target, "x", gate.wait, LONG_S))
        await asyncio.sleep(0)
        with pytest.raises(OverloadError):
            await ask(target, "y", int)
        assert not first.done(), "refused while the other call went on"
        gate.set()
        await first
        assert await ask(target, "y", int) == 0

    asyncio.run(run())


def test_a_stuck_lane_is_detected_and_refuses_at_once() -> None:
    async def run() -> None:
        target, gate = lane(stuck_s=0.05, wait_s=10 * LONG_S), threading.Event()
        first = asyncio.create_task(ask(target, "x", gate.wait, LONG_S))
        await until_async(lambda: target.stuck_for() > 0, "stuck")
        with pytest.raises(OverloadError):
            await ask(target, "y", int)
        assert not first.done(), "refused while the lane was stuck, without a wait"
        gate.set()
        await first
        assert target.stuck_for() <= 0

    asyncio.run(run())


def test_a_call_learns_that_its_caller_left() -> None:
    began, left = threading.Event(), threading.Event()

    def work() -> None:
        call = current_call()
        assert call is not None
        began.set()
        if call.cancelled.wait(LONG_S):
            left.set()

    async def run() -> None:
        task = asyncio.create_task(ask(lane(), "x", work))
        await until_async(began.is_set, "the call began")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert left.wait(LONG_S)


def test_time_while_the_process_is_suspended_does_not_count() -> None:
    async def run() -> None:
        one, gate = lane(stuck_s=1e-6), threading.Event()
        task = asyncio.create_task(ask(one, "x", gate.wait, LONG_S))
        await until_async(lambda: one.stuck_for() > 0, "the lane is stuck")
        one.forgive(2 * LONG_S)
        assert one.stuck_for() <= 0
        gate.set()
        await task

    asyncio.run(run())
