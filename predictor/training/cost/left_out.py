"""Errors of the cost model on families of networks that it was not fitted to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.cost.form import HOSTS
from predictor.fitted.intervals import conformal_quantile
from predictor.training.cost.examples import CostExample, weighted
from predictor.training.cost.fit import CostConfig, fit_cost
from profiling.workload import Workload


def family(workload: str) -> str:
    """The leading letters of a network's name without collection (`resnet`, `vit`), by which folds are
    made."""
    name = Workload.parse(workload).model.rpartition("/")[2]
    letters = re.match(r"[a-z]+", name)
    return letters.group() if letters else name


def left_out_errors(
    examples: Sequence[CostExample],
    others: Sequence[CostExample],
    families: Sequence[str],
    folds: int,
    config: CostConfig,
) -> dict[str, Any]:
    """Errors on families held out in turn, with a single network each.

    Args:
        examples: steps.
        others: single operators, from which every fit learns.
        families: family of each step's network.
        folds: number of folds.
        config: configuration of the fits.

    Returns:
        `error_on_left_out_families`, of each campaign (MAPE and median, percent), and `log_error_90`, the 90
        % bound of |log predicted / measured|, separately for steps with data on the device and those fed by
        the host.
    """
    config = replace(config, networks=1)
    fold = _folds(families, folds)
    predicted = np.zeros(len(examples))
    for k in range(folds):
        kept = [e for e, f in zip(examples, fold, strict=True) if f != k]
        model = fit_cost(weighted([*kept, *others]), config)
        for i in np.flatnonzero(fold == k):
            example = examples[int(i)]
            predicted[i] = model.cost_of(example.job, example.campaign).step_time_s
    measured = np.exp([e.log_s for e in examples])
    errors = 100.0 * np.abs(predicted / measured - 1.0)
    groups = np.array([e.campaign for e in examples])
    on_device = np.array([e.job.host == HOSTS.index("on_device") for e in examples])
    off = np.abs(np.log(predicted / measured))
    return {
        "error_on_left_out_families": {
            name: {
                "rows": int((groups == name).sum()),
                "mape_percent": round(float(errors[groups == name].mean()), 2),
                "median_ape_percent": round(float(np.median(errors[groups == name])), 2),
            }
            for name in sorted(set(groups.tolist()))
        },
        "log_error_90": {
            name: round(conformal_quantile(off[chosen]), 4)
            for name, chosen in (("on_device", on_device), ("fed_by_host", ~on_device))
            if chosen.any()
        },
    }


def _folds(families: Sequence[str], folds: int) -> np.ndarray:
    """[N] fold of each row: whole families, the largest first into the smallest fold."""
    names, counts = np.unique(np.array(families), return_counts=True)
    size, fold_of = np.zeros(folds), {}
    for k in np.argsort(-counts, kind="stable"):
        fold_of[str(names[k])] = int(size.argmin())
        size[fold_of[str(names[k])]] += counts[k]
    return np.array([fold_of[f] for f in families])
