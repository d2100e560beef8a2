"""Progress where there is no terminal, as in a log: lines in place of a bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import typer
from rich.progress import Progress, TaskID

_EVERY_S = 30.0


class ProgressLines(Progress):
    """A progress bar that is not drawn, but described on stderr every half minute.

    Args:
        clock: seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(disable=True)
        self._clock, self._said_s = clock, clock()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As of `rich.progress.Progress`."""
        super().update(task_id, **changes)
        if self._clock() - self._said_s >= _EVERY_S:
            self._said_s = self._clock()
            task = self._tasks[task_id]
            of = "" if task.total is None else f" of {task.total:.0f}"
            typer.echo(f"{task.description}: {task.completed:.0f}{of}", err=True)
