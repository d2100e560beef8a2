"""A learner that conditions a predictor on the step times of co-located jobs.

Any scheduler sees these after a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.examples.observations import Observation
from predictor.learning.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet
from scheduling.core.learner import SettledGpus
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload

# A policy compares sets, so all extra step time is attributed to sharing; and it decides often, so this must
# be fast.
CONFIG = PosteriorConfig(most_rows=256, learn_solo=False)


class PosteriorLearner:
    """A `Learner` over a predictor; each set of jobs counts once.

    Attributes:
        posterior: the predictor conditioned on the observations.
    """

    def __init__(self, predictor: SetPredictor, config: PosteriorConfig = CONFIG) -> None:
        self.posterior = Posterior(predictor, config)
        self._seen: set[ColocationSet] = set()
        self._settled = SettledGpus()

    @property
    def revision(self) -> int:
        """Incremented with every new observation."""
        return self.posterior.revision

    def observe(self, snapshot: SchedulingSnapshot) -> None:
        """Observe the current pace of every job that shares its GPU, once per set of jobs."""
        new: list[Observation] = []
        for gpu in self._settled.new(snapshot):
            tenants = sorted(snapshot.tenants[gpu], key=lambda t: str(current_workload(t)))
            members = tuple(current_workload(t) for t in tenants)
            colocation_set = ColocationSet(snapshot.devices[gpu], members, snapshot.sharing[gpu])
            if colocation_set not in self._seen:
                self._seen.add(colocation_set)
                new += [Observation(colocation_set, member, 1.0 / t.rate) for member, t in enumerate(tenants)]
        if new:
            self.posterior.observe(new)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`; corrected by observations, except memory and `fits`."""
        return self.posterior.predict_arrays(sets)
