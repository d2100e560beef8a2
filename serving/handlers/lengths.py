"""Iterations left of tenants given without them.

Assumed is an hour's worth of steps alone on their GPU, as the serving model predicts.
"""

from __future__ import annotations

from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet
from scheduling.core.limits import unknown_steps
from serving.handlers.jobs import admit
from serving.schemas import ClusterBody, job_of
from serving.service import Service


async def fill_lengths(service: Service, body: ClusterBody, refuse: bool = False) -> None:
    """Set `iterations_left` for tenants without it.

    Args:
        refuse: whether a tenant that cannot be predicted is an error; otherwise its GPU is excluded from the
            ranking.

    Raises:
        InputError: invalid job or device.
        UnavailableError: no model serves.
    """
    open_ended = [
        (gpu, tenant)
        for node in body.nodes
        for gpu in node.gpus
        for tenant in gpu.tenants
        if tenant.iterations_left is None
    ]
    known = []
    for gpu, tenant in open_ended:
        job = job_of(tenant.job)
        try:
            await admit(service, (job,), (gpu.device,))
        except UnknownNameError:
            # Any value: a GPU with an unknown tenant is refused, or excluded from the ranking.
            tenant.iterations_left = 1.0
            continue
        known.append((tenant, ColocationSet(gpu.device, (job,), gpu.sharing)))
    if not known:
        return
    predictions = await service.batcher.predict_each([alone for _, alone in known])
    for (tenant, _), prediction in zip(known, predictions, strict=True):
        if isinstance(prediction, InputError):
            if refuse:
                raise prediction
            tenant.iterations_left = 1.0
            continue
        tenant.iterations_left = unknown_steps(prediction.members[0].step_time_s.value)
