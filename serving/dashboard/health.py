"""Sharing health of every GPU in a cluster, cached until the model's answers change."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.types import Prediction
from profiling.errors import CotenantError, UnknownNameError
from profiling.workload import ColocationSet
from scheduling.core.snapshot import Gpu
from serving.feedback import Belief
from serving.handlers.jobs import predict_each
from serving.service import Service

EMPTY, UNAFFECTED, SLOWED, CROWDED, TOO_LARGE, UNKNOWN = (
    "empty",
    "unaffected",
    "slowed",
    "crowded",
    "too large",
    "not predicted",
)
LEVELS = (EMPTY, UNAFFECTED, SLOWED, CROWDED, TOO_LARGE, UNKNOWN)
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

    async def levels(self, service: Service, gpus: Iterable[Gpu]) -> list[str]:
        """The level of each GPU; `not predicted` if no model serves or too many sets are new at once."""
        gpus = list(gpus)
        try:
            service.life.current()
            belief = service.belief()
            if belief is not self._belief:
                self._belief, self._levels = belief, {}
            known = self._levels
            new = list(dict.fromkeys(s for s in (set_of(g) for g in gpus if g.tenants) if s not in known))
            new = new[:_NEW_SETS]
            if new:
                for asked, answer in (await predict_each(service, new)).items():
                    prediction = None if isinstance(answer, CotenantError) else answer
                    if not isinstance(
                        answer, UnknownNameError
                    ):  # not cached, because it may be registered at any time
                        known[asked] = level_of(prediction, len(asked.workloads))
        except CotenantError:
            known = {}
        return [known.get(set_of(g), UNKNOWN) if g.tenants else EMPTY for g in gpus]
