"""`cotenant evaluate`: score a model as is, or its configuration refitted fold by fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.families import family_of
from datasets.splits import check_evaluated, make_split
from models.colocation_network import NetworkConfig
from models.features import Floats
from predictor.answering.shares import effective_share, remaining_contention
from predictor.config import LossCallback, TrainingConfig
from predictor.evaluation.answered import answered_log_ratio, upper_ends_of
from predictor.evaluation.metrics import score
from predictor.evaluation.scored_rows import RowsCallback, member_rows, no_rows
from predictor.examples.cross_fit import ExampleFold, cross_fit, fold_groups
from predictor.examples.examples import Examples, examples_of
from predictor.fitted.device_memory import HeadCalibration, examples_memory_bytes
from predictor.fitted.fitted import Fitted
from predictor.fitted.intervals import GROUPS, Intervals, effective_members
from predictor.fitted.learned_sets import learned_rows
from predictor.fitted.model import CotenantModel
from predictor.fitted.utilization import predicted_ratio
from predictor.training.fit import solo_examples
from predictor.training.heads import fit_heads
from predictor.training.networks import fit
from predictor.types import Bools
from profiling.collections.networks import network_of
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from predictor.predictor import Predictor
    from profiling.workload import Workload


def evaluate(
    predictor: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    split: str = "none",
    seed: int = 0,
    report: LossCallback | None = None,
    graph_only: bool = False,
    rows: RowsCallback = no_rows,
) -> dict[str, Any]:
    """Score on measured sets, as in `cotenant evaluate --json`.

    With `split="none"`, the model is scored as is on every set that it was not trained on (`left_out` counts
    the others). With any other split, its configuration is fitted from scratch for every fold, including
    pre-training, and only held-out sets are scored. As in the protocols, `by-model` scores a set of two models twice,
    with either left out; `held_out`, `by_model` and `by_family` have each row once, with its own model left out.

    The predicted ratio is what the row's campaign would observe, which is above 1 where its solo runs are slow. With
    `split="none"`, `answers` scores the ratio of `predict`, which is not told the campaign and is at most 1.
    `measured_alone` counts the scored rows whose solo step time the model was told.

    Args:
        predictor: a trained predictor.
        colocation, solo: tidy tables.
        split: one of `datasets.splits.EVALUATED`.
        seed: seed of the split.
        report: called with each epoch's loss.
        graph_only: withhold the solo measurements of the scored members.
        rows: called with the scored rows; `answered` is the ratio of `predict`, `held_out` whether the row's own model
            was left out.

    Raises:
        UnknownNameError: unknown split.
        InputError: no rows, no sets left to score, or no fold with two sides; or see `learned_rows`.
    """
    check_evaluated(split)
    predictor._table()  # raises where nothing was fitted
    check_rows(colocation)
    if split == "none":
        result = _as_it_is(predictor, colocation, solo, graph_only, rows)
    else:
        result = _refitted(predictor, colocation, solo, split, seed, report, graph_only, rows)
    return {"model_version": predictor.version, **result}


def check_rows(colocation: pd.DataFrame) -> None:
    """Raise `InputError` if the table has no rows."""
    if not len(colocation):
        raise InputError(
            "the colocation table has no rows",
            expected="measured co-location sets",
            got="none",
            hint="import some: cotenant data import --help",
        )


def _asked(colocation: pd.DataFrame, solo: pd.DataFrame, graph_only: bool) -> Examples:
    examples = examples_of(colocation, solo)
    return examples.without_solo() if graph_only else examples


def _as_it_is(
    predictor: Predictor, colocation: pd.DataFrame, solo: pd.DataFrame, graph_only: bool, rows: RowsCallback
) -> dict[str, Any]:
    seen = learned_rows(predictor.fitted_, colocation)
    rest = colocation[~seen]
    left_out = int(colocation[seen].set_id.nunique())
    if not len(rest):
        raise InputError(
            "no sets left to score",
            expected="sets that the model was not trained on",
            got=f"{left_out} trained on",
            hint="use --split by-model to refit with models held out",
        )
    fitted = predictor.fitted_
    examples = _asked(rest, solo, graph_only)
    ratio, slow = answered_log_ratio(predictor, examples)
    half = half_widths(predictor, examples, slow)
    sides = _sides(examples, fitted.heads, fitted.model)
    answers = _answers(predictor, examples)
    about = {"split": "none", "left_out": left_out}
    result = _result(examples, ratio, half, sides, about, rows, columns=answers)
    pick = examples.scored
    return {**result, "answers": score(examples.ratio[pick], *(value[pick] for value in answers.values()))}


def _answers(predictor: Predictor, examples: Examples) -> dict[str, Floats]:
    """[T] throughput ratio of each member as `predict` gives it, which is not told of campaigns, and its interval."""
    asked = examples.without_campaign()
    _, slow = answered_log_ratio(predictor, asked)
    half = half_widths(predictor, asked, slow)
    return {
        "answered": np.exp(-slow),
        "answered_lower": np.exp(-slow - half),
        "answered_upper": np.minimum(np.exp(half - slow), 1.0),
    }


def half_widths(predictor: Predictor, examples: Examples, log_slowdown: Floats) -> Floats:
    """[T] half width of each member's interval of the log ratio, as in answers."""
    fitted, index = predictor.fitted_, examples.set_index
    measured = np.array([w.solo.step_time_s is not None for w in examples.workloads])
    whole = np.bincount(index, ~measured) == 0
    variants, where = fitted.model.variants(examples.workloads, examples.devices)
    share = np.array(
        [effective_share(*job) for job in zip(examples.workloads, examples.devices, strict=True)]
    )
    weight = variants.demand[where, 0] * remaining_contention(share)
    members = effective_members(weight, index, len(examples.set_ids))
    intervals, never = fitted.intervals, _are_new(fitted, examples)
    solo, graph = (
        intervals.quantile[group] * np.where(never, intervals.device_factor[group], 1.0) for group in GROUPS
    )
    quantile = np.where(whole, solo, graph)
    half = quantile[index] * intervals.scale(log_slowdown, members[index])
    return np.maximum(half, upper_ends_of(predictor, examples, quantile) - log_slowdown)


