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

    It is in memory (`/dev/shm`) where possible: workers write to memory-mapped files, a full file system kills
    them (SIGBUS), and any program may fill the temporary folder.
    """
    usable = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK | os.X_OK)
    parent = _IN_MEMORY if usable else Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_unlocked(left)
    made = Path(tempfile.mkdtemp(prefix=f"new-{_PREFIX}", dir=parent))
    with (made / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Renamed only once it is locked, because other services remove unlocked folders of that name.
        folder = made.rename(parent / made.name.removeprefix("new-"))
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose service has ended, unless it belongs to another user."""
    with suppress(OSError), (folder / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
