"""Baselines of the solo step time, shared by several protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.features import SCALES_WITH_BATCH, per_step
from predictor.evaluation.protocols.graphs import kind_times
from predictor.evaluation.protocols.registry import Contender, register

TARGETS = ("solo_step_time_s",)
# What distinguishes step times of one network; the device comes first, because a linear model can most easily
# do without it.
SETTING = ("device", "campaign", "framework", "precision", "memory_layout", "compiler", "mode")
# Contenders for the solo step time: from published totals, from the networks' computation graphs, and the cost model.
OF_STEPS = (
    "constant", "linear", "trees-summary", "roofline", "graph-roofline", "graph-kinds", "graph-trees", "cost-model",
    "cost-model-3",
)  # fmt: skip
# Cost models with a graph network over operators, for protocols that test whether neighbours help.
OF_NEIGHBOURS = (
    "cost-e-ggat-1",
    "cost-e-ggat-2",
    "cost-e-ggat-4",
    "cost-gine-2",
    "cost-sage-2",
    "cost-transformer-1",
    "cost-readout-1",
)


def whole_step_s(bundle: Bundle) -> Floats:
    """[n rows of `bundle`] seconds of the same job on the whole device, for rows of a part of one."""
    return bundle.rows["whole_step_time_s"].to_numpy(dtype=np.float64)


def register_parts(protocol: str, baselines: Mapping[str, Callable[[], FoldPredictor]]) -> None:
    """Register baselines of steps on a part of a device for `protocol`."""
    for name, make in baselines.items():
        register(
            Contender(name, make, targets=TARGETS, protocols=frozenset({protocol}), seconds_per_fold=0.05)
        )


def _totals(bundle: Bundle, only: tuple[str, ...] = ()) -> pd.DataFrame:
    totals = per_step(bundle)
    return totals[list(only or totals)]


def _linear(only: tuple[str, ...] = ()) -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(partial(_totals, only=only), SETTING)


def _trees() -> FoldPredictor:
    from models.baselines.summary_trees import SummaryTreePredictor

    # The campaign identifies the version of the framework.
    return SummaryTreePredictor(_totals, SETTING)


def _roofline() -> FoldPredictor:
    from models.baselines.rooflines import RooflinePredictor, roofline_of_totals

    return RooflinePredictor(lambda bundle: roofline_of_totals(bundle.rows, per_step(bundle)))


def _graph_roofline() -> FoldPredictor:
    from models.baselines.rooflines import RooflinePredictor

    return RooflinePredictor(lambda bundle: kind_times(bundle)["roofline"].to_numpy(dtype="float64"))


def _graph_kinds() -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(lambda bundle: kind_times(bundle).drop(columns="roofline"), SETTING)


def _graph_trees() -> FoldPredictor:
    from models.baselines.summary_trees import SummaryTreePredictor

    return SummaryTreePredictor(kind_times, SETTING)


register(Contender("linear", _linear, targets=TARGETS, partial=True, seconds_per_fold=1))
for _count in (1, 2):
    register(
        Contender(
            "linear-" + "-".join(SCALES_WITH_BATCH[:_count]),
            partial(_linear, SCALES_WITH_BATCH[:_count]),
            targets=TARGETS,
            partial=True,
            seconds_per_fold=1,
        )
    )
register(Contender("trees-summary", _trees, targets=TARGETS, partial=True, seconds_per_fold=10))
register(Contender("roofline", _roofline, targets=TARGETS, partial=True, seconds_per_fold=0.5))
for _name, _make, _seconds in (
    ("graph-roofline", _graph_roofline, 1),
    ("graph-kinds", _graph_kinds, 5),
    ("graph-trees", _graph_trees, 10),
):
    register(Contender(_name, _make, targets=TARGETS, partial=True, seconds_per_fold=_seconds))
