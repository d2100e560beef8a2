"""Schemas of observations, and of the sets that they are of, decoded by msgspec and shown in OpenAPI."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from profiling.workload import LEAST_MEMORY_BYTES
from serving.schemas import Quantity, SetBody, Sharing, StepTime


class ObservationBody(Struct, forbid_unknown_fields=True):
    """A measured step time of job number `member` in the set `of`, and of a job alone what it takes of the device; or,
    instead of the step time, that the set ran out of device memory."""

    of: SetBody
    step_time_s: StepTime | None = None
    out_of_memory: bool = False
    member: Annotated[int, Meta(ge=0, le=1024)] = 0
    memory_bytes: Annotated[float, Meta(ge=LEAST_MEMORY_BYTES, le=1e15)] | None = None
    utilization_ratio: Annotated[float, Meta(ge=0, le=1)] | None = None
    observed_at: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    placement_id: Annotated[str, Meta(max_length=32)] | None = None


class ObservationsBody(Struct, forbid_unknown_fields=True):
    observations: Annotated[list[ObservationBody], Meta(min_length=1)]


class ObservationEntry(Struct):
    """An observation and its prediction. `error_ratio` is |predicted - observed| / observed.

    A set that ran out of memory has no `step_time_s`, `error_ratio` and `covered`.
    """

    id: int
    device: str
    sharing: Sharing
    jobs: list[str]
    member: int
    step_time_s: float | None
    out_of_memory: bool
    memory_bytes: float | None
    utilization_ratio: float | None
    predicted_step_time_s: Quantity
    error_ratio: float | None
    covered: bool | None
    model_version: str
    observed_at: float
    placement_id: str | None


class ObservationsAnswer(Struct):
    observations: list[ObservationEntry]


class ObservationPage(Struct):
    items: list[ObservationEntry]
    next: str | None


class GpuSeen(Struct, forbid_unknown_fields=True):
    """The GPU or slice that a job runs on, by its UUID."""

    gpu_uuid: Annotated[str, Meta(min_length=1, max_length=100, pattern="^[!-~]+$")]


class ObservedSet(Struct):
    """A set in the form of an observation's `of`, with the SPECs of its jobs."""

    device: str
    jobs: list[str]
    sharing: Sharing


class TenantEntry(Struct):
    """A job on a GPU of the stored cluster: job number `member` of the set `of` that runs there now."""

    node: str
    gpu: str
    of: ObservedSet
    member: int
    job_id: str
    placement_id: str | None


class TenantsAnswer(Struct):
    """Where a job runs: one entry for each of its GPUs."""

    tenants: list[TenantEntry]
