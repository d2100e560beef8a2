"""Setup of a worker process.

A short GIL switch interval, short garbage collections, more open files, and exit when the parent exits.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys

from serving import collector

# How long a computing thread may keep the GIL from the event loop; Python's default is ten times that.
_SWITCH_S = 0.0005
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Set up this process to serve; call it before anything else."""
    sys.setswitchinterval(_SWITCH_S)
    collector.freeze_survivors()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent exits for any reason.

    Linux only; elsewhere a no-op.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent.pid:  # it had exited already
            os._exit(1)
