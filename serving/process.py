"""A worker process: short turns of the interpreter's lock, short collections, open files, and an end when its parent ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys

from serving import collector

_SWITCH_S = 0.0005  # a thread that computes gives the event loop its turn after so long; Python's default is ten times that
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Call first in a process that serves."""
    sys.setswitchinterval(_SWITCH_S)
    collector.freeze_survivors()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_with_parent() -> None:
    """Be ended by the system when the parent process ends, however it does. Linux only; elsewhere nothing happens."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent.pid:  # it ended before
            os._exit(1)
