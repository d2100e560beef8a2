"""Plans for one card: whole, shared, or partitioned by MIG."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from profiling.devices import canonical
from profiling.workload import Workload
from scheduling.slices.answered import answered_plan
from scheduling.slices.exact import MAX_JOBS
from scheduling.slices.options import SliceConfig, devices_of
from serving.feedback import Belief
from serving.given_names import as_given
from serving.handlers.jobs import admit
from serving.schemas import JobLike, Name, job_of
from serving.service import Service


def _both() -> list[Literal["time-slice", "mps"]]:
    return ["time-slice", "mps"]


class SlicePlanBody(Struct, forbid_unknown_fields=True):
    """Up to 12 jobs for one card. `iterations` are the steps left of each (default: an hour's worth alone on the card).

    `sharing` says how several jobs may share the card or a slice (default: `time-slice` and `mps`); an empty list: they
    may not. A job's `sm_share_ratio` fixes its share under MPS.
    """

    device: Name
    jobs: Annotated[list[JobLike], Meta(min_length=1, max_length=MAX_JOBS)]
    iterations: Annotated[list[Annotated[float, Meta(gt=0)]], Meta(max_length=MAX_JOBS)] = []
    objective: Literal["throughput", "jct", "fairness"] = "throughput"
    sharing: Annotated[list[Literal["time-slice", "mps"]], Meta(max_length=2)] = field(default_factory=_both)
    mig: bool = True
    max_together: Annotated[int, Meta(ge=1, le=8)] = 4


class JobOnSlice(Struct):
    """`speed_ratio` is relative to the job alone on the whole card; the interval is of 90 %."""

    job: str
    sm_share_ratio: float
    step_time_s: float
    speed_ratio: float
    completion_s: float
    step_time_interval_s: list[float]


class PlannedSlice(Struct):
    """A slice, or the whole card, with its first memory slot (null for a whole card); empty slices hold no jobs."""

    device: str
    start: int | None
    sharing: str | None
    memory_bytes: float
    jobs: list[JobOnSlice]


class SlicePlanSummary(Struct):
    """A use of the card, the best of its kind and partition. `kind` is `whole`, `time-slice`, `mps`, `mps-shares`, `mig` or
    `mixture`."""

    kind: str
    partition: str
    value: float
    placed: int
    speed_sum: float
    least_speed_ratio: float
    mean_completion_s: float


class SlicePlanAnswer(SlicePlanSummary):
    """The best use of the card. `waiting` are jobs without room; `reasons` say why this use and not the next best."""

    device: str
    objective: str
    slices: list[PlannedSlice]
    waiting: list[str]
    alternatives: list[SlicePlanSummary]
    reasons: list[str]
    never_measured: list[str]


async def slice_plan(service: Service, body: SlicePlanBody) -> dict[str, Any]:
    """The best use of a card for some jobs, given all observations.

    Raises:
        UnknownNameError: unknown device or model.
        InputError: a job that the card cannot run.
        InfeasibleError: no job fits on the card.
    """
    belief, device = service.belief(), canonical(body.device)
    jobs = [job_of(job) for job in body.jobs]
    await admit(service, jobs, (device,))
    devices = devices_of(device, body.mig)
    await service.batcher.encode(
        belief.serving, [(where, "time-slice", job) for where in devices for job in dict.fromkeys(jobs)]
    )
    return await service.batcher.bulk.run(_planned, belief, jobs, device, body)


def _planned(belief: Belief, jobs: list[Workload], device: str, body: SlicePlanBody) -> dict[str, Any]:
    config = SliceConfig(
        objective=body.objective, sharing=tuple(body.sharing), mig=body.mig, max_together=body.max_together
    )
    answered = answered_plan(jobs, body.iterations, device, belief.posterior, config)
    renamed = as_given([str(job) for job in jobs], jobs, answered.told)
    plan: dict[str, Any] = renamed(answered.to_json())
    return plan
