"""The folder in which worker processes share their metrics."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "cotenant-metrics-", "lock"


@contextmanager
def metrics_folder() -> Iterator[str]:
    """A folder for the duration of one service, locked by this process; folders of killed services are removed.

    It is in memory if the system has a place for that. Workers write to mapped files: if their file system is full, that
    kills the worker (SIGBUS), and every other program may fill the temporary folder.
    """
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    parent = _IN_MEMORY if usable else Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_unlocked(left)
    made = Path(tempfile.mkdtemp(prefix=f"new-{_PREFIX}", dir=parent))
    with (made / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now does it get the name that others look for.
        folder = made.rename(parent / made.name.removeprefix("new-"))
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose service has ended; one of another user is left alone."""
    with suppress(OSError), (folder / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
