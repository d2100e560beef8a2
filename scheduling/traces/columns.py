"""Job logs by their columns: Philly, Alibaba, Helios, or any CSV with a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.traces.mix import Mix


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of a log's columns. `end` serves where there is no `duration`; `gpu_scale` turns its unit into GPUs.

    Attributes:
        submit: a time stamp or seconds.
        gpus: GPUs of the job (of an instance where `instances` is given).
    """

    submit: str
    duration: str | None = None
    end: str | None = None
    gpus: str = "num_gpus"
    gpu_scale: float = 1.0
    instances: str | None = None
    user: str | None = None
    id: str | None = None


KNOWN: dict[str, Columns] = {
    "philly": Columns("timestamp", "duration", gpus="num_gpus", user="cluster"),
    "helios": Columns("submit_time", "duration", gpus="gpu_num", user="user", id="job_id"),
    "alibaba": Columns(
        "start_time",
        end="end_time",
        gpus="plan_gpu",
        gpu_scale=0.01,
        instances="inst_num",
        user="user",
        id="job_name",
    ),
}


def read_columns(
    path: Path, mix: Mix, seed: int = 0, columns: Columns | None = None, limit: int | None = None
) -> list[TraceJob]:
    """Jobs of a log; each gets a workload of `mix`, and iterations = duration / solo step time.

    Rows without GPUs, without a duration, or with one below a second are left out. Fractions of a GPU count as one.

    Args:
        columns: names; found by the file's own header where None.
        limit: only the first jobs by submission.

    Raises:
        InputError: the file is not a CSV or its columns are unknown.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, nrows=None)
    except (FileNotFoundError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} is not a trace", expected="a CSV of jobs", got=str(error)) from None
    names = columns or _recognise(list(frame.columns), path)
    submit = _seconds(frame[names.submit])
    if names.duration is not None:
        duration = pd.to_numeric(frame[names.duration], errors="coerce").to_numpy(float)
    else:
        duration = _seconds(frame[names.end]) - submit
    gpus = pd.to_numeric(frame[names.gpus], errors="coerce").to_numpy(float) * names.gpu_scale
    if names.instances is not None:
        gpus = gpus * pd.to_numeric(frame[names.instances], errors="coerce").fillna(1).to_numpy(float)
    good = np.isfinite(submit) & np.isfinite(duration) & (duration >= 1.0) & np.isfinite(gpus) & (gpus > 0)
    order = np.flatnonzero(good)
    order = order[np.argsort(submit[order], kind="stable")][:limit]
    if not order.size:
        raise InputError(f"{path} has no job with GPUs and a duration", got=f"{len(frame)} rows")
    workloads = mix.draw(len(order), seed)
    first = float(submit[order[0]])
    users = frame[names.user].astype(str).to_numpy() if names.user in frame else np.full(len(frame), "")
    return [
        TraceJob(
            f"job-{number}",
            workload,
            float(duration[row]) / mix.step_time_s(workload),
            float(submit[row]) - first,
            gpus=max(1, round(float(gpus[row]))),
            user=str(users[row]),
        )
        for number, (row, workload) in enumerate(zip(order.tolist(), workloads, strict=True))
    ]


def parse_mapping(values: Mapping[str, Any]) -> Columns:
    """Column names from a mapping such as `{"submit": "time", "duration": "runtime", "gpus": "gpu"}`."""
    known = set(Columns.__dataclass_fields__)
    for key in values:
        if key not in known:
            raise InputError("column mapping", expected="keys among " + ", ".join(sorted(known)), got=key)
    if "submit" not in values or not ({"duration", "end"} & set(values)):
        raise InputError("column mapping", expected="submit, and duration or end", got=", ".join(values))
    return Columns(**values)


def _recognise(header: list[str], path: Path) -> Columns:
    for names in KNOWN.values():
        if {names.submit, names.duration or names.end, names.gpus} <= set(header):
            return names
    raise InputError(
        f"unknown columns in {path}",
        expected="those of " + ", ".join(KNOWN) + ", or a mapping",
        got=", ".join(header[:12]),
    )


def _seconds(column: Any) -> Any:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(float)
    stamps = pd.to_datetime(column, errors="coerce", utc=True)
    seconds = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return seconds.to_numpy(float)
