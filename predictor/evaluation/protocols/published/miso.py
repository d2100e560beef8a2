"""Mixes of training jobs under MPS shares: how a member's step changes between shares.

A model, or large mixes, are held out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from datasets.splits import Fold
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    import pandas as pd

_TARGETS = ("step_time_ratio",)
OF_MIXES = ("constant", "mean-by-size", "ridge-slices", "additive-jobs", "mix-profiles", "mix-sharing")
_LEARNED_SIZE = 3


def whole_to_least(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Mixes of two or more, from the smallest to the largest share.

    Each combination of jobs is one unit, however often it was measured.
    """
    ends = frame[
        (frame["numerator_sm_share_ratio"] == frame["numerator_sm_share_ratio"].max())
        & (frame["denominator_sm_share_ratio"] == frame["denominator_sm_share_ratio"].min())
    ]
    sets = ends.groupby("set_id")["workload"]
    jobs = sets.agg(lambda names: " + ".join(sorted(names)))
    rows = ends.assign(jobs=ends["set_id"].map(jobs), members=sets.transform("size"))
    return rows[rows["members"] > 1]


def observed_at_half(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """As `whole_to_least`, with the measurement of the same mix at the share in between."""
    shares = frame["numerator_sm_share_ratio"]
    between = frame[shares < shares.max()].set_index(["set_id", "member"])["log_step_time_ratio"]
    rows = whole_to_least(frame, tables)
    known = between.rename("observed_log_step_time_ratio").reset_index()
    return rows.merge(known, on=["set_id", "member"], how="inner")


def small_to_large(frame: pd.DataFrame, _seed: int) -> list[Fold]:
    """One fold: mixes of up to three members are for training, those of four to seven are scored."""
    size = frame.drop_duplicates("jobs").set_index("jobs")["members"]
    sides = [tuple(sorted(size.index[rows])) for rows in (size <= _LEARNED_SIZE, size > _LEARNED_SIZE)]
    return [Fold("4-to-7-members", sides[0], sides[1])]


def _by_size() -> FoldPredictor:
    from models.baselines.group_means import GroupMeanPredictor

    return GroupMeanPredictor(("members",), geometric=True)


def _mixes(jobs: bool) -> FoldPredictor:
    from models.baselines.mixes import RidgeOfMixes

    return RidgeOfMixes(jobs)


def _sharing() -> FoldPredictor:
    from predictor.evaluation.protocols.published.mix_sharing import MixSharing

    return MixSharing()


register(Contender("mean-by-size", _by_size, targets=_TARGETS, seconds_per_fold=0.05))
register(Contender("ridge-slices", partial(_mixes, False), targets=_TARGETS, seconds_per_fold=0.5))
register(Contender("additive-jobs", partial(_mixes, True), targets=_TARGETS, seconds_per_fold=0.5))
register(Contender("mix-sharing", _sharing, version="2", targets=_TARGETS, seconds_per_fold=4))

_BY = ("architecture", "members")
_OBSERVED = "step with the whole A100 / step with 14 % of it for each process, observed at 50 %; "

PROTOCOLS = (
    Protocol(
        "miso-random",
        "combinations of jobs at random: optimistic, for comparison",
        ("miso",),
        "random",
        target="step_time_ratio",
        choose=whole_to_least,
        unit="jobs",
        known=("solo",),
        contenders=OF_MIXES,
        by=_BY,
    ),
    Protocol(
        "miso-by-model",
        "step with the whole A100 / step with 14 % of it for each process, a model never seen",
        ("miso",),
        "by-model",
        target="step_time_ratio",
        choose=whole_to_least,
        unit="jobs",
        known=("solo",),
        contenders=OF_MIXES,
        by=_BY,
    ),
    *(
        Protocol(
            name,
            _OBSERVED + about,
            ("miso",),
            split,
            target="step_time_ratio",
            choose=observed_at_half,
            unit="jobs",
            known=("solo",),
            contenders=("constant", "as-observed", "mix-observed"),
            by=_BY,
        )
        for name, split, about in (
            ("miso-other-share", "random", "combinations of known jobs never seen"),
            ("miso-other-share-by-model", "by-model", "a model never seen"),
        )
    ),
    Protocol(
        "miso-by-size",
        "the same in mixes of 4 to 7 jobs, learned from mixes of up to 3",
        ("miso",),
        "up to 3 members against 4 to 7",
        target="step_time_ratio",
        choose=whole_to_least,
        unit="jobs",
        folds=small_to_large,
        known=("solo",),
        contenders=OF_MIXES,
        by=_BY,
    ),
)
