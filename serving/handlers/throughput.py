"""How freezing a prefix changes the throughput of one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from predictor.freezing import LayerThroughput
from profiling.devices import canonical
from profiling.workload import ColocationSet, SoloProfile, Workload
from serving.feedback import Belief
from serving.handlers.jobs import admit
from serving.schemas import JobLike, Name, job_of
from serving.service import Service

# Prefixes per lane call, because others wait for it: half a second for a network with hundreds of layers.
_TOGETHER = 8
_KIND = "layer-throughput"  # no sharing mode: cached results for these jobs say nothing about co-location


class ThroughputBody(Struct, forbid_unknown_fields=True):
    """A job on a device, with each of `frozen_prefixes` leading layers frozen (default: the job's own
    prefix)."""

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
    """Step time, throughput and memory for each frozen prefix, scaled to what was measured of the job alone with
    these and other prefixes.

    Raises:
        InputError: more layers frozen than the model has, or more nodes than GPUs.
        UnknownNameError: unknown device or model.
    """
    belief, batcher = service.belief(), service.batcher
    # The predictor caches jobs by the catalogue's name.
    body = structs.replace(body, device=canonical(body.device))
    job = job_of(body.job)
    await admit(service, (job,), (body.device,))
    await batcher.encode(belief.serving, [(body.device, "time-slice", job)])
    job, measured = await batcher.bulk.run(_observed, belief, job, body.device)
    prefixes = body.frozen_prefixes or [job.frozen_prefix]
    distinct, points, plain = list(dict.fromkeys(prefixes)), dict[int, dict[str, Any]](), job.without_solo()
    for first in range(0, len(distinct), _TOGETHER):
        some = distinct[first : first + _TOGETHER]
        found = await batcher.bulk.run(_points, belief, job, body, some, measured)
        points.update(zip(some, found, strict=True))
        # The predictor caches each prefix as a separate job, which counts towards a fresh copy of the model.
        batcher.remember(
            belief.serving, [(body.device, _KIND, replace(plain, frozen_prefix=k)) for k in some]
        )
    return {"points": [points[prefix] for prefix in prefixes]}


def _observed(belief: Belief, job: Workload, device: str) -> tuple[Workload, dict[int, SoloProfile]]:
    """The job with its solo step time corrected by observations of others if it was measured with no prefix, and what
    was observed of it alone by prefix."""
    alone = ColocationSet(device, (job,))
    job = belief.posterior.told(alone.device, alone.sharing, job)
    measured = belief.posterior.measured.by_prefix(alone.device, alone.sharing, job)
    if any(profile.step_time_s is not None for profile in (job.solo, *measured.values())):
        return job, measured
    arrays = belief.predictor.predict_arrays([alone])
    step_time_s = float(arrays.solo_step_time_s[0, 0])
    return replace(job, solo=replace(job.solo, step_time_s=step_time_s)), measured


def _points(
    belief: Belief, job: Workload, body: ThroughputBody, prefixes: list[int], measured: dict[int, SoloProfile]
) -> list[dict[str, Any]]:
    throughput = belief.serving.predictor.throughput
    options = {"nodes": body.nodes, "rewrapped": body.rewrapped, "measured": measured}
    points = [
        throughput(job, body.device, prefix, body.gpus, body.cache, **options).to_json()
        for prefix in prefixes
    ]
    is_measured = any(profile.memory_bytes is not None for profile in (job.solo, *measured.values()))
    if is_measured or not belief.posterior.memory_follows(body.device, job):
        return points
    plain = job.without_solo()
    sets = [ColocationSet(body.device, (replace(plain, frozen_prefix=p["frozen_prefix"]),)) for p in points]
    memory = belief.predictor.predict_arrays(sets).memory_bytes[:, 0].tolist()
    return [{**point, "memory_bytes": value} for point, value in zip(points, memory, strict=True)]
