"""How a process ends: with its parent, and cleaning up on SIGTERM."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent exits for any reason.

    Linux only; elsewhere a no-op.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent.pid:  # it had exited already
            os._exit(1)


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit` within the block, so that resources are closed.

    A caller's own handler stays; outside the main thread a no-op.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
