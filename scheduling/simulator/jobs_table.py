"""One row per job of a simulation, as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError
from profiling.files import check_file, write_whole
from scheduling.simulator.accounting import finish_time_rho
from scheduling.simulator.result import SimulationResult

if TYPE_CHECKING:
    import pandas as pd

FORMATS = (".csv", ".parquet")


def check_format(path: Path) -> None:
    """Raise `InputError` unless the suffix is one of `FORMATS`, and the folder can be written to."""
    if path.suffix not in FORMATS:
        raise InputError(
            "unknown format of the job table", expected=" or ".join(FORMATS), got=path.suffix or str(path)
        )
    check_file(path)


Labelled = tuple[str, int, float | None, SimulationResult]
"""Policy, seed, offered load (None: as in the trace) and result of a run."""


def jobs_table(results: Iterable[Labelled]) -> pd.DataFrame:
    """Rows by load, policy, seed and submission; times in seconds from the start of the trace.

    `iterations` is a job's submitted length, `iterations_done` what it completed: fewer if it was killed or
    failed (`ended_early`).
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for policy, seed, load, result in results:
        rho = (
            [None] * len(result.jobs)
            if result.alone_s is None
            else finish_time_rho(result.jobs, result.completion_s, result.gpus, result.alone_s).tolist()
        )
        for job, job_rho in zip(result.jobs, rho, strict=True):
            served = job.served_s
            rows.append(
                {
                    "policy": policy,
                    "seed": seed,
                    "load": load,
                    "job_id": job.id,
                    "workload": str(job.job.workload),
                    "gpus": job.job.gpus,
                    "user": job.job.user,
                    "iterations": job.job.iterations,
                    "iterations_done": (job.real_iterations or job.job.iterations) - job.left,
                    "ended_early": job.ends_early,
                    "submit_s": job.job.submit_s,
                    "start_s": job.started_s,
                    "finish_s": job.finished_s,
                    "jct_s": None if job.finished_s is None else job.finished_s - job.job.submit_s,
                    "queue_s": job.waited_s,
                    "gpu_s": job.attained_gpu_s,
                    "finish_time_rho": job_rho,
                    "priority": job.job.priority,
                    "deadline_s": job.job.deadline_s,
                    "device": max(served, key=served.__getitem__) if served else "",
                    "restarts": job.restarts,
                    "ran_out_of_memory": job.exclusive,
                }
            )
    return pd.DataFrame(rows)


def write_jobs(path: Path, results: Iterable[Labelled]) -> None:
    """Write the table of `jobs_table` atomically. Raises `InputError` for an unknown suffix."""
    check_format(path)
    frame, content = jobs_table(results), BytesIO()
    if path.suffix == ".csv":
        frame.to_csv(content, index=False)
    else:
        frame.to_parquet(content, index=False)
    write_whole(path, content.getvalue())
