"""NAS-Bench-101 cells in training: cells held out, and the largest held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.splits import Fold
from predictor.evaluation.protocols.features import published
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.published.steps import OF_NEIGHBOURS, OF_STEPS

if TYPE_CHECKING:
    import pandas as pd

_CONTENDERS = (*OF_STEPS, *OF_NEIGHBOURS, "linear-macs", "linear-macs-activations")
_LARGEST = 0.2


def with_macs(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The rows with the published multiply-adds of each cell, as `macs`."""
    return frame.assign(macs=published(frame, tables)["macs"])


def largest_left_out(frame: pd.DataFrame, _seed: int) -> list[Fold]:
    """One fold, which scores the fifth of the cells with the most multiply-adds."""
    macs = frame.drop_duplicates("architecture").set_index("architecture")["macs"]
    large = macs >= macs.quantile(1 - _LARGEST)
    sides = [tuple(sorted(map(str, large.index[rows]))) for rows in (~large, large)]
    return [Fold("largest-fifth", sides[0], sides[1])]


PROTOCOLS = (
    Protocol(
        "ecnas-by-cell",
        "training step of NAS-Bench-101 cells never seen, Quadro RTX 6000",
        ("ecnas",),
        "by-cell",
        target="solo_step_time_s",
        unit="architecture",
        known=("workloads",),
        contenders=_CONTENDERS,
        by=("campaign",),
    ),
    Protocol(
        "ecnas-largest-fifth",
        "training step of cells larger than any seen",
        ("ecnas",),
        "the fifth with the most multiply-adds",
        target="solo_step_time_s",
        choose=with_macs,
        unit="architecture",
        folds=largest_left_out,
        known=("workloads",),
        contenders=_CONTENDERS,
        by=("campaign",),
    ),
)
