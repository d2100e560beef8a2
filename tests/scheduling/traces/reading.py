"""A log's jobs as the simulator gets them."""

from __future__ import annotations

from pathlib import Path

from scheduling.core.job import TraceJob
from scheduling.traces.columns import Columns
from scheduling.traces.logged import trace_jobs, usable
from scheduling.traces.logs import read_rows
from scheduling.traces.mix import Mix


def read_log(
    path: Path, mix: Mix, seed: int = 0, columns: Columns | None = None, limit: int | None = None
) -> list[TraceJob]:
    """Jobs of a log of any known format, with workloads of `mix`; only the first `limit` by submission."""
    return trace_jobs(usable(path, read_rows(path, columns)), mix, seed, limit)
