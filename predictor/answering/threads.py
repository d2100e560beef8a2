"""Threads that split large queries over the cores, and their memory."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MB of freed memory per thread instead of returning it after every array.

    Requesting a megabyte again costs 256 page faults, as much as the arithmetic on it: without this, 100,000
    pairs take 40 % more processor time (`python -m benchmarks.kept_memory`). A no-op without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 256 * 2**20)
    mallopt(mmap_threshold, 32 * 2**20)


@cache
def worker_threads() -> ThreadPoolExecutor:
    """One thread per core that this process may use; started on the first large query."""
    keep_freed_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(cores, thread_name_prefix="set-network")
