"""What serves now: a model, and the corrections that observed step times make to it."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import select

from predictor.learning.feedback import CorrectedPredictor, Corrections
from predictor.types import SetPredictor
from profiling.errors import CotenantError
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
    """A model with corrections; another object whenever either is another.

    Attributes:
        serving: the model, whose own answers are without corrections.
        corrections: factors by job and device, from the observations of this model version.
        predictor: the model with corrections, as policies ask it.
        placer: decides where jobs go by it; its caches go with this object.
    """

    serving: Serving
    corrections: Corrections
    predictor: SetPredictor
    placer: Placer

    @classmethod
    def of(cls, serving: Serving, corrections: Corrections, make_placer: MakePlacer = Placer) -> Belief:
        plain = serving.predictor
        predictor = CorrectedPredictor(plain, corrections) if corrections.sums else plain
        return cls(serving, corrections, predictor, make_placer(predictor))


@dataclass(frozen=True, slots=True)
class _Learned:
    """What was read of the observations of one model version; `seen` are the last ids."""

    version: str
    corrections: Corrections
    seen: tuple[int, ...] = ()


class Feedback:
    """Keeps the corrections of the serving model true to the stored observations.

    Args:
        make_placer: what decides where jobs go, given the predictor with corrections.
    """

    def __init__(self, store: Store, make_placer: MakePlacer = Placer) -> None:
        self.store, self.make_placer = store, make_placer
        self._serving: Serving | None = None
        self._learned = _Learned("", Corrections())
        self._belief: Belief | None = None
        self._reading, self._swapping = threading.Lock(), threading.Lock()

    def current(self, serving: Serving) -> Belief:
        """The belief that goes with the model that serves."""
        belief = self._belief
        if belief is None or belief.serving is not serving:
            with self._swapping:
                known = self._learned.version == serving.version
                corrections = self._learned.corrections if known else Corrections()
                belief = Belief.of(serving, corrections, self.make_placer)
                self._belief, self._serving = belief, serving
        return belief

    def prepare(self, serving: Serving) -> None:
        """Read the observations of a model that is about to serve. A store that is away is asked again later."""
        try:
            with self._reading:
                self._learned = self._read(_Learned(serving.version, Corrections()))
        except CotenantError as error:
            log.warning("observations not read", error=error.message)

    def refresh(self) -> None:
        """Take in what was observed since. Raises `UnavailableError` where the store does not answer."""
        with self._reading:
            serving = self._serving
            if serving is None:
                return
            known = self._learned
            if known.version != serving.version:
                known = _Learned(serving.version, Corrections())
            learned = self._read(known)
            with self._swapping:
                self._learned = learned
                belief = self._belief
                if (
                    belief is not None
                    and belief.serving is serving
                    and belief.corrections is not learned.corrections
                ):
                    self._belief = Belief.of(serving, learned.corrections, self.make_placer)

    def _read(self, known: _Learned) -> _Learned:
        row = ObservationRow
        first = known.seen[:1] if len(known.seen) == _OVERLAP else ()
        query = (
            select(row.id, row.device, row.jobs, row.member, row.step_time_s, row.predicted_step_time_s)
            .where(row.model_version == known.version, row.id > (first[0] if first else 0))
            .order_by(row.id)
        )
        corrections = Corrections(dict(known.corrections.sums))
        before, last, new = set(known.seen), deque(first, maxlen=_OVERLAP), False
        with self.store.read() as session:
            for number, device, jobs, member, observed, predicted in session.execute(query):
                last.append(number)
                if number not in before:
                    new = True
                    corrections.add(device, job_of(jobs[member]), math.log(observed / predicted))
        return _Learned(known.version, corrections, tuple(last)) if new else known
