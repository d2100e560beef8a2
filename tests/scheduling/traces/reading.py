"""A log's jobs as the simulator gets them."""

from __future__ import annotations

from pathlib import Path

from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.traces.columns import Columns, parse_mapping
from scheduling.traces.logged import trace_jobs, usable
from scheduling.traces.logs import read_rows
from scheduling.traces.mix import Mix

MIX = Mix.even((Workload("a"), Workload("b")), lambda w: 0.5 if w.model == "a" else 2.0)


def read_log(
    path: Path, mix: Mix, seed: int = 0, columns: Columns | None = None, limit: int | None = None
) -> list[TraceJob]:
    """Jobs of a log of any known format, with workloads of `mix`; only the first `limit` by submission."""
    return trace_jobs(usable(path, read_rows(path, columns)), mix, seed, limit)


def read(path: Path, text: str, mapping: dict[str, str] | None = None) -> list[TraceJob]:
    path.write_text(text)
    return read_log(path, MIX, columns=parse_mapping(mapping) if mapping else None)


def ignored(path: Path) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {c.reason: (c.rows, c.examples) for c in usable(path, read_rows(path)).remarks}


def seconds(job: TraceJob) -> float:
    return round(job.iterations * MIX.step_time_s(job.workload), 6)
