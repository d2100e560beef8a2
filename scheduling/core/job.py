"""Jobs in a trace, running jobs, and a policy's decisions about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.batches import BatchRange
from scheduling.core.limits import LATEST_S, check_iterations


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line of a trace.

    Attributes:
        id: unique in the trace.
        workload: what each of its GPUs runs.
        iterations: steps to do.
        submit_s: seconds from the start of the trace.
        gpus: size of its gang of GPUs, all at once.
        min_gpus, max_gpus: range for policies that resize a job; None for `gpus`.
        user: owner or group, for fairness.
        application: the measured application of a goodput job (Sia), else empty.
        kind: of a job with an application: `rigid` (fixed GPUs and batch), `strong-scaling` (fixed batch),
            `adaptive` (both tuned) or `hybrid` (pipeline x data parallel).
        batch_size: total batch size requested by a rigid or strong-scaling job.
        batches: batches that a job without a measured application may train with if it has its GPUs for
            itself; its workload states its own batch. None: only that one.
        preemptible: whether it may be stopped before it is done.
        priority: relative weight; 2 should get twice as much as 1.
        deadline_s: deadline in seconds after submission.
    """

    id: str
    workload: Workload
    iterations: float
    submit_s: float = 0.0
    gpus: int = 1
    min_gpus: int | None = None
    max_gpus: int | None = None
    user: str = ""
    application: str = ""
    kind: str = "rigid"
    batch_size: int | None = None
    batches: BatchRange | None = None
    preemptible: bool = True
    priority: float = 1.0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        check_iterations(f"job {self.id}: iterations", self.iterations)
        if not 0 <= self.submit_s <= LATEST_S:
            raise InputError(
                f"job {self.id}: submit_s", expected=f"seconds from 0 to {LATEST_S:g}", got=self.submit_s
            )
        if self.gpus < 1:
            raise InputError(f"job {self.id}: gpus", expected="an integer from 1", got=self.gpus)
        least, most = self.gpu_range
        if not 1 <= least <= self.gpus <= most:
            raise InputError(
                f"job {self.id}: min_gpus and max_gpus",
                expected=f"a range around its {self.gpus} GPUs",
                got=f"{least} to {most}",
            )
        if self.batches is not None and self.workload.batch_size not in self.batches.sizes:
            raise InputError(
                f"job {self.id}: batches", expected=f"its own batch of {self.workload.batch_size} among them",
                got=str(self.batches.sizes),
            )  # fmt: skip
        if not 0 < self.priority < float("inf"):
            raise InputError(f"job {self.id}: priority", expected="a number above 0", got=self.priority)
        if self.deadline_s is not None and not 0 < self.deadline_s < float("inf"):
            raise InputError(f"job {self.id}: deadline_s", expected="seconds above 0", got=self.deadline_s)

    @property
    def gpu_range(self) -> tuple[int, int]:
        """Minimum and maximum number of GPUs."""
        least, most = self.min_gpus, self.max_gpus
        return self.gpus if least is None else least, self.gpus if most is None else most


def check_ids(jobs: Iterable[TraceJob]) -> None:
    """Raise `InputError` naming the first id that two of `jobs` share."""
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise InputError("job ids are not unique", expected="each id once in a trace", got=repr(job.id))
        seen.add(job.id)


_OVERDUE = 0.05


@dataclass(slots=True, eq=False)
class JobState:
    """A job and its state in the cluster. The simulator writes it; policies only read.

    Attributes:
        number: position in the trace by submission.
        left: iterations left when last brought up to date (`updated_s`); see `SchedulingSnapshot.left`.
        rate: iterations per second now; 0 while waiting or restarting.
        gpus: numbers of the GPUs it holds; empty while it waits.
        frozen_prefix: frozen atomic layers now.
        attained_gpu_s: GPU-seconds held so far, up to `updated_s`.
        waited_s: seconds in the queue so far, without the present wait, which began at `waiting_since_s`.
        served_s: seconds on each device type.
        restarts: number of times it was stopped or moved after its first start.
        resume_s: time at which it has loaded its checkpoint.
        version: changes with its pace, so that an end scheduled before counts no more.
        until: iterations left at which its present segment ends (`scheduling.core.truth`).
        exclusive: once ran out of memory beside others, so is placed alone since.
        agent: the job's agent, if any (Sia: its observations and fitted models).
        expected_iterations: length assumed by policies, if it differs from the actual `real_iterations`.
        ends_early: killed or failed before its submitted length.
        checkpoint_left: iterations left at the last checkpoint, taken at `checkpoint_s`.
    """

    job: TraceJob
    number: int
    left: float
    rate: float = 0.0
    updated_s: float = 0.0
    gpus: tuple[int, ...] = ()
    frozen_prefix: int = 0
    attained_gpu_s: float = 0.0
    restarts: int = 0
    started_s: float | None = None
    finished_s: float | None = None
    waiting_since_s: float = 0.0
    waited_s: float = 0.0
    resume_s: float = 0.0
    exclusive: bool = False
    version: int = 0
    until: float = 0.0
    served_s: dict[str, float] = field(default_factory=dict)
    agent: Any = None
    expected_iterations: float | None = None
    real_iterations: float = 0.0
    checkpoint_left: float = 0.0
    checkpoint_s: float = 0.0
    ends_early: bool = False

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def expected_length(self) -> float:
        """Total iterations as assumed by policies."""
        return self.job.iterations if self.expected_iterations is None else self.expected_iterations

    def believed(self, left: float) -> float:
        """Iterations left as assumed by policies, when `left` is the actual number."""
        if self.expected_iterations is None:
            return left
        done = max(self.real_iterations - left, 0.0)
        # A job past its expected length is assumed to need a twentieth of it again.
        return max(self.expected_iterations - done, done * _OVERDUE)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One decision: from now on `job` holds `gpus` (none: it is suspended).

    Attributes:
        frozen_prefix: frozen atomic layers from now on; None for as many as before.
    """

    job: JobState
    gpus: tuple[int, ...] = ()
    frozen_prefix: int | None = None

    @property
    def prefix(self) -> int:
        """Frozen atomic layers under this decision."""
        return self.job.frozen_prefix if self.frozen_prefix is None else self.frozen_prefix
