"""`cotenant evaluate --target`: scores a predictor on the measured rows of one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.bundle import Bundle, Floats
from datasets.families import family_of
from datasets.targets import Target, get_target
from models.cost.single_operators import operator_times
from predictor.evaluation.metrics import bounds_kept, score
from predictor.evaluation.scored_rows import RowsCallback, no_rows
from profiling.errors import CotenantError, InputError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.examples.featurizer import Featurizer
    from predictor.predictor import Predictor

# Name of a target on the command line -> its name in `datasets.targets`.
ROW_TARGETS = {"step-time": "solo_step_time_s", "memory": "memory_bytes", "operator-time": "latency_s"}
_JOBS_AT_ONCE = 256

# [n, 3] value and ends of the 90 % interval of each row, NaN without a prediction; and the reasons for the
# latter.
Answers = tuple[Floats, list[str]]
# Called with the number of jobs answered and the total.
Report = Callable[[int, int], None]


def evaluate_rows(
    predictor: Predictor,
    target: str,
    frame: pd.DataFrame,
    report: Report = lambda _done, _all: None,
    rows: RowsCallback = no_rows,
) -> dict[str, Any]:
    """Score `predictor` as is on the rows of a table; it gets no measurements.

    Args:
        predictor: a fitted predictor.
        target: a key of `ROW_TARGETS`.
        frame: the target's table: `solo` (runs on one device), `memory` (whole devices; bounds are scored
            separately) or `operators`.
        report: called as jobs are answered.
        rows: called with the scored rows of the table, which have `measured`, `predicted`, `lower` and `upper` as well.

    Returns:
        `model_version`, `target`, `metrics` of the measured points with `coverage_90`, `by_family`, `by_model`, `by_device`,
        `bounds` if the table has any, and `unanswered`: reason -> number of rows.

    Raises:
        InputError: no row is left to score, or none could be answered.
    """
    what = get_target(ROW_TARGETS[target])
    bundle = Bundle(what.name, _scored(what, frame).reset_index(drop=True), frame.iloc[:0])
    if not len(bundle.rows):
        raise _nothing_to_score(what, target, frame)
    values, reasons = _ANSWERS[what.name](predictor, bundle.without_targets().rows, report)
    answered = ~np.isnan(values[:, 0])
    if not answered.any():
        raise InputError(
            "the predictor cannot answer any row",
            expected="jobs whose graphs are known",
            got="; ".join(f"{reason} ({count})" for reason, count in Counter(reasons).most_common(3)),
        )
    result = _scores(bundle, values, answered)
    pick = bundle.points & answered
    ends = dict(zip(("predicted", "lower", "upper"), values[pick].T, strict=True))
    rows(bundle.rows[pick].assign(measured=bundle.y[pick], **ends))
    lower, upper = bundle.bounds
    kept = bounds_kept(values[:, 0], lower, upper)
    return {
        "model_version": predictor.version,
        "target": target,
        "split": "none",
        **result,
        **({"bounds": kept} if kept["n"] else {}),
        "unanswered": dict(Counter(reasons).most_common()),
    }


def _nothing_to_score(what: Target, target: str, frame: pd.DataFrame) -> InputError:
    """Error that states why no row is left: the table is empty, or `_scored` dropped all rows."""
    expected, got = f"measured rows in table {what.table}", None
    if what.table == "memory" and len(frame):
        expected = "rows of whole devices (scope device)"
        got = ", ".join(f"{n} of scope {scope}" for scope, n in Counter(frame["scope"]).most_common())
    elif what.table == "solo" and len(frame):
        expected, got = "rows of one GPU with step_time_s", f"{len(frame)} others"
    return InputError(f"no rows to score for {target}", expected=expected, got=got)


def _scored(what: Target, frame: pd.DataFrame) -> pd.DataFrame:
    if what.table == "solo":
        return frame[frame["step_time_s"].notna() & (frame["gpus"] == 1)]
    if what.table == "memory":
        return frame[frame["scope"] == "device"]
    return frame


def _scores(bundle: Bundle, values: Floats, answered: np.ndarray) -> dict[str, Any]:
    rows, y, pick = bundle.rows, bundle.y, bundle.points & answered
    names = rows["architecture"] if "architecture" in rows else rows["kind"]
    groups = {
        "by_family": names.map(family_of) if "architecture" in rows else names,
        "by_model": names,
        "by_device": rows["device"],
    }

    def part(mask: np.ndarray) -> dict[str, Any]:
        lower, upper = values[mask, 1], values[mask, 2]
        ends = {} if np.isnan(lower).any() else {"lower": lower, "upper": upper}
        return score(y[mask], values[mask, 0], **ends)

    result: dict[str, Any] = {"metrics": part(pick) if pick.any() else {"n": 0}}
    for key, column in groups.items():
        labels = column.to_numpy(dtype=object)
        result[key] = {
            str(label): part(pick & (labels == label)) for label in sorted(set(labels[pick].tolist()))
        }
    return result


def _jobs(quantity: str) -> Callable[[Predictor, pd.DataFrame, Report], Answers]:
    """Predictions of a quantity for jobs alone on a device."""

    def answer(predictor: Predictor, rows: pd.DataFrame, report: Report) -> Answers:
        featurizer = predictor.fitted_.model.featurizer
        pairs = list(zip(rows["workload"], rows["device"], strict=True))
        asked, known, reasons = list(dict.fromkeys(pairs)), {}, {}
        for start in range(0, len(asked), _JOBS_AT_ONCE):
            report(start, len(asked))
            sets = {}
            for spec, device in asked[start : start + _JOBS_AT_ONCE]:
                try:
                    workload = Workload.parse(spec)
                    featurizer.job(workload, device)
                    sets[spec, device] = ColocationSet(device, (workload,))
                except CotenantError as error:
                    reasons[spec, device] = error.message
            for key, prediction in zip(sets, predictor.predict_many(list(sets.values())), strict=True):
                q = getattr(prediction.members[0], quantity)
                known[key] = (q.value, q.lower, q.upper)
        report(len(asked), len(asked))
        values = np.array([known.get(pair, (np.nan,) * 3) for pair in pairs], dtype=np.float64).reshape(-1, 3)
        if quantity == "solo_step_time_s":
            values *= _host_factors(featurizer, rows, set(known))[:, None]
        return values, [reasons[pair] for pair in pairs if pair not in known]

    return answer


def _host_factors(featurizer: Featurizer, rows: pd.DataFrame, answered: set[tuple[str, str]]) -> Floats:
    """[n] ratio of the step time on the host of the row's campaign to the predicted one.

    1 if that host is unknown.

    A host is known if the cost model has learned its costs.
    """
    cost_model, factors = featurizer.cost_model, {}
    keys = list(zip(rows["workload"], rows["device"], rows["campaign"] + "/" + rows["mode"], strict=True))
    for key in set(keys):
        spec, device, campaign = key
        if (spec, device) in answered and campaign in cost_model.campaigns:
            job = featurizer.job(Workload.parse(spec), device)
            cost_on_host = cost_model.cost(job.graph, job.device, job.workload, campaign)
            factors[key] = cost_on_host.step_time_s / job.cost.step_time_s
    return np.array([factors.get(key, 1.0) for key in keys])


def _operators(predictor: Predictor, rows: pd.DataFrame, _report: Report) -> Answers:
    """Predictions of the predictor's cost model, which gives no intervals for single operators."""
    seconds, reasons = operator_times(predictor.fitted_.model.featurizer.cost_model, rows)
    ends = np.full_like(seconds, np.nan)
    return np.stack([seconds, ends, ends], 1), reasons


_ANSWERS: dict[str, Callable[[Predictor, pd.DataFrame, Report], Answers]] = {
    "solo_step_time_s": _jobs("solo_step_time_s"),
    "memory_bytes": _jobs("memory_bytes"),
    "latency_s": _operators,
}
