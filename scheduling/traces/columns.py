"""Job logs by their columns: Philly, Alibaba PAI, Helios, Acme, or any CSV with a mapping."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from profiling.errors import InputError
from profiling.files import check_once, csv_header
from scheduling.core.limits import LONGEST_S
from scheduling.traces.cells import Cells, Floats
from scheduling.traces.logged import MOST_GPUS, LoggedJob

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of a log's columns.

    `gpu_scale` converts the GPU column's unit to GPUs.

    Attributes:
        submit: a timestamp or seconds.
        start, end: used if there is no `duration`; without `start`, a job runs from its submission on.
        gpus: GPUs of the job (of an instance if `instances` is given).
        priority: weight of the job, above 0; 1 if empty.
        deadline: a timestamp, or a number of seconds from submission.
        min_gpus, max_gpus: range of an elastic job.
        batch_size, max_batch_size: samples per step on all its GPUs, and the largest number that it may tune
            this to.
        noise_scale: its gradient noise scale, in samples.
    """

    submit: str
    duration: str | None = None
    start: str | None = None
    end: str | None = None
    gpus: str = "num_gpus"
    gpu_scale: float = 1.0
    instances: str | None = None
    user: str | None = None
    id: str | None = None
    priority: str | None = None
    deadline: str | None = None
    min_gpus: str | None = None
    max_gpus: str | None = None
    batch_size: str | None = None
    max_batch_size: str | None = None
    noise_scale: str | None = None

    def __post_init__(self) -> None:
        if self.duration is None and self.end is None:
            raise InputError("column mapping", expected="submit, and duration or end", got=self.submit)
        if self.duration is not None and self.start is not None:
            raise InputError(
                "column mapping", expected="start with end, or duration", got="start and duration"
            )
        if self.batch_size is None and (self.max_batch_size or self.noise_scale):
            raise InputError(
                "column mapping", expected="batch_size together with max_batch_size and noise_scale",
                got="no batch_size",
            )  # fmt: skip


def _with_optional(columns: Columns) -> Columns:
    """Known logs may have these columns added, under their own names."""
    return replace(
        columns, priority="priority", deadline="deadline", min_gpus="min_gpus", max_gpus="max_gpus",
        batch_size="batch_size", max_batch_size="max_batch_size", noise_scale="noise_scale",
    )  # fmt: skip


KNOWN: dict[str, Columns] = {
    "philly": _with_optional(Columns("timestamp", "duration", gpus="num_gpus", user="cluster")),
    # Acme's logs have all of Helios' columns, and more.
    "helios": _with_optional(Columns("submit_time", "duration", gpus="gpu_num", user="user", id="job_id")),
    "alibaba": _with_optional(
        Columns(
            "start_time",
            end="end_time",
            gpus="plan_gpu",
            gpu_scale=0.01,
            instances="inst_num",
            user="user",
            id="job_name",
        )
    ),
}
# Columns of pai_task_table.csv, which is published without a header.
PAI_TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
# Largest batch size that a job may tune its own to, over its own.
_LARGEST_RATIO = 1e9
# What is needed to tell tasks of one job with a header line.
_PAI_NEEDED = frozenset({"job_name", "task_name", "inst_num", "start_time", "end_time", "plan_gpu"})


def read_columns(path: Path, columns: Columns | None = None) -> list[LoggedJob]:
    """Rows of a CSV, in order; invalid ones have a reason.

    Args:
        columns: column names; None to detect them from the header.

    Raises:
        InputError: the file is not a CSV, its columns are unknown, or they cannot be compared.
    """
    frame = _frame(path, columns)
    names = columns or _recognise(list(frame.columns), path)
    if columns is not None:
        _check_present(columns, list(frame.columns), path)
    cells = Cells(frame)
    submit, by_stamp = cells.seconds(names.submit)
    duration = _durations(cells, names, submit, by_stamp)
    gpus = _gpus(cells, names)
    given = _optional_numbers(cells, frame, names, gpus)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        larger = given["max_batch_size"] / given["batch_size"]
        noise = given["noise_scale"] / given["batch_size"]
    due = _due(cells, frame, names, submit, by_stamp)
    users, ids = cells.texts(names.user), cells.texts(names.id)
    return [
        LoggedJob(
            ids[row],
            float(submit[row]),
            float(duration[row]),
            float(gpus[row]),
            users[row],
            1.0 if np.isnan(given["priority"][row]) else float(given["priority"][row]),
            None if np.isnan(due[row]) else float(due[row]),
            None if np.isnan(given["min_gpus"][row]) else int(given["min_gpus"][row]),
            None if np.isnan(given["max_gpus"][row]) else int(given["max_gpus"][row]),
            float(larger[row]) if 1.0 < larger[row] < np.inf else None,
            float(noise[row]) if 0.0 < noise[row] < np.inf else None,
            remark=cells.remarks[row],
        )
        for row in range(len(frame))
    ]


