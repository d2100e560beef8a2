"""The serving model together with the observations that correct it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from predictor.examples.observations import Observation, R, Report
from predictor.learning.evidence.trained_on import TrainedOn
from predictor.learning.posterior import Posterior
from predictor.types import PredictionArrays, SetPredictor
from profiling.errors import CotenantError, InputError, UnavailableError
from profiling.workload import REGISTERED, ColocationSet
from scheduling.core.set_cache import SetCache
from scheduling.placement.place import Placer
from serving.aside import Aside
from serving.lanes import current_call
from serving.model_life import Serving
from serving.store import Store
from serving.store.observations import oldest_at, read_stored, withdrawn

log = structlog.get_logger("cotenant.feedback")

MakePlacer = Callable[[SetPredictor | SetCache], Placer]

#: Seconds between checks for observations stored by other processes.
POLL_S = 1.0
# After reading observations at once, wait this many times as long before doing so again outside the polling.
_REST = 4.0
# How long those that were told wait for another reading, which may be learning everything anew.
_PATIENCE_S = 1.0
# With several writing processes, rows may become visible out of order, so this many are read again.
_OVERLAP = 256
# Sets that a placer for described clusters remembers; there may be several of them.
_ASIDE_SETS = 250_000


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """A model with its observations; a new object whenever either changes.

    Attributes:
        serving: the model; its own answers are uncorrected.
        posterior: the model conditioned on all stored observations that it was not trained on.
        placer: decides where jobs go with it in the stored cluster; its caches share this object's lifetime.
        aside: the same in clusters that requests describe, which may be decided at the same time; smaller caches.
    """

    serving: Serving
    posterior: Posterior
    placer: Placer
    aside: Aside

    @classmethod
    def of(cls, serving: Serving, posterior: Posterior, make_placer: MakePlacer = Placer) -> Belief:
        asked = _WhileAwaited(_asked(serving, posterior))
        aside = Aside(lambda: make_placer(SetCache(asked, _ASIDE_SETS)))
        return cls(serving, posterior, make_placer(asked), aside)

    @property
    def predictor(self) -> SetPredictor:
        """The belief that policies query."""
        return _asked(self.serving, self.posterior)


class _WhileAwaited:
    """A predictor that stops once nobody waits for the lane's call that asks it.

    A decision on a large cluster asks for its sets in parts.
    """

    def __init__(self, predictor: SetPredictor) -> None:
        self.predictor = predictor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.predictor, name)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        call = current_call()
        if call is not None and call.cancelled.is_set():
            raise UnavailableError("nobody waits for this decision any more")
        return self.predictor.predict_arrays(sets)


def _asked(serving: Serving, posterior: Posterior) -> SetPredictor:
    predictor: SetPredictor = serving.predictor
    return predictor if posterior.knows_nothing else posterior


@dataclass(frozen=True, slots=True)
class _Learned:
    """The observations read for one model.

    Attributes:
        trained_on: what the model was trained on.
        seen: numbers of the last rows read.
        oldest_at: when the oldest row read was observed.
        absent: registered workloads of rows read that are no longer registered, or damaged; these rows were passed
            over.
        generation: `Feedback.relearn` before reading; withdrawn: how many observations had been withdrawn.
    """

    serving: Serving
    posterior: Posterior
    trained_on: TrainedOn
    seen: tuple[int, ...] = ()
    oldest_at: float = math.inf
    absent: frozenset[str] = frozenset()
    generation: int = 0
    withdrawn: int = 0

    @classmethod
    def nothing(cls, serving: Serving, generation: int) -> _Learned:
        predictor = serving.predictor
        return cls(serving, Posterior(predictor), TrainedOn.of(predictor), generation=generation)


class Feedback:
    """Keeps the serving model's corrections in line with the stored observations.

    Args:
        make_placer: builds the placer from the predictor with its corrections.
        load_graphs: loads the graphs of registered workloads, and returns those that are not registered or are damaged.
    """

    def __init__(
        self,
        store: Store,
        make_placer: MakePlacer = Placer,
        load_graphs: Callable[[set[str]], set[str]] = lambda _: set(),
    ) -> None:
        self.store, self.make_placer, self.load_graphs = store, make_placer, load_graphs
        self._learned: _Learned | None = None
        self._prepared: _Learned | None = None
        self._belief: Belief | None = None
        self._reading, self._swapping = threading.Lock(), threading.Lock()
        self._rests_until = 0.0
        self._generation = 0

    def relearn(self) -> None:
        """Learn all observations anew at the next look, because a job that they may be about is gone."""
        self._generation += 1

    def current(self, serving: Serving) -> Belief:
        """The belief of the serving model."""
        belief = self._belief
        if belief is None or belief.serving is not serving:
            with self._swapping:
                belief = self._belief
                if belief is not None and belief.serving is serving:
                    return belief  # another thread was first
                learned = self._prepared
                if learned is None or learned.serving is not serving:
                    learned = _Learned.nothing(serving, self._generation)
                belief = Belief.of(serving, learned.posterior, self.make_placer)
                self._belief, self._learned = belief, learned
        return belief

    def prepare(self, serving: Serving) -> None:
        """Read the observations for a model that is about to serve. If the store is down, try again later."""
        try:
            with self._reading:
                self._prepared = self._read(_Learned.nothing(serving, self._generation))
        except CotenantError as error:
            log.warning("observations not read", error=error.message)

    def told(self) -> None:
        """Take in new observations after a write in this process.

        If that takes long, because it was just done or all must be learned anew, the next poll does it instead, so
        that answers do not wait.
        """
        if time.monotonic() >= self._rests_until and self._reading.acquire(timeout=_PATIENCE_S):
            try:
                self._refresh(anew=False)
            finally:
                self._reading.release()

    def refresh(self) -> None:
        """Take in new observations, and forget deleted ones. Raises `UnavailableError` if the store does not respond."""
        with self._reading:
            self._refresh()

    def _refresh(self, anew: bool = True) -> None:
        began = time.monotonic()
        known = self._learned
        if known is None:
            return
        learned = self._read(known, anew)
        if learned is not known:
            ended = time.monotonic()
            self._rests_until = ended + _REST * (ended - began)
        with self._swapping:
            belief = self._belief
            if belief is None or belief.serving is not learned.serving:
                return  # another model serves by now
            self._learned = learned
            if belief.posterior is not learned.posterior:
                self._belief = Belief.of(learned.serving, learned.posterior, self.make_placer)

    def _read(self, known: _Learned, anew: bool = True) -> _Learned:
        # Rows are deleted from the oldest on, so one look at an index tells whether some are gone. A posterior
        # cannot unlearn them, so the rest is learned anew. Their numbers may be given to other rows.
        generation, gone = self._generation, withdrawn(self.store)
        returned = known.absent and self.load_graphs(set(known.absent)) != known.absent
        changed = generation != known.generation or gone != known.withdrawn
        if oldest_at(self.store) > known.oldest_at or changed or returned:
            if not anew:
                return known
            known = replace(_Learned.nothing(known.serving, generation), withdrawn=gone)
        first = known.seen[0] if len(known.seen) == _OVERLAP else 0
        before, last = set(known.seen), deque([first] if first else [], maxlen=_OVERLAP)
        new, learned = list[Report](), list[Observation]()
        refused, oldest = list[InputError](), known.oldest_at
        for stored in read_stored(self.store, first):
            last.append(stored.id)
            oldest = min(oldest, stored.observed_at)
            if stored.id in before:
                continue
            report = stored.observation
            if isinstance(report, InputError):
                refused.append(report)
            elif isinstance(report, Observation) and report in known.trained_on:
                learned.append(report)
            else:
                new.append(report)
        if refused:
            log.warning("stored observations ignored", count=len(refused), first=refused[0].message)
        seen = tuple(last)
        if seen == known.seen:
            return known
        (new, absent), (learned, also) = self._predictable(new), self._predictable(learned)
        posterior = known.posterior.extended(new, ran=learned) if new or learned else known.posterior
        return replace(
            known, posterior=posterior, seen=seen, oldest_at=oldest, absent=known.absent | absent | also
        )

    def _predictable(self, observations: list[R]) -> tuple[list[R], set[str]]:
        """Those whose registered workloads can be read, now loaded, and the workloads that cannot."""
        models = {w.model for o in observations for w in o.colocation_set.workloads}
        absent = self.load_graphs({model for model in models if model.startswith(REGISTERED)})
        kept = [o for o in observations if absent.isdisjoint(w.model for w in o.colocation_set.workloads)]
        if absent:
            log.warning("observations of unknown workloads ignored", count=len(observations) - len(kept))
        return kept, absent
