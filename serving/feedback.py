"""What serves now: a model, and what was observed of it since."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import select

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.types import SetPredictor
from profiling.errors import CotenantError
from profiling.workload import ColocationSet
from scheduling.placement.place import Placer
from serving.model_life import Serving
from serving.schemas import job_of
from serving.store import Store
from serving.store.tables import ObservationRow

log = structlog.get_logger("cotenant.feedback")

MakePlacer = Callable[[SetPredictor], Placer]

#: Seconds between looks for what other processes were told.
POLL_S = 1.0
# Rows may become visible out of their order where several processes write: so many are looked at again.
_OVERLAP = 256


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A model with what was observed; another object whenever either is another.

    Attributes:
        serving: the model, whose own answers are without corrections.
        posterior: the model given the observations of its version.
        placer: decides where jobs go by it; its caches go with this object.
    """

    serving: Serving
    posterior: Posterior
    placer: Placer

    @classmethod
    def of(cls, serving: Serving, posterior: Posterior, make_placer: MakePlacer = Placer) -> Belief:
        return cls(serving, posterior, make_placer(_asked(serving, posterior)))

    @property
    def predictor(self) -> SetPredictor:
        """What policies ask."""
        return _asked(self.serving, self.posterior)


def _asked(serving: Serving, posterior: Posterior) -> SetPredictor:
    predictor: SetPredictor = serving.predictor
    return posterior if len(posterior) else predictor


@dataclass(frozen=True, slots=True)
class _Learned:
    """What was read of the observations of one model; `seen` are the last ids."""

    serving: Serving
    posterior: Posterior
    seen: tuple[int, ...] = ()

    @classmethod
    def nothing(cls, serving: Serving) -> _Learned:
        return cls(serving, Posterior(serving.predictor))


class Feedback:
    """Keeps what is known of the serving model true to the stored observations.

    Args:
        make_placer: what decides where jobs go, given the predictor with what was observed.
    """

    def __init__(self, store: Store, make_placer: MakePlacer = Placer) -> None:
        self.store, self.make_placer = store, make_placer
        self._serving: Serving | None = None
        self._learned: _Learned | None = None
        self._belief: Belief | None = None
        self._reading, self._swapping = threading.Lock(), threading.Lock()

    def current(self, serving: Serving) -> Belief:
        """The belief that goes with the model that serves."""
        belief = self._belief
        if belief is None or belief.serving is not serving:
            with self._swapping:
                learned = self._learned
                if learned is None or learned.serving is not serving:
                    learned = _Learned.nothing(serving)
                belief = Belief.of(serving, learned.posterior, self.make_placer)
                self._belief, self._serving = belief, serving
        return belief

    def prepare(self, serving: Serving) -> None:
        """Read the observations of a model that is about to serve. A store that is away is asked again later."""
        try:
            with self._reading:
                self._learned = self._read(_Learned.nothing(serving))
        except CotenantError as error:
            log.warning("observations not read", error=error.message)

    def refresh(self) -> None:
        """Take in what was observed since. Raises `UnavailableError` where the store does not answer."""
        with self._reading:
            serving = self._serving
            if serving is None:
                return
            known = self._learned
            if known is None or known.serving is not serving:
                known = _Learned.nothing(serving)
            learned = self._read(known)
            with self._swapping:
                self._learned = learned
                belief = self._belief
                if (
                    belief is not None
                    and belief.serving is serving
                    and belief.posterior is not learned.posterior
                ):
                    self._belief = Belief.of(serving, learned.posterior, self.make_placer)

    def _read(self, known: _Learned) -> _Learned:
        row = ObservationRow
        first = known.seen[:1] if len(known.seen) == _OVERLAP else ()
        query = (
            select(row.id, row.device, row.sharing, row.jobs, row.member, row.step_time_s)
            .where(row.model_version == known.serving.version, row.id > (first[0] if first else 0))
            .order_by(row.id)
        )
        before, last, new = set(known.seen), deque(first, maxlen=_OVERLAP), []
        with self.store.read() as session:
            for number, device, sharing, jobs, member, observed in session.execute(query):
                last.append(number)
                if number not in before:
                    asked = ColocationSet(device, tuple(job_of(job) for job in jobs), sharing)
                    new.append(Observation(asked, member, observed))
        return _Learned(known.serving, known.posterior.extended(new), tuple(last)) if new else known