def _frame(path: Path, columns: Columns | None) -> pd.DataFrame:
    """The CSV as it is, or one row per job where rows are tasks of PAI's jobs."""
    import pandas as pd

    try:
        header, source = csv_header(path)
        if columns is None and _is_pai_row(header):
            frame = _read(source, header=None, names=list(PAI_TASKS))
        else:
            check_once(path, header)
            frame = _read(source)
        if columns is None and set(frame).issuperset(_PAI_NEEDED):
            frame = _whole_jobs(frame)
        return frame
    except (
        OSError,
        UnicodeDecodeError,
        pd.errors.ParserError,
        pd.errors.ParserWarning,
        pd.errors.EmptyDataError,
    ) as error:
        raise InputError(f"{path} is not a trace", expected="a CSV of jobs", got=str(error)) from None


def _optional_numbers(cells: Cells, frame: pd.DataFrame, names: Columns, gpus: Floats) -> dict[str, Floats]:
    """[rows] of each optional column, by its field of `Columns`; nan where there is none. Marks invalid cells."""
    nothing = np.full(len(frame), np.nan)
    given = {
        key: cells.numbers(column, optional=True) if (column := getattr(names, key)) in frame else nothing
        for key in ("priority", "min_gpus", "max_gpus", "batch_size", "max_batch_size", "noise_scale")
    }
    for key in ("min_gpus", "max_gpus"):
        if given[key] is not nothing:
            cells.mark(given[key] % 1 > 0, getattr(names, key), "is not a whole number of GPUs")
    for key, wrong, what in (
        ("priority", given["priority"] <= 0, "is not above 0"),
        (
            "min_gpus",
            (given["min_gpus"] < 1) | (given["min_gpus"] > gpus),
            "is not from 1 to the GPUs of the job",
        ),
        ("max_gpus", given["max_gpus"] < gpus, "is below the GPUs of the job"),
        ("max_gpus", given["max_gpus"] > MOST_GPUS, f"is above {MOST_GPUS:g}"),
        ("batch_size", given["batch_size"] <= 0, "is not above 0"),
        (
            "max_batch_size",
            given["max_batch_size"] < given["batch_size"],
            "is below the batch size of the job",
        ),
        (
            "max_batch_size",
            np.isfinite(given["max_batch_size"]) & np.isnan(given["batch_size"]),
            "is given without a batch size of the job",
        ),
        (
            "max_batch_size",
            given["max_batch_size"] / _LARGEST_RATIO > given["batch_size"],
            f"is above {_LARGEST_RATIO:g} times the batch size of the job",
        ),
        ("noise_scale", given["noise_scale"] <= 0, "is not above 0"),
    ):
        if given[key] is not nothing:
            cells.mark(wrong, getattr(names, key), what)
    return given


def _due(cells: Cells, frame: pd.DataFrame, names: Columns, submit: Floats, by_stamp: bool) -> Floats:
    """[rows] seconds from the submission to the deadline; nan where there is none. Marks those not after it."""
    if names.deadline is None or names.deadline not in frame:
        return np.full(len(frame), np.nan)
    due, dated = cells.seconds(names.deadline, optional=True)
    if dated:
        due = due - submit
        if np.isfinite(due).any():
            _check_alike(names.submit, by_stamp, names.deadline, dated)
    cells.mark(due <= 0, names.deadline, "is not after the submission")
    return due


