"""Job lists of Sia's public simulator: name, time, application, num_replicas, batch_size (and category)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.errors import InputError
from profiling.files import check_once, csv_header
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.sia.application import Application

KINDS = {"adaptive": "adaptive", "scale-gpus": "strong-scaling", "rigid": "rigid"}


def read_sia(path: Path, applications: Mapping[str, Application], kind: str = "adaptive") -> list[TraceJob]:
    """Jobs of a workload file by submission; their length is the full run of the application.

    Args:
        kind: of jobs in a file without the column `category`.

    Raises:
        InputError: a column or an application is missing, a cell is not what its column holds, or there are no
            jobs.
    """
    import pandas as pd

    try:
        header, source = csv_header(path)
        frame = pd.read_csv(source, dtype=str, keep_default_na=False, skip_blank_lines=False)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} is not a workload file", expected="a CSV", got=str(error)) from None
    check_once(path, header)
    missing = {"name", "time", "application", "num_replicas", "batch_size"} - set(frame.columns)
    if missing:
        raise InputError(
            f"{path} lacks columns", expected=", ".join(sorted(missing)), got=", ".join(frame.columns)
        )
    rows = enumerate(frame.to_dict("records"), 2)  # blank lines count, as in an editor
    jobs = [_job(row, f"{path}, line {line}", applications, kind) for line, row in rows if any(row.values())]
    if not jobs:
        raise InputError(f"{path} has no jobs", expected="a row per job", got="a header only")
    return sorted(jobs, key=lambda job: job.submit_s)


def _job(row: Mapping[Any, str], where: str, applications: Mapping[str, Application], kind: str) -> TraceJob:
    name, category = row["application"], row.get("category", "")
    if name not in applications:
        raise InputError(
            f"{where}: application was not measured on the cluster's GPU types",
            expected=", ".join(applications),
            got=name,
        )
    if category and category not in KINDS:
        raise InputError(f"{where}: unknown category", expected=", ".join(KINDS), got=category)
    application = applications[name]
    first, last = application.batches[0], application.batches[-1]
    batch_size = _count(row, "batch_size", where)
    if not first <= batch_size <= last:
        raise InputError(
            f"{where}: batch_size", expected=f"{first} to {last}, as measured of {name}", got=batch_size
        )
    return TraceJob(
        row["name"],
        Workload(name),
        application.progress(application.max_epochs),
        _number(row, "time", where),
        gpus=_count(row, "num_replicas", where),
        application=name,
        kind="hybrid" if name == "gpt_pmp" else KINDS.get(category, kind),
        batch_size=batch_size,
    )


def _number(row: Mapping[Any, str], column: str, where: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        raise InputError(f"{where}: {column}", expected="a number", got=repr(row[column])) from None


def _count(row: Mapping[Any, str], column: str, where: str) -> int:
    number = _number(row, column, where)
    if not 1 <= number <= 1e9 or number % 1:
        raise InputError(f"{where}: {column}", expected="an integer from 1", got=repr(row[column]))
    return int(number)
