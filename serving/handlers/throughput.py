"""How freezing a prefix changes the throughput of one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from predictor.freezing import LayerThroughput
from profiling.workload import ColocationSet, Workload
from serving.feedback import Belief
from serving.handlers.jobs import admit
from serving.schemas import JobLike, Name, job_of
from serving.service import Service


class ThroughputBody(Struct, forbid_unknown_fields=True):
    """A job on a device, with its first layers frozen in each of `frozen_prefixes` (its own where there is none)."""

    device: Name
    job: JobLike
    frozen_prefixes: (
        Annotated[list[Annotated[int, Meta(ge=0, le=10**6)]], Meta(min_length=1, max_length=1000)] | None
    ) = None
    gpus: Annotated[int, Meta(ge=1, le=65536)] = 1
    nodes: Annotated[int, Meta(ge=1, le=65536)] = 1
    cache: bool = False
    rewrapped: bool = True


class ThroughputAnswer(Struct):
    points: list[LayerThroughput]


async def throughput(service: Service, body: ThroughputBody) -> dict[str, Any]:
    """Step time, throughput and memory for each frozen prefix, scaled to the job's solo step time, measured or predicted.

    Raises:
        InputError: more layers are frozen than there are, or more nodes than GPUs.
        UnknownNameError: unknown device or model.
    """
    belief = service.belief()
    job = job_of(body.job)
    await admit(service, (job,), (body.device,))
    await service.batcher.encode(belief.serving, [(body.device, "time-slice", job)])
    points = await service.batcher.bulk.run(_points, belief, job, body)
    return {"points": points}


def _points(belief: Belief, job: Workload, body: ThroughputBody) -> list[dict[str, Any]]:
    if job.solo.step_time_s is None:  # what observations say of the job's step time is said here too
        arrays = belief.predictor.predict_arrays([ColocationSet(body.device, (job,))])
        job = replace(job, solo=replace(job.solo, step_time_s=float(arrays.solo_step_time_s[0, 0])))
    return [
        belief.serving.predictor.throughput(
            job, body.device, prefix, body.gpus, body.cache, nodes=body.nodes, rewrapped=body.rewrapped
        ).to_json()
        for prefix in body.frozen_prefixes or [job.frozen_prefix]
    ]
