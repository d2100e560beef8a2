"""Iterations left of tenants given without them.

Assumed is an hour's worth of steps alone on their GPU, as the serving model predicts.
"""

from __future__ import annotations

from predictor.types import Prediction
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.core.limits import unknown_steps
from serving.handlers.jobs import admit
from serving.schemas import ClusterBody, TenantBody, job_of
from serving.service import Service

# Tenants without a length, by the job alone on their GPU type.
_OpenEnded = dict[ColocationSet, list[TenantBody]]
# A job of each model on each GPU type.
_Named = dict[tuple[str, str], Workload]


async def fill_lengths(service: Service, body: ClusterBody, refuse: bool = False) -> None:
    """Set `iterations_left` for tenants without it.

    Args:
        refuse: whether a tenant that cannot be predicted is an error; otherwise its GPU is excluded from the
            ranking.

    Raises:
        InputError: invalid job or device.
        UnavailableError: no model serves.
    """
    apart = service.batcher.apart
    size = sum(len(gpu.tenants) for node in body.nodes for gpu in node.gpus)
    open_ended, named = await apart(size, _open_ended, body)
    unknown = set()
    for (device, model), job in named.items():
        try:
            await admit(service, (job,), (device,))
        except UnknownNameError:
            unknown.add((device, model))
    known = await apart(size, _without, open_ended, unknown)
    if known:
        predictions = await service.batcher.predict_each(known)
        await apart(size, _fill, open_ended, known, predictions, refuse)


def _open_ended(body: ClusterBody) -> tuple[_OpenEnded, _Named]:
    open_ended: _OpenEnded = {}
    for node in body.nodes:
        for gpu in node.gpus:
            for tenant in gpu.tenants:
                if tenant.iterations_left is None:
                    alone = ColocationSet(gpu.device, (job_of(tenant.job),), gpu.sharing)
                    open_ended.setdefault(alone, []).append(tenant)
    return open_ended, {_name(alone): alone.workloads[0] for alone in open_ended}


def _name(alone: ColocationSet) -> tuple[str, str]:
    return alone.device, alone.workloads[0].model


def _without(open_ended: _OpenEnded, unknown: set[tuple[str, str]]) -> list[ColocationSet]:
    """The jobs of known models on known types. Other tenants get any length: their GPU is refused, or excluded from
    the ranking."""
    known = []
    for alone, tenants in open_ended.items():
        if _name(alone) in unknown:
            _set(tenants, 1.0)
        else:
            known.append(alone)
    return known


def _fill(
    open_ended: _OpenEnded,
    known: list[ColocationSet],
    predictions: list[Prediction | InputError],
    refuse: bool,
) -> None:
    for alone, prediction in zip(known, predictions, strict=True):
        if not isinstance(prediction, InputError):
            _set(open_ended[alone], unknown_steps(prediction.members[0].step_time_s.value))
        elif refuse:
            raise prediction
        else:
            _set(open_ended[alone], 1.0)


def _set(tenants: list[TenantBody], iterations: float) -> None:
    for tenant in tenants:
        tenant.iterations_left = iterations
