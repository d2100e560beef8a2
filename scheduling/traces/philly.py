"""Jobs of Microsoft's Philly log as published: `cluster_job_log`, a JSON list of jobs with their attempts."""

from __future__ import annotations

from math import isfinite
from typing import Any

from scheduling.traces.logged import LoggedJob, stamp_s


def is_philly(body: Any) -> bool:
    """Whether a JSON document is that log."""
    return isinstance(body, list) and bool(body) and isinstance(body[0], dict) and "attempts" in body[0]


def read_philly(body: list[dict[str, Any]]) -> list[LoggedJob]:
    """One row per job: total time of its attempts, and the most GPUs of any attempt.

    A job whose last attempt has no end was still running when the log was taken, and has no duration. An
    earlier attempt without start or end, which is a gap in the log, adds no time. The user is the virtual
    cluster, and the log has neither priorities nor deadlines.
    """
    return [_job(job) for job in body]


def _job(job: dict[str, Any]) -> LoggedJob:
    attempts = job.get("attempts") or []
    times = [stamp_s(a.get("end_time")) - stamp_s(a.get("start_time")) for a in attempts]
    ended = not attempts or isfinite(stamp_s(attempts[-1].get("end_time")))
    gpus = [sum(len(node.get("gpus") or ()) for node in a.get("detail") or ()) for a in attempts]
    return LoggedJob(
        str(job.get("jobid", "")),
        stamp_s(job.get("submitted_time")),
        sum(t for t in times if t == t) if ended else float("nan"),
        float(max(gpus, default=0)),
        str(job.get("vc", "")),
        state=str(job.get("status", "")),
    )
