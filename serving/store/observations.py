"""Stored observations, read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select

from predictor.examples.observations import Observation
from profiling.workload import ColocationSet
from serving.job_ranges import spec_of
from serving.store.engine import Store
from serving.store.tables import ObservationRow

_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class StoredObservation:
    """An observation, its number, and the version of the model that served when it was made."""

    id: int
    model_version: str
    observation: Observation


def read_stored(store: Store, after: int = 0) -> Iterator[StoredObservation]:
    """Observations with a larger number than `after`, in the order of their numbers.

    Raises:
        UnavailableError: the store does not answer.
    """
    row = ObservationRow
    query = (
        select(row.id, row.model_version, row.device, row.sharing, row.jobs, row.member, row.step_time_s)
        .where(row.id > after)
        .order_by(row.id)
        .execution_options(yield_per=_AT_ONCE)
    )
    with store.read() as session:
        for number, version, device, sharing, jobs, member, step_time_s in session.execute(query):
            colocation_set = ColocationSet(device, tuple(map(spec_of, jobs)), sharing)
            yield StoredObservation(number, version, Observation(colocation_set, member, step_time_s))
