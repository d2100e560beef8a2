"""Wait for a state as long as a busy machine needs, and no longer than necessary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

LONG_S = 300.0  # far beyond what any of it takes; only a test that fails waits so long


def until(condition: Callable[[], Any], what: str, every_s: float = 0.01) -> Any:
    """Call `condition` until it is true, and return its value.

    Time while this process is suspended does not count.
    """
    waited, last = 0.0, time.monotonic()
    while not (given := condition()):
        waited, last = waited + min(time.monotonic() - last, 5.0), time.monotonic()
        assert waited < LONG_S, f"{what}: not within {LONG_S:g} s"
        time.sleep(every_s)
    return given


async def until_async(condition: Callable[[], Any], what: str) -> Any:
    """The same on an event loop, which continues meanwhile."""
    deadline = time.monotonic() + LONG_S
    while not (given := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {LONG_S:g} s"
        await asyncio.sleep(0.01)
    return given
