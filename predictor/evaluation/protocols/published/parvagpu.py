"""Equal inference processes in MIG slices, with a network held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    import pandas as pd

_NAME = "parvagpu-by-model"


def once_a_set(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """One row per set: its members are equal processes of one measurement, so only the first is scored."""
    return frame.assign(is_target=frame["member"] == 0)


def _even(bundle: Bundle) -> Floats:
    return 1.0 / bundle.rows["processes"].to_numpy(dtype=np.float64)


def _even_share() -> FoldPredictor:
    from models.baselines.group_means import FormulaPredictor

    return FormulaPredictor(_even)


def _others() -> FoldPredictor:
    from models.baselines.group_means import GroupMeanPredictor

    return GroupMeanPredictor(("processes", "device", "batch_size"))


for _contender, _make in {"even-share": _even_share, "processes-others": _others}.items():
    register(
        Contender(
            _contender,
            _make,
            targets=("throughput_ratio",),
            protocols=frozenset({_NAME}),
            seconds_per_fold=0.05,
        )
    )

PROTOCOLS = (
    Protocol(
        _NAME,
        "throughput of each of 2 to 5 equal inference processes in a MIG slice, a network never seen",
        ("parvagpu",),
        "by-model",
        choose=once_a_set,
        contenders=(
            "constant",
            "even-share",
            "processes-others",
            "trees-solo",
            "process-sharing",
            "process-sharing-trees",
        ),
        by=("architecture", "device", "processes"),
    ),
)
