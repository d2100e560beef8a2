"""Predictions of one set and of many."""

from __future__ import annotations

from msgspec import json

from predictor.types import Prediction
from profiling.errors import CotenantError, LimitError, UnknownNameError
from profiling.workload import ColocationSet
from serving.handlers.jobs import admit_sets
from serving.http import decode
from serving.schemas import BatchBody, SetBody, set_of, sets_of
from serving.service import Service


async def predict(service: Service, raw: bytes) -> bytes:
    """The prediction for the set in a request's body, as JSON.

    Repeated questions are answered from the cache.

    Raises:
        CotenantError: unknown device, model or option. UnavailableError: no model serves.
    """
    belief = service.belief()
    known = service.answers.get(belief, raw)
    if known is None:
        asked = set_of(decode(raw, SetBody), service.config.set_jobs)
        try:
            await admit_sets(service, [asked])
            prediction = await service.batcher.predict(asked)
        except CotenantError:
            service.metrics.predictions.labels("refused").inc()
            raise
        known = json.encode(prediction), prediction.fits
        if service.belief() is belief:  # unchanged while the answer was computed
            service.answers.put(belief, raw, known)
    service.metrics.predictions.labels("fits" if known[1] else "too_large").inc()
    return known[0]


async def predict_batch(service: Service, raw: bytes) -> bytes:
    """Predictions for all sets in a request's body, with one model, as JSON.

    One bad set, named in the error, fails the batch.
    """
    service.life.current()
    sets = await service.batcher.off_loop(len(raw), _read_batch, service, raw)
    try:
        await admit_sets(service, sets)
    except UnknownNameError as error:
        raise await _located(service, sets, error) from None

    def render(predictions: list[Prediction]) -> bytes:
        _count(service, predictions)
        return json.encode(predictions)[1:-1]

    parts = await service.batcher.each_part(sets, render)
    return b"".join((b'{"predictions":[', b",".join(parts), b"]}"))


async def _located(service: Service, sets: list[ColocationSet], error: UnknownNameError) -> UnknownNameError:
    """The error of the first set that has one, with the number of the set."""
    for number, asked in enumerate(sets):
        try:
            await admit_sets(service, [asked])
        except UnknownNameError as own:
            return own.at(f"sets[{number}]")
    return error  # the missing graph has just been registered


def _read_batch(service: Service, raw: bytes) -> list[ColocationSet]:
    body, limit = decode(raw, BatchBody), service.config.batch_sets
    if len(body.sets) > limit:
        raise LimitError("the batch is too large", expected=f"at most {limit} sets", got=len(body.sets))
    return sets_of(body.sets, service.config.set_jobs, "sets[{}]")


def _count(service: Service, predictions: list[Prediction]) -> None:
    fits = sum(p.fits for p in predictions)
    if fits:
        service.metrics.predictions.labels("fits").inc(fits)
    if fits < len(predictions):
        service.metrics.predictions.labels("too_large").inc(len(predictions) - fits)
