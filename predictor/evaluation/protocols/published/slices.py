"""Training steps on MIG slices of an A100, with a network held out; its run on the whole card is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.published.slice_demand import slice_shares
from predictor.evaluation.protocols.published.steps import register_parts, whole_step_s

if TYPE_CHECKING:
    import pandas as pd

_NAME = "miso-slices-by-model"
_CARD, _WHOLE = "a100", "a100:mig=7g"
# Measured on the whole card, and known for a held-out network.
_KNOWN = ("utilization_ratio", "memory_bandwidth_ratio", "power_w")


def on_slices(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Rows of slices smaller than the card, with the same job's measurements on the whole card.

    These are step time, utilisation, bandwidth and power.
    """
    whole = frame[frame["device"] == _WHOLE].groupby("workload")["step_time_s"].mean()
    known = {"step_time_s": whole}
    solo = tables["solo"]
    for name in _KNOWN:
        rows = solo[solo["device"].isin((_CARD, _WHOLE)) & solo[name].notna() & (solo["campaign"] == "miso")]
        known[name] = rows.groupby("workload")[name].mean()
    rows = frame[frame["device"].str.startswith(f"{_CARD}:mig=") & (frame["device"] != _WHOLE)]
    added = {f"whole_{name}": rows["workload"].map(values) for name, values in known.items()}
    return rows.assign(**added).dropna(subset=list(added))


def _proportional(bundle: Bundle) -> Floats:
    return whole_step_s(bundle) / np.array([slice_shares(name)[0] for name in bundle.rows["device"]])


def _formula() -> FoldPredictor:
    from models.baselines.group_means import FormulaPredictor

    return FormulaPredictor(_proportional)


def _others() -> FoldPredictor:
    from models.baselines.group_means import GroupMeanPredictor

    return GroupMeanPredictor(("device",), whole_step_s, geometric=True)


register_parts(_NAME, {"slice-proportional": _formula, "slice-others": _others})

PROTOCOLS = (
    Protocol(
        _NAME,
        "training step on a MIG slice of a network never seen, its run on the whole A100 known",
        ("miso",),
        "by-model",
        target="solo_step_time_s",
        choose=on_slices,
        unit="architecture",
        contenders=("constant", "slice-proportional", "slice-others", "slice-demand"),
        by=("architecture", "device"),
    ),
)
