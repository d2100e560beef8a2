"""Jobs of Slurm's accounting: `sacct --parsable2` (or `--parsable`), or with `--delimiter=,`.

`sacct -aX -P -o JobID,User,Submit,Start,End,Elapsed,State,Priority,AllocTRES` has everything that is read.
GPUs are `gres/gpu` of AllocTRES; if that only has typed ones (`gres/gpu:a100=4`), their sum.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from profiling.errors import InputError
from profiling.files import check_once
from scheduling.traces.logged import LoggedJob, read_text, stamp_s

_TRES = ("AllocTRES", "ReqTRES")
_LENGTHS = ("Elapsed", "ElapsedRaw")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_RESOURCE = re.compile(r"([a-zA-Z_]+(?:/[\w:.-]+)?)=")


# States in which Elapsed is only the time so far, or that of an attempt that had to start again (`sacct -D`).
_NOT_ENDED = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "REQUEUED")
# Ends of jobs that are still there, whatever their state is called.
_NO_END = ("Unknown", "None")


def is_sacct(header: str) -> bool:
    """Whether a file's first line is a header of `sacct`, even one without the columns that are needed."""
    names = set(_split(header))
    return bool(names & {"JobID", "JobIDRaw"} and names & {"Submit", *_TRES, *_LENGTHS})


def read_sacct(path: Path) -> list[LoggedJob]:
    """One row per job; steps (`12.batch`, `12.0`) are skipped, because their job has the same GPUs.

    The components of a heterogeneous job (`12+0`, `12+1`) are one job, because they start together: it has the GPUs of
    all, and lasts as long as the longest of those with GPUs.

    Raises:
        InputError: a column is missing, or columns are aligned by spaces.
    """
    jobs: dict[tuple[str, int, int], list[LoggedJob]] = {}
    attempts: Counter[str] = Counter()  # with `sacct -D`, a job that was requeued is there several times
    for number, row in enumerate(_rows(path)):
        job, component, _ = row["JobID"].partition("+")
        attempts[row["JobID"]] += 1
        key = (job, attempts[row["JobID"]], -1 if component else number)
        jobs.setdefault(key, []).append(_job(row, job))
    return [_together(parts) for parts in jobs.values()]


def _job(row: dict[str, str], name: str) -> LoggedJob:
    submit_s = stamp_s(row["Submit"])
    return LoggedJob(
        name,
        submit_s,
        _duration_s(row),
        _gpus(row["AllocTRES"]),
        row.get("User", ""),
        deadline_s=due if (due := stamp_s(row.get("Deadline", "")) - submit_s) > 0 else None,
        state=_state(row),
        level=float(row["Priority"]) if _is_number(row.get("Priority", "")) else None,
    )


def _together(parts: Sequence[LoggedJob]) -> LoggedJob:
    """The components of a job as one."""
    counted = [part for part in parts if part.gpus] or parts
    # One that has not ended has a duration of NaN, and its state says why.
    longest = max(counted, key=lambda part: (part.duration_s != part.duration_s, part.duration_s))
    levels = [part.level for part in counted if part.level is not None]
    return replace(longest, gpus=sum(part.gpus for part in counted), level=max(levels, default=None))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    # Not `splitlines`, which also splits at characters that a job's name may have (U+0085, U+2028).
    header, *lines = read_text(path).split("\n")
    names, separator = _split(header), _separator(header)
    if separator is None:
        raise InputError(
            f"{path} has columns aligned by spaces",
            expected="the output of `sacct -P`, or of `--delimiter=,`",
        )
    check_once(path, names)
    missing = [name for name in ("JobID", "Submit", "AllocTRES") if name not in names]
    if not set(names) & set(_LENGTHS) and not {"Start", "End"} <= set(names):
        missing.append("Elapsed")
    if missing:
        raise InputError(
            f"{path} lacks columns of sacct",
            expected=", ".join(missing),
            got=", ".join(names),
            hint="`sacct -aX -P -o JobID,User,Submit,Start,End,Elapsed,State,Priority,AllocTRES` has all that are read",
        )
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            values = (
                next(csv.reader([line], delimiter=separator)) if separator == "," else line.split(separator)
            )
        except csv.Error as error:
            raise InputError(f"{path}, line {number}", expected=f"{len(names)} fields", got=error) from None
        if separator == "," and len(values) > len(names):
            values = _rejoin(names, values)
        values = values[: len(names)]
        if len(values) < len(names):
            raise InputError(f"{path}, line {number}", expected=f"{len(names)} fields", got=len(values))
        row = dict(zip(names, values, strict=True))
        if "." not in row["JobID"]:
            yield row


def _rejoin(names: list[str], pieces: list[str]) -> list[str]:
    """Rejoin resource fields split at their own commas, which `--delimiter=,` does not quote."""
    values, at = [], 0
    for name in names:
        field = pieces[at : at + 1]
        at += 1
        if name in _TRES and field and _RESOURCE.match(field[0]):
            seen = {_RESOURCE.match(field[0]).group(1)}  # type: ignore[union-attr]
            while at < len(pieces) and (match := _RESOURCE.match(pieces[at])) and match.group(1) not in seen:
                seen.add(match.group(1))
                field.append(pieces[at])
                at += 1
        values.append(",".join(field))
    return values


def _separator(header: str) -> str | None:
    """None for spaces."""
    return next((mark for mark in "|," if mark in header), None)


def _split(header: str) -> list[str]:
    return [name.strip().strip('"') for name in header.strip().rstrip("|").split(_separator(header))]


def _gpus(resources: str) -> float:
    counts: dict[str, float] = {}
    for part in resources.split(","):
        name, _, count = part.partition("=")
        if name.split(":")[0] == "gres/gpu" and _is_number(count):
            counts[name] = float(count)
    return counts.get("gres/gpu", sum(counts.values()))


def _state(row: dict[str, str]) -> str:
    return row.get("State", "").partition(" ")[0]  # `CANCELLED by 1000`


def _duration_s(row: dict[str, str]) -> float:
    duration_s = _elapsed_s(row)
    is_there = duration_s > 0 and row.get("End", "").strip() in _NO_END  # not one that never started
    return float("nan") if is_there or _state(row) in _NOT_ENDED else duration_s


def _elapsed_s(row: dict[str, str]) -> float:
    if _is_number(row.get("ElapsedRaw", "")):
        return float(row["ElapsedRaw"])
    match = _ELAPSED.fullmatch(row.get("Elapsed", "").strip())
    if match is None:
        return stamp_s(row.get("End", "")) - stamp_s(row.get("Start", ""))
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _is_number(text: str) -> bool:
    return text.strip().isdecimal()
