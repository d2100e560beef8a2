"""Sharing health of every GPU in a cluster, cached until the model's answers change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.types import Prediction
from profiling.errors import CotenantError, UnknownNameError
from profiling.workload import ColocationSet
from scheduling.core.snapshot import Gpu
from serving.feedback import Belief
from serving.handlers.jobs import predict_each
from serving.service import Service

LEVELS = ("empty", "unaffected", "slowed", "crowded", "too large", "not predicted")
EMPTY, UNAFFECTED, SLOWED, CROWDED, TOO_LARGE, UNKNOWN = LEVELS
# Most new sets predicted in one page view; the next view continues from there.
_NEW_SETS = 2_000


def level_of(prediction: Prediction | None, tenants: int) -> str:
    """How bad sharing is for the worst-off tenant; shown as text as well as colour."""
    if not tenants:
        return EMPTY
    if prediction is None:
        return UNKNOWN
    if not prediction.fits:
        return TOO_LARGE
    worst = max((m.slowdown.value for m in prediction.members), default=1.0)
    return UNAFFECTED if worst < 1.1 else SLOWED if worst < 1.5 else CROWDED


def set_of(gpu: Gpu) -> ColocationSet:
    """The co-location set on a GPU."""
    return ColocationSet(gpu.device, tuple(tenant.job for tenant in gpu.tenants), gpu.sharing)


class Health:
    """Cached levels, by co-location set."""

    def __init__(self) -> None:
        self._belief: Belief | None = None
        self._levels: dict[ColocationSet, str] = {}

    async def levels(self, service: Service, gpus: Sequence[Gpu]) -> list[str]:
        """The level of each GPU; `not predicted` if no model serves or too many sets are new at once."""
        apart = service.batcher.apart
        sets = await apart(len(gpus), lambda: [set_of(gpu) if gpu.tenants else None for gpu in gpus])
        try:
            service.life.current()
            belief = service.belief()
            if belief is not self._belief:
                self._belief, self._levels = belief, {}
            if len(self._levels) > 2 * len(gpus) + _NEW_SETS:  # mostly of sets that have ended
                self._levels = {s: self._levels[s] for s in sets if s is not None and s in self._levels}
            known = self._levels
            new = await apart(len(gpus), _new, sets, known)
            if new:
                for asked, answer in (await predict_each(service, new)).items():
                    prediction = None if isinstance(answer, CotenantError) else answer
                    # An unknown name may be registered at any time.
                    if not isinstance(answer, UnknownNameError):
                        known[asked] = level_of(prediction, len(asked.workloads))
        except CotenantError:
            known = {}
        return await apart(
            len(gpus), lambda: [EMPTY if asked is None else known.get(asked, UNKNOWN) for asked in sets]
        )


def _new(sets: Sequence[ColocationSet | None], known: Mapping[ColocationSet, str]) -> list[ColocationSet]:
    """The sets whose level is not known, each once, and not too many."""
    return list(dict.fromkeys(s for s in sets if s is not None and s not in known))[:_NEW_SETS]