def _are_new(fitted: Fitted, examples: Examples) -> Bools:
    """[S] whether some aspect of each set was never measured under co-location."""
    coverage, featurizer = fitted.manifest.coverage, fitted.model.featurizer
    members: list[list[Workload]] = [[] for _ in examples.set_ids]
    for number, job, device in zip(
        examples.set_index.tolist(), examples.workloads, examples.devices, strict=True
    ):
        members[number].append(featurizer.job(job, device).workload)
    return np.array(
        [
            bool(coverage.never_measured(examples.devices[first], examples.mode[first], own))
            for first, own in zip(examples.first.tolist(), members, strict=True)
        ],
        dtype=bool,
    )


# Measured and predicted values.
Sides = dict[str, tuple[np.ndarray, ...]]


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A model's predictions for the T rows of sets held out of its training.

    Attributes:
        examples: the rows.
        log_ratio: [T] predicted log of co-located / solo throughput.
        log_slowdown: [T] predicted log slowdown.
        sides: name of a quantity of sets -> its measured and predicted values.
        own: [T] whether the row is one of the held-out model itself, not of a partner.
    """

    examples: Examples
    log_ratio: Floats
    log_slowdown: Floats
    sides: Sides
    own: Bools


def _refitted(
    predictor: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    split: str,
    seed: int,
    report: LossCallback | None,
    graph_only: bool,
    rows: RowsCallback,
) -> dict[str, Any]:
    network = predictor.network or NetworkConfig()
    training = replace(predictor.training or TrainingConfig(), seed=seed)
    featurizer = predictor.fitted_.model.featurizer

    def refit(fold: ExampleFold) -> FoldResult:
        model = fit(fold.train, solo_examples(fold.seen(solo)), featurizer, network, training, report)
        heads = fit_heads(fold.train, fold.seen(solo), featurizer)
        asked = fold.test.without_solo() if graph_only else fold.test
        ratio, slow = model.predict_log_ratio(asked)
        held_out = network_of(fold.name)
        own = np.array([network_of(name) == held_out for name in asked.architectures], dtype=bool)
        return FoldResult(asked, ratio, slow, _sides(asked, heads, model), own)

    examples = examples_of(colocation, solo)
    groups = fold_groups(examples, make_split(colocation, split, seed, skip_empty=True), split)
    parts = list(cross_fit(examples, groups, refit))
    if not parts:
        raise InputError(
            "no fold has both a training and a test side",
            expected="at least two groups to split by",
            got=split,
        )
    merged = Examples.joined([p.examples for p in parts])
    sides = {
        name: tuple(np.concatenate([p.sides[name][side] for p in parts]) for side in (0, 1))
        for name in ("memory", "utilization")
    }
    ratio = np.concatenate([p.log_ratio for p in parts])
    half = np.concatenate([_half_width(parts, k) for k in range(len(parts))])
    own = np.concatenate([p.own for p in parts]) if split == "by-model" else None
    about = {"split": split, "seed": seed, "folds": len(parts)}
    return _result(merged, ratio, half, sides, about, rows, own, {} if own is None else {"held_out": own})


def _half_width(parts: Sequence[FoldResult], index: int) -> np.ndarray:
    """Half width for one fold from the residuals of all others (cross-conformal, Vovk 2015), never from its
    own, nor from other folds' of its own sets: by-model leaves a pair out twice."""
    errors, slows = [], []
    own = parts[index].examples.set_ids
    for number, part in enumerate(parts):
        if number != index or len(parts) == 1:
            scored = part.examples.scored
            if len(parts) > 1:
                scored &= ~np.isin(part.examples.set_ids, own)[part.examples.set_index]
            errors.append(np.log(part.examples.ratio[scored]) - part.log_ratio[scored])
            slows.append(part.log_slowdown[scored])
    residual = (np.concatenate(errors), np.concatenate(slows))
    intervals = Intervals.fit({"solo": residual, "graph": residual}, np.zeros(0), np.zeros(0))
    return intervals.half_width(parts[index].log_slowdown, "solo")


