"""The serving model together with the observations that correct it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from predictor.examples.observations import Observation, set_id_of
from predictor.learning.posterior import Posterior
from predictor.types import SetPredictor
from profiling.errors import CotenantError, InputError
from scheduling.placement.place import Placer
from serving.model_life import Serving
from serving.store import Store
from serving.store.observations import read_stored

log = structlog.get_logger("cotenant.feedback")

MakePlacer = Callable[[SetPredictor], Placer]

#: Seconds between looks for what other processes were told.
POLL_S = 1.0
# After taking observations in, so many times as long before it is done again out of turn.
_REST = 4.0
# Rows may become visible out of their order where several processes write: so many are looked at again.
_OVERLAP = 256


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A model with what was observed; another object whenever either is another.

    Attributes:
        serving: the model, whose own answers are without corrections.
        posterior: the model given all stored observations that it did not learn from.
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
    """What was read of the observations for one model.

    Attributes:
        trained_on: sets that the model learned from.
        seen: the last numbers that were read.
    """

    serving: Serving
    posterior: Posterior
    trained_on: frozenset[str]
    seen: tuple[int, ...] = ()

    @classmethod
    def nothing(cls, serving: Serving) -> _Learned:
        fitted = getattr(serving.predictor, "fitted_", None)
        set_ids = () if fitted is None else fitted.manifest.set_ids
        return cls(serving, Posterior(serving.predictor), frozenset(set_ids))

    def learned(self, model_version: str, observation: Observation) -> bool:
        """Whether the model itself learned from the observation: it was made before the model served, and its set is in the manifest."""
        if model_version == self.serving.version or not self.trained_on:
            return False
        return set_id_of(observation.colocation_set) in self.trained_on


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
        self._rests_until = 0.0

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

    def told(self) -> None:
        """As `refresh`, at once; but where that takes long and happens often it is left to the next look, so that answers do not wait for it."""
        if time.monotonic() >= self._rests_until:
            self.refresh()

    def refresh(self) -> None:
        """Take in what was observed since. Raises `UnavailableError` where the store does not answer."""
        with self._reading:
            began = time.monotonic()
            serving = self._serving
            if serving is None:
                return
            known = self._learned
            if known is None or known.serving is not serving:
                known = _Learned.nothing(serving)
            learned = self._read(known)
            if learned is not known:
                ended = time.monotonic()
                self._rests_until = ended + _REST * (ended - began)
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
        first = known.seen[0] if len(known.seen) == _OVERLAP else 0
        before, last = set(known.seen), deque([first] if first else [], maxlen=_OVERLAP)
        new, refused = list[Observation](), list[InputError]()
        for stored in read_stored(self.store, first):
            last.append(stored.id)
            if stored.id in before:
                continue
            if isinstance(stored.observation, InputError):
                refused.append(stored.observation)
            elif not known.learned(stored.model_version, stored.observation):
                new.append(stored.observation)
        if refused:
            log.warning("stored observations are left out", count=len(refused), first=refused[0].message)
        seen = tuple(last)
        if seen == known.seen:
            return known
        return replace(known, posterior=known.posterior.extended(new) if new else known.posterior, seen=seen)
