"""A learner that conditions a predictor on the step times of co-located jobs.

Any scheduler sees these after a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from predictor.examples.observations import Observation
from predictor.gaussian_process.link import from_scale, to_scale
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet
from scheduling.core.learner import SettledGpus
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer
    from predictor.gaussian_process.set_process import SetProcess

# A policy compares sets, so all extra step time is attributed to sharing.
CONFIG = PosteriorConfig(learn_solo=False)


class PosteriorLearner:
    """A `Learner` over a predictor; each set of jobs counts once.

    Args:
        predictor: the prior mean.
        config: how observations are used.
        exploration: standard deviations by which the log excess slowdown of a set is answered below its mean, so
            that a policy prefers sets that also teach (optimism in the face of uncertainty: Lai and Robbins,
            Advances in Applied Mathematics 1985).
        featurizer: reads graphs, so that what is learned of a job also says something about similar ones; by
            default the predictor's, if it has one.
        training_sets: process of the predictor's training sets; by default the predictor's, if it has one.

    Attributes:
        posterior: the predictor conditioned on the observations.
    """

    def __init__(
        self,
        predictor: SetPredictor,
        config: PosteriorConfig = CONFIG,
        exploration: float = 0.0,
        featurizer: Featurizer | None = None,
        training_sets: SetProcess | None = None,
    ) -> None:
        self.posterior = Posterior(predictor, config, featurizer, training_sets)
        self.exploration = exploration
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
        arrays = self.posterior.predict_arrays(sets)
        if not self.exploration or not len(sets):
            return arrays
        rows, log_slowdown = self.posterior.rows_of(sets)
        _, variance = self.posterior.process.answer(self.posterior.members, rows)
        knee = self.posterior.config.parameters.knee
        excess = to_scale(log_slowdown, knee) - self.exploration * np.sqrt(variance)
        slowdown = arrays.slowdown.copy()
        slowdown[arrays.mask] = np.exp(np.maximum(np.minimum(from_scale(excess, knee), log_slowdown), 0.0))
        return replace(arrays, slowdown=slowdown, step_time_s=arrays.solo_step_time_s * slowdown)
