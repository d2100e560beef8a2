"""Tunes the cyclic garbage collector so that long-lived objects are not scanned repeatedly.

A full collection stops all requests while it scans every object, which takes a quarter of a second with the
libraries, a model and the jobs that it has seen. Survivors are frozen (`gc.freeze`), so that the next
collection scans only new objects. Garbage among frozen objects waits for `settle`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EVERY_S = 3600.0
_settled_at = time.monotonic()


def freeze_survivors() -> None:
    """Freeze the survivors of each full collection from now on; call once per process."""
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def settle() -> None:
    """Collect everything, including frozen objects, and freeze the survivors.

    This stops the process for up to a second.
    """
    global _settled_at
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _settled_at = time.monotonic()


def settle_now_and_then(idle: bool) -> None:
    """Call `settle` once an hour, at a moment when nobody waits."""
    if idle and time.monotonic() - _settled_at > _EVERY_S:
        settle()


@contextmanager
def paused(large: bool) -> Iterator[None]:
    """Without collections, if what is done inside is `large`: a body of megabytes, a cluster of tens of thousands.

    Its new objects all stay, and would be scanned again and again, in up to five times the time.
    """
    pause = large and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