def _sides(examples: Examples, heads: HeadCalibration, model: CotenantModel) -> Sides:
    """(measured, predicted) of set memory and set utilisation."""
    return {
        "memory": (examples.set_memory_bytes, examples_memory_bytes(examples, model.featurizer, heads)),
        "utilization": (examples.set_utilization_ratio, predicted_ratio(model, examples)),
    }


def _result(
    examples: Examples,
    ratio: np.ndarray,
    half: np.ndarray,
    sides: Sides,
    about: dict[str, Any],
    rows: RowsCallback,
    own: Bools | None = None,
    columns: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    usable = examples.scored
    if not usable.any():
        raise InputError(
            "no measured throughput to score", expected="rows with a throughput_ratio", got="none"
        )
    predicted = np.exp(ratio)
    lower, upper = np.exp(ratio - half), np.exp(ratio + half)
    values = {"predicted": predicted, "lower": lower, "upper": upper, **columns}
    picked = np.flatnonzero(usable)
    rows(member_rows(examples, picked, {name: value[picked] for name, value in values.items()}))

    def part(mask: np.ndarray) -> dict[str, Any]:
        pick = usable & mask
        return score(examples.ratio[pick], predicted[pick], lower[pick], upper[pick])

    whole = np.ones(len(usable), dtype=bool)
    of_models = whole if own is None else own

    def by(names: tuple[str, ...], among: Bools) -> dict[str, Any]:
        masks = {name: among & (np.array(names) == name) for name in sorted(set(names))}
        return {name: part(mask) for name, mask in masks.items() if (usable & mask).any()}

    targets = {}
    for name, (measured, guess) in sides.items():
        known = ~np.isnan(measured)
        targets[name] = score(measured[known], guess[known]) if known.any() else {"n": 0}
    return {
        "target": "throughput-ratio",
        **about,
        "measured_alone": sum(examples.workloads[row].solo.step_time_s is not None for row in picked),
        "metrics": part(whole),
        **({"held_out": part(own)} if own is not None and (usable & own).any() else {}),
        "by_family": by(tuple(family_of(name) for name in examples.architectures), of_models),
        "by_model": by(examples.architectures, of_models),
        "by_device": by(examples.devices, whole),
        "targets": targets,
    }
