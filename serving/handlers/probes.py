"""The most informative sets to run for a job."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from predictor.learning.suggesting import STANDARD_PARTNERS, suggest_probes
from profiling.devices import canonical
from profiling.workload import Workload
from serving.handlers.jobs import admit
from serving.schemas import JobLike, Name, Sharing, job_of
from serving.service import Service


class ProbesBody(Struct, forbid_unknown_fields=True):
    """A job on a device, and its candidate partners (default: four zoo models). One named twice counts double,
    and one that does not fit beside the job is left out; if none fits, the job alone is suggested."""

    device: Name
    job: JobLike
    running: Annotated[list[JobLike], Meta(max_length=256)] = []
    count: Annotated[int, Meta(ge=1, le=64)] = 1
    sharing: Sharing = "time-slice"


class ProbeEntry(Struct):
    """A set to run; the job alone, if `jobs` holds no other. `error_ratio` is the expected error of the step times
    of the job and its partners after this probe and the earlier ones."""

    jobs: list[str]
    error_ratio: float


class ProbesAnswer(Struct):
    """Probes, the most informative first; `reasons` say why there are fewer than `count`, or that no partner fits.

    `never_measured` says what was never measured of the job beside its partners, as in `/v1/predict`.
    """

    device: str
    sharing: str
    error_ratio: float
    probes: list[ProbeEntry]
    reasons: list[str]
    never_measured: list[str]


async def probes(service: Service, body: ProbesBody) -> dict[str, Any]:
    """The most informative runs of the job, given all observations.

    Raises:
        UnknownNameError: unknown device or model.
        InputError: the job does not fit, even alone.
    """
    belief, device = service.belief(), canonical(body.device)
    job = job_of(body.job)
    partners: list[Workload] = [job_of(running) for running in body.running] or [
        Workload.parse(name) for name in STANDARD_PARTNERS
    ]
    await admit(service, (job, *partners), (device,))
    await service.batcher.encode(belief.serving, [(device, body.sharing, w) for w in (job, *partners)])
    plan = await service.batcher.bulk.run(
        suggest_probes, belief.posterior, device, job, partners, body.count, body.sharing
    )
    return plan.to_json()
