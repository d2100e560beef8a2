"""Compares two predictors on the same measured rows, which neither has learned from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.evaluation.answered import answered_log_ratio
from predictor.evaluation.held_out import HeldOutAnswers
from predictor.evaluation.metrics import score
from predictor.examples.examples import Examples, examples_of
from predictor.fitted.learned_sets import learned_rows
from profiling.errors import UnavailableError

if TYPE_CHECKING:
    import pandas as pd

    from predictor.predictor import Predictor

_RESAMPLES = 1000


@dataclass(frozen=True)
class Candidate:
    """A predictor, its name in messages, and its answers about the pairs held out of its training."""

    name: str
    predictor: Predictor
    held_out: HeldOutAnswers | None = None

    def log_ratio(self, colocation: pd.DataFrame, examples: Examples) -> tuple[Floats, np.ndarray]:
        """[T] log throughput ratio of each row as users get it, and whether the predictor learned from its set.

        For sets it learned from, the answer is the one stored for held-out pairs, from a fit without
        them; NaN if they were not held out there either.

        Args:
            colocation: [T] rows, in the order of `examples`.

        Raises:
            InputError: see `learned_rows`.
        """
        learned = learned_rows(self.predictor.fitted_, colocation)
        answer = np.full(len(learned), np.nan)
        if self.held_out is not None:
            answer[learned] = np.log(self.held_out.ratio_of(colocation))[learned]
        if not learned.all():
            new = examples.subset(colocation.set_id[~learned].astype(str).tolist())
            answer[~learned] = -answered_log_ratio(self.predictor, new.without_campaign())[1]
        return answer, learned


def compare_on_same_rows(
    challenger: Candidate, incumbent: Candidate, colocation: pd.DataFrame, solo: pd.DataFrame
) -> dict[str, Any]:
    """Score the answers of both to users, who name no campaign, on the measured rows that neither has learned from.

    Args:
        challenger, incumbent: the two predictors.
        colocation, solo: tidy tables.

    Returns:
        `rows`, `sets`; `left_out`, the number of sets that each learned from without a held-out prediction,
        and `metrics`, the scores of the co-located / solo throughput, each by `challenger` and `incumbent`;
        `difference_points`: MAPE of the challenger minus that of the incumbent, `value`, `lower` and `upper`
        (95 %, bootstrap over whole sets).

    Raises:
        UnavailableError: there is no such row.
        InputError: see `learned_rows`.
    """
    frame = colocation.sort_values(["set_id", "member"], kind="stable")
    examples = examples_of(frame, solo)
    candidates = {"challenger": challenger, "incumbent": incumbent}
    answers, left_out = {}, {}
    for role, candidate in candidates.items():
        answers[role], learned = candidate.log_ratio(frame, examples)
        unusable = examples.set_index[learned & np.isnan(answers[role]) & examples.scored]
        left_out[role] = len(np.unique(unusable))
    rows = examples.scored & ~np.isnan(answers["challenger"]) & ~np.isnan(answers["incumbent"])
    if not rows.any():
        raise UnavailableError(
            "no measured sets are new to both versions",
            expected="sets that neither was trained on",
            got=", ".join(
                f"{count} of {len(examples.set_ids)} sets learned by {candidates[role].name}"
                for role, count in left_out.items()
            ),
            hint="pass --data with a folder of tables with newer sets",
        )
    measured = examples.ratio[rows]
    predicted = {role: np.exp(answer[rows]) for role, answer in answers.items()}
    off = {role: 100 * np.abs(ratio - measured) / measured for role, ratio in predicted.items()}
    return {
        "rows": int(rows.sum()),
        "sets": len(np.unique(examples.set_index[rows])),
        "left_out": left_out,
        "metrics": {role: score(measured, ratio) for role, ratio in predicted.items()},
        "difference_points": _difference(off["challenger"] - off["incumbent"], examples.set_index[rows]),
    }


def _difference(points: Floats, set_index: np.ndarray) -> dict[str, float]:
    """Mean of paired differences [n], with a percentile bootstrap over sets, whose members' errors are
    correlated."""
    _, codes = np.unique(set_index, return_inverse=True)
    total, count = np.bincount(codes, points), np.bincount(codes)
    generator = np.random.default_rng(0)
    means = np.empty(_RESAMPLES)
    for number in range(_RESAMPLES):
        drawn = generator.integers(0, len(count), len(count))
        means[number] = total[drawn].sum() / count[drawn].sum()
    lower, upper = np.quantile(means, [0.025, 0.975])
    return {"value": float(points.mean()), "lower": float(lower), "upper": float(upper)}
