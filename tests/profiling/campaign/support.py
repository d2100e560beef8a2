"""A campaign whose runs are real records of a stand-in measurement, and a process to be killed while it runs.

`python -m tests.profiling.campaign.support PLAN DIR SECONDS` carries PLAN out with runs of SECONDS each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.runner import run_campaign
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.workload import Workload


def small_plan(runs: int, expected_s: float = 0.01) -> CampaignPlan:
    """A plan of solo runs at different batch sizes."""
    requests = (
        RunRequest("solo", (Workload("tests.profiling.measure.jobs:mlp", batch_size=i + 1),))
        for i in range(runs)
    )
    return CampaignPlan("test", "cpu", tuple(PlannedRun(r, expected_s, "test") for r in requests))


def record_of(request: RunRequest, settings: MeasureSettings, seconds: float = 0.0) -> dict[str, Any]:
    """A plausible record of `request`, large enough that a kill may hit the middle of its line."""
    time.sleep(seconds)
    member = {
        "workload": str(request.workloads[0]),
        "architecture": request.workloads[0].model,
        "batch_size": request.workloads[0].batch_size,
        "precision": "fp32",
        "frozen_prefix": 0,
        "outcome": "ok",
        "message": "",
        "solo_step_time_s": 0.01,
    }
    return {
        "id": request.run_id(settings),
        "request": request.to_mapping(),
        "device": "cpu",
        "started_at": "2026-01-01T00:00:00+00:00",
        "host_input": "resident",
        "sharing": "time-slice",
        "members": [member],
        "repeats": [{"alone": [[10, 0.01, 0.01, 0.001]] * 200, "together": []}],
        "set": {},
        "notes": [],
        "wall_s": max(seconds, 1e-3),
    }


def main() -> None:
    plan, folder, seconds = CampaignPlan.load(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

    def measure(request: RunRequest, settings: MeasureSettings) -> dict[str, Any]:
        return record_of(request, settings, seconds)

    def tell(*_: object) -> None:
        # what is printed here was finished before: the killer's own record of what must not be lost
        print("begun", flush=True)

    run_campaign(plan, folder, on_start=tell, measure=measure)


if __name__ == "__main__":
    main()
