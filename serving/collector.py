"""The cyclic collector of a process that serves: objects that stay are not gone through again and again.

A full collection stops all requests while it goes through every object, which takes a quarter of a second with the
libraries, a model and the jobs that it has met. What survived one is frozen (`gc.freeze`), so that the next one only goes through what is
new. Garbage among frozen objects waits for `settle`.
"""

from __future__ import annotations

import gc
import time
from typing import Any

_EVERY_S = 3600.0
_settled_at = time.monotonic()


def freeze_survivors() -> None:
    """From now on freeze what each full collection leaves; call once in a process."""
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)


def settle() -> None:
    """Collect everything, what is frozen too, and freeze the rest; stops the process for up to a second."""
    global _settled_at
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _settled_at = time.monotonic()


def settle_now_and_then(idle: bool) -> None:
    """`settle` once an hour, in a moment in which nobody waits."""
    if idle and time.monotonic() - _settled_at > _EVERY_S:
        settle()


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
