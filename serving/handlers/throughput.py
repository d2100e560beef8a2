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
    """Step time, throughput and memory for each frozen prefix: those of a prediction for the job with it, or scaled to
    what its SPEC states.

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
    prefixes = body.frozen_prefixes or [job.frozen_prefix]
    distinct, points, plain = list(dict.fromkeys(prefixes)), dict[int, dict[str, Any]](), job.without_solo()
    for first in range(0, len(distinct), _TOGETHER):
        some = distinct[first : first + _TOGETHER]
        found = await batcher.bulk.run(_points, belief, job, body, some)
        points.update(zip(some, found, strict=True))
        # The predictor caches each prefix as a separate job, which counts towards a fresh copy of the model.
        batcher.remember(
            belief.serving, [(body.device, _KIND, replace(plain, frozen_prefix=k)) for k in some]
        )
    return {"points": [points[prefix] for prefix in prefixes]}


def _points(belief: Belief, job: Workload, body: ThroughputBody, prefixes: list[int]) -> list[dict[str, Any]]:
    throughput = belief.serving.predictor.throughput
    measured = _predicted(belief, job, body.device, prefixes)
    options = {"nodes": body.nodes, "rewrapped": body.rewrapped, "measured": measured}
    return [
        throughput(job, body.device, prefix, body.gpus, body.cache, **options).to_json()
        for prefix in prefixes
    ]


def _predicted(belief: Belief, job: Workload, device: str, prefixes: list[int]) -> dict[int, SoloProfile]:
    """Step time and memory of the job alone with these prefixes and with none, as predicted; what its SPEC states with
    one prefix is carried over to the others together with what was observed of these."""
    plain, distinct = job.without_solo(), list(dict.fromkeys([0, *prefixes]))
    arrays = belief.predictor.predict_arrays(
        [ColocationSet(device, (replace(plain, frozen_prefix=prefix),)) for prefix in distinct]
    )
    answers = zip(arrays.step_time_s[:, 0].tolist(), arrays.memory_bytes[:, 0].tolist(), strict=True)
    predicted = {prefix: SoloProfile(*answer) for prefix, answer in zip(distinct, answers, strict=True)}
    observed = belief.posterior.measured.by_prefix(device, "time-slice", plain)
    of_steps = predicted if job.solo.step_time_s is None else observed
    of_memory = predicted if job.solo.memory_bytes is None else observed
    nothing = SoloProfile()
    return {
        prefix: SoloProfile(
            of_steps.get(prefix, nothing).step_time_s, of_memory.get(prefix, nothing).memory_bytes
        )
        for prefix in predicted | observed
    }
