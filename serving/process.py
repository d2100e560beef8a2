"""Setup of a worker process: a short GIL switch interval, short garbage collections, more open files."""

from __future__ import annotations

import resource
import sys

from serving import collector

# How long a computing thread may keep the GIL from the event loop; Python's default is ten times that.
_SWITCH_S = 0.0005


def prepare() -> None:
    """Set up this process to serve; call it before anything else."""
    sys.setswitchinterval(_SWITCH_S)
    collector.freeze_survivors()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
