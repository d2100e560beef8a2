"""Inference under MPS shares, with a network held out; its time on the whole device is known."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.published.steps import register_parts, whole_step_s

if TYPE_CHECKING:
    import pandas as pd

_NAME = "rapp-by-model"


def held_to_a_share(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Rows below the whole device, with the same job's step time on the whole device."""
    key = ["device", "architecture", "batch_size", "campaign"]
    whole = frame[frame["sm_share_ratio"] == 1.0].drop_duplicates(key).set_index(key)["step_time_s"]
    rows = frame[frame["sm_share_ratio"] < 1.0]
    known = whole.rename("whole_step_time_s").reset_index()
    return rows.merge(known, on=key, how="inner")


def _proportional(bundle: Bundle) -> Floats:
    share: Floats = bundle.rows["sm_share_ratio"].to_numpy(dtype=np.float64)
    return whole_step_s(bundle) / share


def _formula(proportional: bool) -> FoldPredictor:
    from models.baselines.group_means import FormulaPredictor

    return FormulaPredictor(_proportional if proportional else whole_step_s)


def _others() -> FoldPredictor:
    from models.baselines.group_means import GroupMeanPredictor

    return GroupMeanPredictor(("sm_share_ratio", "batch_size"), whole_step_s, geometric=True)


register_parts(
    _NAME,
    {
        "share-proportional": partial(_formula, True),
        "share-unchanged": partial(_formula, False),
        "share-others": _others,
    },
)

PROTOCOLS = (
    Protocol(
        _NAME,
        "inference step under an MPS share of a network never seen, its step with the whole V100 known",
        ("rapp",),
        "by-model",
        target="solo_step_time_s",
        choose=held_to_a_share,
        unit="architecture",
        contenders=(
            "constant",
            "share-proportional",
            "share-unchanged",
            "share-others",
            "share-cost-model",
            "share-cost-corrected",
        ),
        by=("architecture", "sm_share_ratio", "batch_size"),
    ),
)
