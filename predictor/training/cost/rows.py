"""Which measured steps the cost model learns from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from datasets.sources import get_source, withheld

HELD_OUT = ("gavel", "lucid")
"""Sources of co-location campaigns."""

SCRIPTS = ("gavel", "miso")
"""Sources that ran training scripts with their input pipeline: PyTorch on older hosts, Keras on one of today."""


def learnable(solo: pd.DataFrame) -> pd.DataFrame:
    """Steps that the shipped cost model learns from: all that it may, except those of co-location campaigns."""
    rows = learnable_rows(solo)
    return rows[~rows.source.isin(HELD_OUT)].reset_index(drop=True)


def without_sources(table: pd.DataFrame, sources: Sequence[str]) -> pd.DataFrame:
    """The rows of other sources.

    Raises:
        UnknownNameError: unknown source.
    """
    for name in sources:
        get_source(name)
    return table[~table.source.isin(sources)].reset_index(drop=True)


def thinned(solo: pd.DataFrame, timm: float, shares: float) -> pd.DataFrame:
    """Sample timm's inference rows, and those under an MPS share, because many are of the same networks."""
    is_timm = (solo.source == "timm") & (solo["mode"] == "inference")
    is_share = solo.sm_share_ratio < 1.0
    left_out = [
        index
        for many, part in ((is_timm, timm), (is_share, shares))
        for index in solo[many].sample(frac=1.0 - part, random_state=0).index
    ]
    return solo.drop(index=left_out).reset_index(drop=True)


def script_rows(solo: pd.DataFrame) -> pd.DataFrame:
    """Steps of training scripts with their loaders that a shipped model may learn from, without benchmark
    harnesses."""
    rows = learnable_rows(solo)
    return rows[rows.source.isin(SCRIPTS) & (rows["mode"] == "training")].reset_index(drop=True)


def learnable_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of sources that a shipped model may learn from."""
    barred = {source.name for source in withheld(set(table.source.astype(str)))}
    return table[~table.source.isin(barred)].reset_index(drop=True)
