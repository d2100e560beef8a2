"""Feedback: observations, stored with the serving model's predictions."""

from __future__ import annotations

from typing import Any

import structlog
from sqlalchemy import func, select

from predictor.examples.observations import OF_DEVICE, Observation
from predictor.examples.out_of_memory import OutOfMemory
from predictor.examples.plausibility import check_memory_plausible, check_plausible
from predictor.types import Prediction
from profiling.devices import get_device
from profiling.errors import CotenantError, InputError, LimitError, UnknownNameError
from profiling.workload import ColocationSet
from serving.feedback_schemas import ObservationBody, ObservationsBody
from serving.handlers.idempotency import remember, replay
from serving.handlers.jobs import admit_sets
from serving.http import Once
from serving.schemas import job_of, sets_of
from serving.service import Service
from serving.store.observations import PLAUSIBLE, withdraw
from serving.store.tables import ObservationRow, PlacementRow, newest

_MOST = 50  # observations of a placement
_DAYS = 30  # of errors by day
_CLOCKS_DIFFER_S = 3600.0  # tolerated between a caller's clock and ours
log = structlog.get_logger("cotenant.observations")


async def record(service: Service, body: ObservationsBody, once: Once | None) -> tuple[int, dict[str, Any]]:
    """Predict each observed set without feedback, store both, count the error, and learn from it.

    Returns:
        HTTP status and response body.

    Raises:
        InputError: `member` is not a job of its set; a measured value or `observed_at` is out of range or
            implausible; an observation has both or neither of `step_time_s` and `out_of_memory`.
        LimitError: too many observations in one request.
        UnknownNameError: unknown device, model or placement.
    """
    if len(body.observations) > service.config.batch_sets:
        raise LimitError(
            "too many observations",
            expected=f"at most {service.config.batch_sets}",
            got=len(body.observations),
        )
    sets = await service.batcher.apart(len(body.observations), _sets, body, service.config.set_jobs)
    await admit_sets(service, sets)
    belief = service.belief()
    predictions = await service.batcher.plain(belief.serving, sets)
    corrected = await service.batcher.corrected(belief, sets)
    status, answer, new = await service.stored(_keep, service, body, predictions, corrected, once)
    if new:
        try:
            await service.stored(_take_in, service, answer["observations"], predictions, corrected)
        except CotenantError as error:  # they are stored, and the next poll learns from them
            log.warning("observations not taken in at once", error=error.message)
    return status, answer


def _sets(body: ObservationsBody, most_jobs: int) -> list[ColocationSet]:
    """The observed sets. Raises as `record`."""
    sets = sets_of([o.of for o in body.observations], most_jobs, "observations[{}].of")
    for index, observation in enumerate(body.observations):
        if observation.member >= len(observation.of.jobs):
            raise InputError(
                f"observations[{index}].member is out of range",
                expected=f"0 to {len(observation.of.jobs) - 1}",
                got=observation.member,
            )
        try:
            _check(observation, sets[index])
        except InputError as error:
            raise error.at(f"observations[{index}]") from None
    return sets


def _check(body: ObservationBody, colocation_set: ColocationSet) -> None:
    """Raises `InputError`."""
    if body.out_of_memory:
        OutOfMemory.reported(
            colocation_set, {name: getattr(body, name) for name in ("step_time_s", *OF_DEVICE)}
        )
    elif body.step_time_s is None:
        raise InputError(
            "nothing was observed", expected="step_time_s, or out_of_memory: true", got="neither of them"
        )
    else:
        Observation(colocation_set, body.member, body.step_time_s, body.memory_bytes, body.utilization_ratio)


def _take_in(
    service: Service,
    entries: list[dict[str, Any]],
    predictions: list[Prediction],
    corrected: list[Prediction],
) -> None:
    """Count the errors of stored observations in the metrics, and learn from them."""
    for entry, plain, better in zip(entries, predictions, corrected, strict=True):
        if entry["out_of_memory"]:
            service.metrics.out_of_memory.labels(str(better.fits).lower()).inc()
            continue
        service.metrics.error_ratio.observe(entry["error_ratio"])
        service.metrics.observations.labels(str(entry["covered"]).lower()).inc()
        job = job_of(plain.members[entry["member"]].job).model
        for name, prediction in (("model", plain), ("corrected", better)):
            service.metrics.observe(
                entry["device"], job, name, entry["step_time_s"], prediction.members[entry["member"]].step_time_s
            )  # fmt: skip
    service.feedback.told()


def _keep(
    service: Service,
    body: ObservationsBody,
    predictions: list[Prediction],
    corrected: list[Prediction],
    once: Once | None,
) -> tuple[int, dict[str, Any], bool]:
    with service.store.write() as session:
        given = replay(session, once)
        if given is not None:
            return (*given, False)
        for index, observation in enumerate(body.observations):
            if (
                observation.placement_id is not None
                and session.get(PlacementRow, observation.placement_id) is None
            ):
                raise UnknownNameError(
                    f"observations[{index}]: unknown placement", expected="an id of /v1/placements",
                    got=repr(observation.placement_id),
                )  # fmt: skip
        rows, now = [], service.store.now(session)
        each = zip(body.observations, predictions, corrected, strict=True)
        for index, (observation, prediction, better) in enumerate(each):
            try:
                rows.append(_row_of(observation, prediction, better, now, service.config.retention_s))
            except InputError as error:
                raise error.at(f"observations[{index}]") from None
        session.add_all(rows)
        session.flush()
        answer = {"observations": [entry_of(row) for row in rows]}
        remember(session, once, 201, answer, now)
        return 201, answer, True


