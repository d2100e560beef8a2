"""Job lists of Sia's public simulator: name, time, application, num_replicas, batch_size (and category)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.sia.application import Application

KINDS = {"adaptive": "adaptive", "scale-gpus": "strong-scaling", "rigid": "rigid"}


def read_sia(path: Path, applications: Mapping[str, Application], kind: str = "adaptive") -> list[TraceJob]:
    """Jobs of a workload file; their length is the full run of the application.

    Args:
        kind: of jobs in a file without the column `category`.

    Raises:
        InputError: a column or an application is missing.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (FileNotFoundError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} is not a workload file", expected="a CSV", got=str(error)) from None
    missing = {"name", "time", "application", "num_replicas", "batch_size"} - set(frame.columns)
    if missing:
        raise InputError(
            f"{path} lacks columns", expected=", ".join(sorted(missing)), got=", ".join(frame.columns)
        )
    jobs = []
    for row in frame.itertuples():
        name = str(row.application)
        if name not in applications:
            raise InputError(
                f"{path}: application was not measured", expected=", ".join(applications), got=name
            )
        application = applications[name]
        category = str(getattr(row, "category", "")) or kind
        jobs.append(
            TraceJob(
                str(row.name),
                Workload(name),
                application.progress(application.max_epochs),
                float(str(row.time)),
                gpus=int(str(row.num_replicas)),
                application=name,
                kind="hybrid" if name == "gpt_pmp" else KINDS.get(category, kind),
                batch_size=int(str(row.batch_size)),
            )
        )
    return jobs
