"""Mixes under MPS as few-shot sets: a model is held out, and some of its mixes are observed.

MISO publishes ratios of step times between two shares of the card. Processes with a seventh of the card each
do not slow each other down. Therefore the step with the whole card over that with a seventh, times the cost
of a seventh alone (the smallest MIG slice over the whole card), is the slowdown from sharing the whole card.
The scored ratio differs from it by a factor known beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.bundle import Bundle
from models.features import Floats
from predictor.evaluation.protocols.few_shot.contenders import LearnerFactory, learners
from predictor.evaluation.protocols.few_shot.learners import FewShotLearner, Fold
from predictor.evaluation.protocols.published.miso import whole_to_least
from predictor.evaluation.protocols.published.mix_profiles import profiles
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit
from predictor.examples.examples import Examples, examples_of
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CAMPAIGN, CARD = "miso", "a100"
# Combinations sampled from the 1,300 measured: the covariance of all members with all partners would fill the
# memory.
MOST_MIXES = 400


def _least_slice(solo: pd.DataFrame) -> dict[str, float]:
    """Log ratio of a job's step time on the smallest slice to that on the whole card."""
    return {str(job): float(value) for job, value in profiles(solo)["1g"].items()}


def mixes_as_sets(tables: dict[str, Any]) -> Examples:
    """Combinations of two or more jobs with their throughput ratios on the whole card.

    Each occurs once, with the mean of its repeats.

    Raises:
        InputError: the tables lack MISO's mixes.
    """
    if "mixes" not in tables or "solo" not in tables:
        raise InputError("the data lack MISO's mixes", hint="cotenant data import")
    solo = tables["solo"]
    solo = solo[solo["campaign"] == CAMPAIGN]
    mixes = tables["mixes"]
    rows = whole_to_least(mixes[mixes["campaign"] == CAMPAIGN], tables)
    log_ratio = rows.groupby(["jobs", "workload"])["log_step_time_ratio"].mean()
    once = rows[rows["set_id"].isin(rows.drop_duplicates("jobs")["set_id"])]
    drawn = np.random.default_rng(0).permutation(sorted(set(once["set_id"])))[:MOST_MIXES]
    once = once[once["set_id"].isin(drawn)]
    slower = once["workload"].map(_least_slice(solo)).to_numpy(dtype=np.float64)
    measured = np.array([log_ratio[key] for key in zip(once["jobs"], once["workload"], strict=True)])
    frame = once.assign(
        throughput_ratio=np.exp(-measured - slower),
        is_target=True,
        censored=False,
        set_memory_bytes=np.nan,
        set_utilization_ratio=np.nan,
    )
    whole = solo[solo["device"] == f"{CARD}:mig=7g"].assign(device=CARD)
    for column in ("utilization_ratio", "memory_bandwidth_ratio"):
        known = solo[(solo["device"] == CARD) & solo[column].notna()].groupby("workload")[column].mean()
        whole[column] = whole["workload"].map(known)
    return examples_of(frame, whole)


def learners_of(tables: dict[str, Any]) -> LearnerFactory:
    """A factory of learners whose process starts from `MixSharing`.

    For training rows, too, `MixSharing` is fitted without their architecture.
    """
    from predictor.evaluation.protocols.published.mix_sharing import MixSharing

    solo = tables["solo"]
    solo = solo[solo["campaign"] == CAMPAIGN]
    slower = _least_slice(solo)

    def expected(train: Examples, test: Examples) -> Floats:
        """[rows of `test`] log slowdowns."""
        model = MixSharing().fit(_bundle(train, slower, solo))
        log_ratio = np.log(model.predict(_bundle(test, slower, solo)))
        return np.asarray(log_ratio + _slower(test, slower))

    def make(fold: Fold) -> dict[str, FewShotLearner]:
        places = {set_id: k for k, set_id in enumerate(fold.train.set_ids)}
        total, count = np.zeros(len(fold.train.workloads)), np.zeros(len(fold.train.workloads))

        def left_out(inner: ExampleFold) -> None:
            if not inner.train.scored.any():
                return
            rows = np.isin(fold.train.set_index, [places[s] for s in inner.test.set_ids])
            total[rows] += expected(inner.train, inner.test)
            count[rows] += 1

        list(cross_fit(fold.train, architecture_groups(fold.train, count=4), left_out))
        prior = np.concatenate([total / np.maximum(count, 1), expected(fold.train, fold.test)])
        return learners(fold, prior)

    return make


def _slower(examples: Examples, slower: dict[str, float]) -> Floats:
    return np.array([slower[str(w.without_solo())] for w in examples.workloads])


def _bundle(examples: Examples, slower: dict[str, float], solo: pd.DataFrame) -> Bundle:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "set_id": [examples.set_ids[k] for k in examples.set_index],
            "workload": [str(w.without_solo()) for w in examples.workloads],
            "log_step_time_ratio": -np.log(examples.ratio) - _slower(examples, slower),
        }
    )
    return Bundle("step_time_ratio", frame, solo.iloc[:0], {"solo": solo})
