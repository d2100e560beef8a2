"""Baselines of the step time of a job alone, shared by several protocols."""

from __future__ import annotations

from functools import partial

import pandas as pd

from datasets.bundle import Bundle
from predictor.evaluation.protocols.features import SCALES_WITH_BATCH, per_step
from predictor.evaluation.protocols.registry import Contender, FoldPredictor, register

TARGETS = ("solo_step_time_s",)
# What makes two step times of one network differ, the device first.
SETTING = ("device", "campaign", "mode", "framework", "precision", "memory_layout", "compiler")
# The predictors that only look at totals of the network; who predicts steps from graphs is added here.
OF_STEPS = ("constant", "linear", "trees-summary", "roofline")


def _totals(bundle: Bundle, only: tuple[str, ...] = ()) -> pd.DataFrame:
    totals = per_step(bundle)
    return totals[list(only or totals)]


def _linear(only: tuple[str, ...] = ()) -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(partial(_totals, only=only), SETTING)


def _trees() -> FoldPredictor:
    from models.baselines.summary_trees import SummaryTreePredictor

    # The campaign stands for versions of the framework.
    return SummaryTreePredictor(_totals, SETTING)


def _roofline() -> FoldPredictor:
    from models.baselines.rooflines import RooflinePredictor

    return RooflinePredictor(_totals)


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
