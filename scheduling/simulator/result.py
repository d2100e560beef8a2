"""Results of a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from predictor.types import Floats
from scheduling.core.job import JobState
from scheduling.simulator.accounting import accounts, energy


@dataclass(frozen=True, slots=True)
class Interval:
    """A job held a GPU from `start_s` to `stop_s`."""

    job: int
    gpu: int
    start_s: float
    stop_s: float


@dataclass(slots=True)
class SimulationResult:
    """Outcome of one policy on one trace.

    Attributes:
        jobs: every job, done, by submission.
        busy_s: seconds in which a GPU had a tenant, summed over GPUs.
        busy_s_on: the same by device type.
        gpus: GPUs in the cluster.
        decisions_s: wall-clock seconds of each call of the policy.
        intervals: GPU assignments over time, if recorded.
        queue: (time, jobs waiting) after each change, if recorded.
        busy: (time, GPUs in use) after each change, if recorded.
        out_of_memory: starts that the ground truth refused.
        node_failures: number of node failures.
        lost_gpu_s: GPU-seconds of work since a checkpoint that were lost.
        gpu_names: device type and place of each GPU, by number.
        alone_s: [jobs] seconds that each needs alone on its requested GPUs; None if undefined.
    """

    policy: str
    jobs: list[JobState]
    busy_s: float
    gpus: int
    decisions_s: list[float]
    intervals: list[Interval] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)
    busy: list[tuple[float, int]] = field(default_factory=list)
    out_of_memory: int = 0
    node_failures: int = 0
    lost_gpu_s: float = 0.0
    gpu_names: list[str] = field(default_factory=list)
    alone_s: Floats | None = None
    busy_s_on: dict[str, float] = field(default_factory=dict)

    def add_busy(self, device: str, seconds: float) -> None:
        """Add the time for which a GPU of type `device` had tenants."""
        self.busy_s += seconds
        self.busy_s_on[device] = self.busy_s_on.get(device, 0.0) + seconds

    @property
    def completion_s(self) -> Floats:
        """[jobs] completion times, seconds from submission."""
        return np.array([(j.finished_s or 0.0) - j.job.submit_s for j in self.jobs])

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last completion."""
        if not self.jobs:
            return 0.0
        return max(j.finished_s or 0.0 for j in self.jobs) - min(j.job.submit_s for j in self.jobs)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant simulate --json`."""
        jct = self.completion_s if self.jobs else np.zeros(1)
        decisions = np.array(self.decisions_s or [0.0])
        span = self.makespan_s
        return {
            "policy": self.policy,
            "jobs": len(self.jobs),
            "mean_jct_s": float(jct.mean()),
            "median_jct_s": float(np.median(jct)),
            "p99_jct_s": float(np.percentile(jct, 99)),
            "max_jct_s": float(jct.max()),
            "makespan_s": span,
            "mean_queue_s": float(np.mean([j.waited_s for j in self.jobs])) if self.jobs else 0.0,
            "gpu_hours": self.busy_s / 3600.0,
            "utilization_ratio": self.busy_s / (self.gpus * span) if span > 0 else 0.0,
            "restarts": sum(j.restarts for j in self.jobs),
            "out_of_memory": self.out_of_memory,
            "ended_early": sum(j.ends_early for j in self.jobs),
            "node_failures": self.node_failures,
            "lost_gpu_hours": self.lost_gpu_s / 3600.0,
            "mean_decision_s": float(decisions.mean()),
            "p99_decision_s": float(np.percentile(decisions, 99)),
            **energy(self.busy_s_on),
            **accounts(self.jobs, self.completion_s, self.gpus, self.busy_s, self.alone_s),
        }