def _row_of(
    observation: ObservationBody, prediction: Prediction, better: Prediction, now: float, kept_s: float
) -> ObservationRow:
    """The row of a plausible observation within the retention period. Raises `InputError`."""
    predicted = prediction.members[observation.member].step_time_s
    step_s = observation.step_time_s
    if step_s is not None:
        check_plausible(step_s, predicted.value)
    else:
        upper_bytes = max(one.total_memory_bytes.upper for one in (prediction, better))
        check_memory_plausible(upper_bytes, get_device(prediction.device))
    observed_at = now if observation.observed_at is None else observation.observed_at
    if not now - kept_s <= observed_at <= now + _CLOCKS_DIFFER_S:
        raise InputError(
            "observed_at is out of range",
            expected=f"seconds since 1970, at most {kept_s / 86400:g} days ago (retention_s) and not in the "
            f"future",
            got=observed_at, hint="omit it for the current time",
        )  # fmt: skip
    return ObservationRow(
        device=prediction.device,
        sharing=prediction.sharing,
        jobs=[m.job for m in prediction.members],
        member=observation.member,
        step_time_s=step_s,
        memory_bytes=observation.memory_bytes,
        utilization_ratio=observation.utilization_ratio,
        predicted_step_time_s=predicted.value,
        predicted_lower_s=predicted.lower,
        predicted_upper_s=predicted.upper,
        corrected_step_time_s=better.members[observation.member].step_time_s.value,
        error_ratio=None if step_s is None else abs(predicted.value - step_s) / step_s,
        model_version=prediction.model_version,
        observed_at=observed_at,
        placement_id=observation.placement_id,
    )


def list_observations(service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    """Entries, newest first; `after` is the last id of the previous page."""
    with service.store.read() as session:
        return [entry_of(row) for row in newest(session, ObservationRow, after, limit)]


def withdraw_observation(service: Service, number: int) -> None:
    """Delete an observation; every process learns the others anew at its next look.

    Raises:
        UnknownNameError: no such observation.
    """
    if not withdraw(service.store, number):
        raise UnknownNameError("unknown observation", expected="an id of /v1/observations", got=str(number))


def observations_of(service: Service, placement_id: str) -> list[dict[str, Any]]:
    """The latest observations of one placement, newest first."""
    query = (
        select(ObservationRow)
        .where(ObservationRow.placement_id == placement_id)
        .order_by(ObservationRow.id.desc())
        .limit(_MOST)
    )
    with service.store.read() as session:
        return [entry_of(row) for row in session.scalars(query)]


def error_by_day(service: Service) -> list[dict[str, Any]]:
    """Mean error and coverage of the last month's plausible observations, per day and model version, oldest first.

    `corrected_error_ratio` is the error with the earlier observations; None if earlier versions stored them all.
    """
    day = func.floor(ObservationRow.observed_at / 86400)
    covered = ObservationRow.step_time_s.between(
        ObservationRow.predicted_lower_s, ObservationRow.predicted_upper_s
    )
    corrected = func.abs(ObservationRow.corrected_step_time_s / ObservationRow.step_time_s - 1.0)
    query = (
        select(day, ObservationRow.model_version, func.count(), func.avg(ObservationRow.error_ratio), func.avg(corrected),
               func.sum(func.cast(covered, type_=ObservationRow.member.type)))
        .where(ObservationRow.observed_at > service.store.clock - _DAYS * 86400, PLAUSIBLE)
        .group_by(day, ObservationRow.model_version)
        .order_by(day)
    )  # fmt: skip
    with service.store.read() as session:
        return [
            {"day": int(d), "model_version": v, "count": n, "error_ratio": float(e),
             "corrected_error_ratio": None if better is None else float(better), "coverage": float(c) / n}
            for d, v, n, e, better, c in session.execute(query)
        ]  # fmt: skip


def entry_of(row: ObservationRow) -> dict[str, Any]:
    """An observation as returned to callers."""
    return {
        "id": row.id,
        "device": row.device,
        "sharing": row.sharing,
        "jobs": row.jobs,
        "member": row.member,
        "step_time_s": row.step_time_s,
        "out_of_memory": row.step_time_s is None,
        "memory_bytes": row.memory_bytes,
        "utilization_ratio": row.utilization_ratio,
        "predicted_step_time_s": {
            "value": row.predicted_step_time_s,
            "lower": row.predicted_lower_s,
            "upper": row.predicted_upper_s,
        },
        "error_ratio": row.error_ratio,
        "covered": None
        if row.step_time_s is None
        else row.predicted_lower_s <= row.step_time_s <= row.predicted_upper_s,
        "model_version": row.model_version,
        "observed_at": row.observed_at,
        "placement_id": row.placement_id,
    }
