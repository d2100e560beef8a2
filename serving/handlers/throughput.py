"""How freezing a prefix changes the throughput of one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiling.workload import ColocationSet, Workload
from serving.handlers.jobs import admit
from serving.model_life import Serving
from serving.schemas import ThroughputBody, job_of
from serving.service import Service


async def throughput(service: Service, body: ThroughputBody) -> dict[str, Any]:
    """Step time, throughput and memory for each frozen prefix, scaled to the job's solo step time, measured or predicted.

    Raises:
        InputError: more layers are frozen than there are, or more nodes than GPUs.
        UnknownNameError: the device or the model is not known.
    """
    serving = service.life.current()
    job = job_of(body.job)
    await admit(service, (job,), (body.device,))
    points = await service.batcher.slow(_points, service, serving, job, body)
    return {"points": points}


def _points(service: Service, serving: Serving, job: Workload, body: ThroughputBody) -> list[dict[str, Any]]:
    from predictor.layers import layer_throughput

    anchor = job.solo.step_time_s
    if anchor is None:
        arrays = serving.predictor.predict_arrays([ColocationSet(body.device, (job,))])
        anchor = float(arrays.solo_step_time_s[0, 0])
    graph = service.graph_of(replace(job.without_solo(), frozen_prefix=0))
    return [
        layer_throughput(
            job, body.device, prefix, body.gpus, body.cache, nodes=body.nodes, rewrapped=body.rewrapped,
            anchor_step_time_s=anchor, graph=graph,
        ).to_json()
        for prefix in body.frozen_prefixes or [job.frozen_prefix]
    ]  # fmt: skip
