"""Output of all log readers: jobs with their durations, before each gets a workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.core.limits import LONGEST_S
from scheduling.traces.elastic import with_batch_range
from scheduling.traces.mix import Mix
from scheduling.traces.remarks import Remark, RowCount, counted_rows

# Default for a job with tunable batch whose noise scale the log does not state; ours.
_NOISE_RATIO = 8.0
# Most GPUs of a job in a log.
MOST_GPUS = 1e9
# Seconds from 1970 to the last year of ISO 8601. Milliseconds since 1970 exceed it: as seconds, arrivals would be a
# thousand times too far apart.
_YEAR_9999_S = 2.6e11
# Digits of seconds since 1970 from September 2001 on.
_EPOCH_DIGITS = 10


@dataclass(frozen=True, slots=True)
class LoggedJob:
    """One job of a log; which model it trains is unknown.

    Attributes:
        id: as in the log; may be empty.
        submit_s: seconds from any origin.
        duration_s: seconds on its GPUs; NaN if it never ended.
        gpus: total over all its nodes.
        priority: relative weight.
        level: priority that only orders jobs (Slurm's, Kubernetes'); `usable` turns it into a weight.
        deadline_s: seconds from submission.
        min_gpus, max_gpus: range of an elastic job.
        batch_ratio: largest total batch that the job may tune its own to, over its own.
        noise_ratio: gradient noise scale over its own total batch.
        state: final state in the log; may be empty.
        remark: fault found by the reader, if the numbers do not show it.
    """

    id: str
    submit_s: float
    duration_s: float
    gpus: float
    user: str = ""
    priority: float = 1.0
    deadline_s: float | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    batch_ratio: float | None = None
    noise_ratio: float | None = None
    state: str = ""
    remark: Remark | None = None
    level: float | None = None

    def fault(self) -> Remark | None:
        """Why it cannot be used: it needs a submission time, at least one second, and whole GPUs."""
        if self.remark is not None and not self.remark.kept:
            return self.remark
        if not isfinite(self.submit_s):
            return Remark("no submission time")
        if abs(self.submit_s) > _YEAR_9999_S:
            return Remark(
                "submission time is after the year 9999 if in seconds (is it in milliseconds?)",
                f"{self.submit_s:g}",
            )
        if self.gpus == 0 and not self.duration_s < 1.0:  # a job that never ran may not have any yet
            return Remark("requests no whole GPU")
        if self.duration_s > LONGEST_S:
            return Remark("duration is above ten years", f"{self.duration_s:g}")
        if not isfinite(self.duration_s):
            return Remark("has not ended", self.state)
        if self.duration_s < 1.0:
            return Remark("ran for less than 1 s, or never", self.state)
        if not 0 < self.gpus <= MOST_GPUS or self.gpus % 1:
            return Remark("does not request a whole number of GPUs", f"{self.gpus:g}")
        return None


@dataclass(frozen=True, slots=True)
class Log:
    """The usable jobs of a log, by submission, and remarks on unusable or changed rows."""

    jobs: list[LoggedJob]
    remarks: list[RowCount]


def usable(path: Path, rows: Iterable[LoggedJob]) -> Log:
    """The usable rows of a log.

    Args:
        path: path of the log, for errors.

    Raises:
        InputError: no usable rows.
    """
    read = [(row, row.fault()) for row in rows]
    kept = sorted((row for row, fault in read if fault is None), key=lambda row: row.submit_s)
    remarks = counted_rows(found for row, fault in read if (found := fault or row.remark) is not None)
    if not kept:
        raise InputError(
            f"{path} has no usable rows",
            expected="a submission time, a duration of at least 1 s and a whole number of GPUs",
            got="; ".join(map(str, remarks)) or "an empty log",
            hint="Durations are in seconds, timestamps in ISO 8601 (2024-05-01 10:00:00)",
        )
    # Among usable rows only: a job that never ran because it was held has level 0 in Slurm.
    weights = iter(weights_of_levels([row.level for row in kept if row.level is not None]))
    return Log([row if row.level is None else replace(row, priority=next(weights)) for row in kept], remarks)


def trace_jobs(log: Log, mix: Mix, seed: int = 0, limit: int | None = None) -> list[TraceJob]:
    """Jobs by submission, each with a workload of `mix`, and iterations = duration / solo step time.

    They keep the log's ids. A repeated id gets `#2`, `#3`, ..., a job without one is `job-N`.

    Args:
        limit: use only this many, earliest submitted first.
    """
    kept = log.jobs[:limit]
    jobs = [
        TraceJob(
            name,
            workload,
            row.duration_s / mix.step_time_s(workload),
            row.submit_s - kept[0].submit_s,
            gpus=int(row.gpus),
            min_gpus=row.min_gpus,
            max_gpus=row.max_gpus,
            user=row.user,
            priority=row.priority,
            deadline_s=row.deadline_s,
        )
        for name, row, workload in zip(_names(kept), kept, mix.draw(len(kept), seed), strict=True)
    ]
    return [
        job
        if row.batch_ratio is None
        else with_batch_range(job, row.batch_ratio, row.noise_ratio or _NOISE_RATIO, mix.batch_sizes)
        for row, job in zip(kept, jobs, strict=True)
    ]


def _names(rows: Sequence[LoggedJob]) -> list[str]:
    """A name of its own for each row; see `trace_jobs`."""
    used, seen = {row.id for row in rows}, {""}
    last: dict[str, int] = {}  # number behind a repeated name
    names = []
    for number, row in enumerate(rows):
        name = base = row.id or f"job-{number}"
        if row.id in seen:
            while name in used:
                last[base] = last.get(base, 1) + 1
                name = f"{base}#{last[base]}"
        seen.add(row.id)
        used.add(name)
        names.append(name)
    return names


def weights_of_levels(levels: Sequence[float]) -> list[float]:
    """Weights from priorities that only order jobs (Slurm's, Kubernetes').

    Levels above 0 are taken relative to their median, from 1/16 to 16; if a level is 0 or below, the lowest
    distinct level weighs 1, the next 2, and so on.
    """
    if not levels:
        return []
    values = np.asarray(levels, float)
    if values.min() > 0:
        return [float(v) for v in np.clip(values / np.median(values), 1 / 16, 16)]
    return [float(v) + 1.0 for v in np.unique(values, return_inverse=True)[1]]


def stamp_s(text: object) -> float:
    """Seconds since 1970 of an ISO timestamp (UTC if it names no zone) or of such seconds; NaN for anything else."""
    if not isinstance(text, str):
        return float("nan")
    text = text.strip()
    # As Slurm writes them with `SLURM_TIME_FORMAT=%s`. Fewer digits may be a date without separators.
    if text.isdecimal() and len(text) >= _EPOCH_DIGITS:
        return at_s if isfinite(at_s := float(text)) else float("nan")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return float("nan")
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def read_text(path: Path) -> str:
    """The file's text. Raises `InputError` if unreadable."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a trace", expected="a text file", got=str(error)) from None