def _read(source: Path | io.BytesIO, **options: Any) -> pd.DataFrame:
    """The CSV at `source`; a `ParserWarning` is raised if rows have more fields than there are columns."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        # In one piece, because chunks could give a column several types. Without `index_col`, the first column
        # of rows that end with a comma would be an index, and all names would move by one.
        return pd.read_csv(source, low_memory=False, index_col=False, **options)


def _durations(cells: Cells, names: Columns, submit: Floats, by_stamp: bool) -> Floats:
    """[rows] seconds, by `duration`, or else from `start` or the submission to `end`."""
    if names.duration is not None:
        duration = cells.numbers(names.duration, " of seconds")
        cells.mark(duration < 1.0, names.duration, "is below 1 s")
        cells.mark(duration > LONGEST_S, names.duration, "is above ten years")
        return duration
    assert names.end is not None
    start = names.start or names.submit
    if names.start is not None:
        submit, by_stamp = cells.seconds(start)
    end, ends_by_stamp = cells.seconds(names.end)
    if np.isfinite(end - submit).any():
        _check_alike(start, by_stamp, names.end, ends_by_stamp)
    cells.mark(end - submit < 1.0, names.end, f"is less than 1 s after {start}")
    return end - submit


def _gpus(cells: Cells, names: Columns) -> Floats:
    """[rows] whole GPUs. Shares of a GPU are rounded up, because jobs get whole ones."""
    gpus = cells.numbers(names.gpus) * names.gpu_scale
    if names.instances is not None:
        gpus = gpus * np.nan_to_num(cells.numbers(names.instances, optional=True), nan=1.0)
    with np.errstate(over="ignore"):
        gpus = gpus.round(6)  # .29 of 100 instances
    whole = np.ceil(gpus)
    cells.mark(gpus <= 0, names.gpus, "is not above 0")
    if names.gpu_scale != 1.0:
        cells.mark(gpus < whole, names.gpus, "requests a share of a GPU and gets a whole one", kept=True)
        return whole
    cells.mark(gpus < whole, names.gpus, "is not a whole number of GPUs")
    return gpus


def _check_alike(submit: str, by_stamp: bool, other: str, other_by_stamp: bool) -> None:
    """Check that two columns are either both seconds or both timestamps.

    Raises:
        InputError: one has seconds and the other timestamps.
    """
    if by_stamp != other_by_stamp:
        kinds = ("seconds", "timestamps")
        raise InputError(
            f"columns {submit} and {other} cannot be compared",
            expected="seconds in both, or timestamps in both",
            got=f"{kinds[by_stamp]} and {kinds[other_by_stamp]}",
        )


def parse_mapping(values: Mapping[str, Any]) -> Columns:
    """Column names from a mapping such as `{"submit": "time", "duration": "runtime", "gpus": "gpu"}`."""
    known = set(Columns.__dataclass_fields__)
    for key in values:
        if key not in known:
            raise InputError("column mapping", expected="keys among " + ", ".join(sorted(known)), got=key)
    if "submit" not in values or not ({"duration", "end"} & set(values)):
        raise InputError("column mapping", expected="submit, and duration or end", got=", ".join(values))
    try:
        scale = float(values.get("gpu_scale", 1.0))
    except ValueError:
        scale = float("nan")
    if not 0 < scale < float("inf"):
        raise InputError(
            "column mapping: gpu_scale", expected="a number above 0", got=repr(values["gpu_scale"])
        )
    return Columns(**{**values, "gpu_scale": scale})


def _check_present(columns: Columns, header: list[str], path: Path) -> None:
    for key in Columns.__dataclass_fields__:
        name = getattr(columns, key)
        if isinstance(name, str) and name not in header:
            raise InputError(f"{path} has no column for {key}", expected=", ".join(header[:12]), got=name)


def _is_pai_row(first: list[str]) -> bool:
    """Whether a first line is a row of pai_task_table: as many fields, with numbers in the same places."""
    numbers = [first[k] for k in (2, 4)] if len(first) == len(PAI_TASKS) else ["no"]
    return all(text.replace(".", "", 1).isdigit() for text in numbers)


def _whole_jobs(tasks: pd.DataFrame) -> pd.DataFrame:
    """Merge the tasks of a job (workers, parameter servers) into one row.

    It has all their GPUs, from the first start to the last end, and the first value of every other column. Cells that
    are no numbers count as empty; a column of times without any number is left as it is (timestamps).
    """
    import pandas as pd

    tasks = tasks.copy()
    for column in ("inst_num", "plan_gpu", "start_time", "end_time"):
        numbers = pd.to_numeric(tasks[column], errors="coerce")
        if column not in ("start_time", "end_time") or numbers.notna().any():
            tasks[column] = numbers
    tasks["plan_gpu"] = tasks.plan_gpu.fillna(0.0) * tasks.inst_num.fillna(1.0)
    # A task without a job's name is a job of its own, named by its row.
    unnamed = tasks.job_name.isna() | (tasks.job_name.astype(str).str.strip() == "")
    tasks["job_name"] = tasks.job_name.astype(object).where(
        ~unnamed, [f"row-{k}" for k in range(1, len(tasks) + 1)]
    )
    grouped = tasks.groupby("job_name", sort=False)
    others = {name: "first" for name in tasks if name not in ("job_name", "end_time")}
    jobs = grouped.agg({**others, "start_time": "min", "plan_gpu": "sum"})
    ended = grouped.end_time.count() == grouped.size()  # every task of the job
    jobs["end_time"] = grouped.end_time.max().where(ended)
    return jobs.assign(inst_num=1).reset_index()


def _recognise(header: list[str], path: Path) -> Columns:
    for names in KNOWN.values():
        if {names.submit, names.duration or names.end, names.gpus} <= set(header):
            return names
    raise InputError(
        f"unknown columns in {path}",
        expected="submit_time, duration and gpu_num, or the columns of Philly's or Alibaba's logs",
        got=", ".join(header[:12]),
        hint="map yours with --columns submit=COLUMN,duration=COLUMN,gpus=COLUMN",
    )
