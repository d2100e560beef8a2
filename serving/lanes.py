"""Lanes: threads behind a bounded, fair queue, for work that would block the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from profiling.errors import UnavailableError
from serving.metrics import Metrics

T = TypeVar("T")
# The caller whose share of a lane a call uses.
CALLER: ContextVar[str] = ContextVar("caller", default="local")


class OverloadError(UnavailableError):
    """The service is overloaded; the same request may succeed a moment later."""

    slug = "overloaded"
    title = "Overloaded"
    retry_after_s = 1


class Call:
    """One call of a lane.

    `cancelled` is set when nobody waits for its result any more; `elsewhere_s` is processor time used for it in
    other processes.
    """

    __slots__ = ("arguments", "caller", "cancelled", "elsewhere_s", "function", "future", "started")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        future: asyncio.Future[Any],
        caller: str,
    ) -> None:
        self.function, self.arguments, self.future, self.caller = function, arguments, future, caller
        self.cancelled = threading.Event()
        self.started = self.elsewhere_s = 0.0


_running = threading.local()


def current_call() -> Call | None:
    """The call that this thread is running; None outside a lane."""
    return getattr(_running, "call", None)


class FairQueue(Generic[T]):
    """Waiting items, with one queue per caller; callers take turns."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, caller: str, item: T) -> None:
        self._lines.setdefault(caller, deque()).append(item)
        self._count += 1

    def push_first(self, caller: str, item: T) -> None:
        """Put an item back at the front."""
        self._lines.setdefault(caller, deque()).appendleft(item)
        self._lines.move_to_end(caller, last=False)
        self._count += 1

    def pop(self) -> T:
        """The first item of the caller whose turn it is. Raises `KeyError` if nothing waits."""
        caller, line = next(iter(self._lines.items()), (None, None))
        if caller is None or line is None:
            raise KeyError("nothing waits")
        item = line.popleft()
        self._count -= 1
        if line:
            self._lines.move_to_end(caller)
        else:
            del self._lines[caller]
        return item

    def remove(self, caller: str, item: T) -> bool:
        """Remove an item; returns whether it was waiting."""
        line = self._lines.get(caller)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._count -= 1
        if not line:
            del self._lines[caller]
        return True

    def to_refuse(self, caller: str) -> T | None:
        """The item that a new one of `caller` would replace: the last of the longest queue.

        None if that is the caller's own.
        """
        longest = max(self._lines.values(), key=len)
        return None if len(longest) <= len(self._lines.get(caller, ())) + 1 else longest[-1]


class Lane:
    """Runs up to `threads` calls at a time.

    Callers take turns, and the one with the longest queue is refused first.

    The threads are daemons, so a call that never ends does not keep the process alive.

    Args:
        name: label in metrics and messages.
        threads: concurrent calls.
        length, wait_s: how many calls may wait, and how long.
        stuck_s: a call that runs longer makes the lane stuck.
    """

    def __init__(
        self, name: str, metrics: Metrics, *, threads: int = 1, length: int = 64, wait_s: float = 5.0, stuck_s: float = 30.0
    ) -> None:  # fmt: skip
        self.name, self.metrics = name, metrics
        self.threads, self.length, self.wait_s, self.stuck_s = threads, length, wait_s, stuck_s
        self._waiting: FairQueue[Call] = FairQueue()
        self._free = threads
        self._running: set[Call] = set()
        self._work: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` in a thread of the lane.

        Raises:
            OverloadError: the queue is full, the wait was too long, or the lane is stuck.
        """
        if self.stuck_for() > 0:
            self._refuse("stuck")
        loop = self._loop = asyncio.get_running_loop()
        self._start()
        call = Call(function, arguments, loop.create_future(), CALLER.get())
        late = None
        if self._free:
            self._begin(call)
        else:
            self._enqueue(call)
            late = loop.call_later(self.wait_s, self._drop, call, "wait")
        try:
            result: T = await call.future
            return result
        except asyncio.CancelledError:
            call.cancelled.set()
            self._remove(call)
            raise
        finally:
            if late is not None:
                late.cancel()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._running and not self._waiting

    def stuck_for(self) -> float:
        """Seconds by which the longest-running call exceeds its limit; 0 if none does."""
        now = time.monotonic()
        return max((0.0, *(now - call.started - self.stuck_s for call in tuple(self._running))))

    def forgive(self, seconds: float) -> None:
        """Exclude `seconds` from the running calls' time, because the process was stopped."""
        for call in tuple(self._running):
            call.started += seconds

    def _refuse(self, why: str) -> None:
        self.metrics.refused.labels(f"{self.name}_{why}").inc()
        raise OverloadError(
            f"too much work queued ({self.name})", expected=f"at most {self.length} calls for "
            f"{self.wait_s:g} s",
            hint="try again in a second",
        )  # fmt: skip

    def _enqueue(self, call: Call) -> None:
        if len(self._waiting) >= self.length:
            other = self._waiting.to_refuse(call.caller)
            if other is None:
                self._refuse("length")
            else:
                self._drop(other, "length")
        self._waiting.push(call.caller, call)
        self._counted()

    def _drop(self, call: Call, why: str) -> None:
        """Refuse a waiting call."""
        if call.started or call.future.done():
            return
        self._remove(call)
        try:
            self._refuse(why)
        except OverloadError as error:
            call.future.set_exception(error)

    def _remove(self, call: Call) -> None:
        if not call.started and self._waiting.remove(call.caller, call):
            self._counted()

    def _counted(self) -> None:
        self.metrics.lane_queue.labels(self.name).set(len(self._waiting))

    def _begin(self, call: Call) -> None:
        self._free -= 1
        call.started = time.monotonic()
        self._running.add(call)
        self._work.put(call)

    def _next(self) -> None:
        """Give a free thread to the next caller."""
        while self._free and self._waiting:
            call = self._waiting.pop()
            self._counted()
            if not call.future.done():
                self._begin(call)

    def _ended(self, call: Call, result: Any, error: BaseException | None) -> None:
        self._running.discard(call)
        self._free += 1
        if not call.future.done():
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)
        self._next()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for number in range(self.threads):
                threading.Thread(
                    target=self._work_on, name=f"cotenant-{self.name}-{number}", daemon=True
                ).start()

    def _work_on(self) -> None:
        while (call := self._work.get()) is not None:
            result, error = None, None
            _running.call = call
            try:
                if not call.cancelled.is_set():
                    result = call.function(*call.arguments)
            except BaseException as raised:
                error = raised
            finally:
                _running.call = None
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._ended, call, result, error)
            except RuntimeError:
                return  # the loop has ended
            del call, result, error

    def close(self) -> None:
        """Stop idle threads; a busy one stops after its call, or with the process."""
        for _ in range(self.threads):
            self._work.put(None)
