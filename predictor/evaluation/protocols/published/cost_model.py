"""The learned cost model as a contender: fitted to the fold's measured steps alone."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.workload import Workload

if TYPE_CHECKING:
    from models.cost import CostModel
    from models.cost.job import JobInput

# A fit learns little from more rows of the same networks, and takes as long as they are many.
MOST_ROWS = 6_000


class CostModelPredictor:
    """Step times by a cost model that is fitted to the training rows.

    Args:
        networks: how many, from different seeds; the answer is their mean.
    """

    def __init__(self, networks: int = 1) -> None:
        self.networks = networks

    def fit(self, train: Bundle, seed: int) -> CostModelPredictor:
        from predictor.training.cost.examples import CostExample, balanced, campaign_of
        from predictor.training.cost.fit import CostConfig, fit_cost

        rows, step_s = train.rows[train.points], train.y[train.points]
        chosen = np.arange(len(rows))
        if len(rows) > MOST_ROWS:
            chosen = np.sort(np.random.default_rng(seed).choice(len(rows), MOST_ROWS, replace=False))
        examples = []
        for number in chosen.tolist():
            row = rows.iloc[number]
            job = job_input(row["workload"], row["device"])
            if job is not None:
                examples.append(CostExample(number, job, float(np.log(step_s[number])), campaign_of(row)))
        examples = balanced(examples, lambda e: f"{e.campaign} {e.job.device.name}")
        self.model_: CostModel = fit_cost(examples, CostConfig(networks=self.networks, seed=seed))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN where a network's graph or device is unknown."""
        from predictor.training.cost.examples import campaign_of

        result = np.full(len(test.rows), np.nan)
        for number, (_, row) in enumerate(test.rows.iterrows()):
            job = job_input(row["workload"], row["device"])
            if job is not None:
                result[number] = self.model_.cost_of(job, campaign_of(row)).step_time_s
        return result


@lru_cache(maxsize=20_000)
def job_input(spec: str, device: str) -> JobInput | None:
    """With equal operators merged; kept, because all folds ask for the same rows. None where it cannot be made."""
    from models.cost.job import JobInput
    from predictor.training.cost.examples import merge_equal

    graph = graph_of(spec)
    if graph is None:
        return None
    try:
        return merge_equal(JobInput.of(graph, get_device(device), Workload.parse(spec)))
    except CotenantError:
        return None


for _name, _networks, _seconds in (("cost-model", 1, 30), ("cost-model-3", 3, 90)):
    register(
        Contender(
            _name,
            lambda networks=_networks: CostModelPredictor(networks),  # type: ignore[misc]
            version="3",
            targets=("solo_step_time_s",),
            partial=True,
            seconds_per_fold=_seconds,
        )
    )
