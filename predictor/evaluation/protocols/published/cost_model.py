"""The learned cost model as a contender, fitted only to the fold's measured steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pandas as pd
from cachetools import LRUCache

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.published.steps import SETTING
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device
from profiling.errors import CotenantError
from profiling.workload import Workload

if TYPE_CHECKING:
    from models.cost import CostModel
    from models.cost.job import JobInput
    from predictor.training.cost.examples import CostExample

# More rows of the same networks add little, and the time of a fit grows with them.
MOST_ROWS = 6_000
# Weight of related rows in a joint fit, together, to that of the protocol's own.
_RELATED_WEIGHT = 0.3
# Parts of the cells that `CellCostPredictor` leaves out together, and optimiser steps of a fit to the few
# rows of a protocol.
_PARTS, _CELL_STEPS = 6, 450

# Folds ask for the parts in any order.
_cell_fits: LRUCache[tuple[int, int, int], CostModel] = LRUCache(2 * _PARTS)


class CostModelPredictor:
    """Step times by a cost model fitted to the training rows.

    Args:
        networks: number of networks, from different seeds, whose mean is taken.
        related: whether to learn from related rows, too.
    """

    def __init__(self, networks: int, related: bool = False) -> None:
        self.networks, self.related = networks, related

    def fit(self, train: Bundle, seed: int) -> CostModelPredictor:
        from predictor.training.cost.fit import CostConfig, fit_cost

        examples = training_examples(train.rows[train.points], train.y[train.points], seed, job_input)
        if self.related and train.related is not None:
            step_s = train.related["step_time_s"].to_numpy(dtype=np.float64)
            others = training_examples(train.related, step_s, seed, job_input)
            weight = _RELATED_WEIGHT * len(examples) / max(len(others), 1)
            examples += [replace(e, weight=e.weight * weight) for e in others]
        self.model_: CostModel = fit_cost(examples, CostConfig(networks=self.networks, seed=seed))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN if a network's graph or device is unknown."""
        from predictor.training.cost.examples import campaign_of

        result = np.full(len(test.rows), np.nan)
        for number, (_, row) in enumerate(test.rows.iterrows()):
            job = job_input(row["workload"], row["device"])
            if job is not None:
                result[number] = self.model_.cost_of(job, campaign_of(row)).step_time_s
        return result


def training_examples(
    rows: pd.DataFrame, step_s: Floats, seed: int, job_of: Callable[[str, str], JobInput | None]
) -> list[CostExample]:
    """Up to `MOST_ROWS` measured rows with known jobs, weighted by campaign and device.

    Args:
        rows: of the table of measured steps.
        step_s: [n] seconds.
        seed: seed of the sample, if there are more rows.
        job_of: makes a job from SPEC and device; None if it cannot.
    """
    from predictor.training.cost.examples import CostExample, balanced, campaign_of

    chosen = np.arange(len(rows))
    if len(rows) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(seed).choice(len(rows), MOST_ROWS, replace=False))
    examples = []
    for number in chosen.tolist():
        row = rows.iloc[number]
        job = job_of(row["workload"], row["device"])
        if job is not None:
            examples.append(CostExample(number, job, float(np.log(step_s[number])), campaign_of(row)))
    return balanced(examples, lambda e: f"{e.campaign} {e.job.device.name}")


class CellCostPredictor:
    """Step times of a network on a device, by a cost model that saw the network on other devices only.

    If each fold leaves out one network on one device, a fit per fold would take hours. Instead, each of
    `_PARTS` fits leaves out a part of these cells, and a fold is answered by the fit without its part, which
    saw less than it was allowed to.
    """

    def fit(self, train: Bundle, seed: int) -> CellCostPredictor:
        self.train_, self.seed_ = train, seed
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN if a network's graph or device is unknown."""
        from predictor.training.cost.examples import campaign_of

        result = np.full(len(test.rows), np.nan)
        parts = _part_of(test.rows)
        for part in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == part)
            rows = test.rows.iloc[chosen]
            jobs = [job_input(w, d) for w, d in zip(rows["workload"], rows["device"], strict=True)]
            model = self._without(part)
            known = [(i, job) for i, job in zip(chosen, jobs, strict=True) if job is not None]
            for number, job in known:
                result[number] = model.cost_of(job, campaign_of(test.rows.iloc[number])).step_time_s
        return result

    def _without(self, part: int) -> CostModel:
        from predictor.training.cost.fit import CostConfig, fit_cost

        points = self.train_.points & (_part_of(self.train_.rows) != part)
        rows = self.train_.rows[points]
        columns = rows[["workload", "device"]].assign(step_s=self.train_.y[points])
        key = self.seed_, part, int(pd.util.hash_pandas_object(columns, index=False).sum())
        if key not in _cell_fits:
            examples = training_examples(rows, self.train_.y[points], self.seed_, job_input)
            steps = -(-len(examples) // CostConfig().batch_jobs)
            epochs = max(CostConfig().epochs, _CELL_STEPS // steps)
            _cell_fits[key] = fit_cost(examples, CostConfig(networks=1, epochs=epochs, seed=self.seed_))
        return _cell_fits[key]


def _known_networks() -> FoldPredictor:
    from models.baselines.residual_transfer import ResidualTransferPredictor

    network = ("network", "image_size")
    return ResidualTransferPredictor(
        CostModelPredictor(networks=3), (network, (*network, "compiler", "memory_layout")), SETTING
    )


def _part_of(rows: pd.DataFrame) -> np.ndarray:
    """[n] part of each row, by hashing the names of its network and device."""
    numbers = [
        rows[name].astype(str).map(lambda text: crc32(text.encode())) for name in ("architecture", "device")
    ]
    return np.asarray((numbers[0] + numbers[1]) % _PARTS, dtype=int)


@lru_cache(maxsize=20_000)
def job_input(spec: str, device: str) -> JobInput | None:
    """The job with equal operators merged, or None if it cannot be made.

    Cached, because all folds query the same rows.
    """
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
            partial(CostModelPredictor, _networks),
            version="4",
            targets=("solo_step_time_s",),
            partial=True,
            seconds_per_fold=_seconds,
        )
    )

register(
    Contender(
        "cost-model-joint",
        partial(CostModelPredictor, 3, related=True),
        targets=("solo_step_time_s",),
        protocols=frozenset({"timm-train-by-family"}),
        partial=True,
        seconds_per_fold=180,
    )
)
register(
    Contender(
        "cost-model-networks",
        _known_networks,
        version="3",
        targets=("solo_step_time_s",),
        protocols=frozenset({"timm-infer-by-device"}),
        partial=True,
        seconds_per_fold=180,
    )
)
register(
    Contender(
        "cost-model-cells",
        CellCostPredictor,
        targets=("solo_step_time_s",),
        protocols=frozenset({"lamikr-network-on-device"}),
        partial=True,
        seconds_per_fold=2,
    )
)
