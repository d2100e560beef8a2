"""Stored observations, read back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select

from predictor.examples.observations import Observation, Report
from predictor.examples.out_of_memory import OutOfMemory
from predictor.examples.plausibility import MOST_OFF, check_plausible
from profiling.errors import InputError
from profiling.workload import ColocationSet
from serving.job_ranges import spec_of
from serving.store.engine import Store
from serving.store.tables import CounterRow, ObservationRow

_AT_ONCE = 5_000
_ROW, _WITHDRAWN = ObservationRow, "observations_withdrawn"
#: Condition on a stored row: it has a step time, which `check_plausible` accepts. Earlier versions accepted any.
PLAUSIBLE = _ROW.step_time_s.between(
    _ROW.predicted_step_time_s / MOST_OFF, _ROW.predicted_step_time_s * MOST_OFF
)


@dataclass(frozen=True, slots=True)
class StoredObservation:
    """An observation, its number and time.

    `observation` is the error if an earlier version accepted it and this one does not.
    """

    id: int
    observed_at: float
    observation: Report | InputError


def read_stored(store: Store, after: int = 0) -> Iterator[StoredObservation]:
    """Observations numbered above `after`, in order.

    Raises:
        UnavailableError: the store does not answer.
    """
    query = (
        select(_ROW.id, _ROW.observed_at, _ROW.device, _ROW.sharing, _ROW.jobs, _ROW.member, _ROW.step_time_s,
               _ROW.predicted_step_time_s, _ROW.memory_bytes, _ROW.utilization_ratio, _ROW.model_version)
        .where(_ROW.id > after)
        .order_by(_ROW.id)
        .execution_options(yield_per=_AT_ONCE)
    )  # fmt: skip
    with store.read() as session:
        for number, at, *values in session.execute(query):
            yield StoredObservation(number, at, _observation(*values))


def withdraw(store: Store, number: int) -> bool:
    """Delete an observation for good; returns whether there was one. Other processes notice by `withdrawn`.

    Raises:
        UnavailableError: the store does not answer.
    """
    with store.write() as session:
        row = session.get(_ROW, number)
        if row is None:
            return False
        session.delete(row)
        counter = session.get(CounterRow, _WITHDRAWN)
        if counter is None:
            counter = CounterRow(name=_WITHDRAWN, value=0)
            session.add(counter)
        counter.value += 1
        return True


def withdrawn(store: Store) -> int:
    """How many observations have been withdrawn.

    Raises:
        UnavailableError: the store does not answer.
    """
    with store.read() as session:
        counter = session.get(CounterRow, _WITHDRAWN)
        return 0 if counter is None else counter.value


def oldest_at(store: Store) -> float:
    """When the oldest stored observation was made; infinite if there is none.

    Raises:
        UnavailableError: the store does not answer.
    """
    with store.read() as session:
        oldest: float | None = session.scalar(select(func.min(_ROW.observed_at)))
    return math.inf if oldest is None else oldest


def _observation(
    device: str,
    sharing: str,
    jobs: list[str],
    member: int,
    step_time_s: float | None,
    predicted_s: float,
    memory_bytes: float | None,
    utilization_ratio: float | None,
    model_version: str,
) -> Report | InputError:
    try:
        colocation_set = ColocationSet(device, tuple(map(spec_of, jobs)), sharing)
        if step_time_s is None:
            return OutOfMemory(colocation_set, model_version)
        check_plausible(step_time_s, predicted_s)
        return Observation(
            colocation_set, member, step_time_s, memory_bytes, utilization_ratio, model_version
        )
    except InputError as error:
        return error
