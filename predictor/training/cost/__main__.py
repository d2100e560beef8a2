"""Fit the shipped cost model to imported tables.

    python -m predictor.training.cost --data DIR [--out models/cost/coefficients]

Reads the tables `solo` and, if it is there, `operators` of DIR (`cotenant data import`), and the steps of the bundled measurements. Rows of sources that a shipped model may not learn from are left out,
and so are those of co-location campaigns (`HELD_OUT`): predictions of co-location are then judged on jobs whose solo step
time the cost model has not seen.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datasets import bundled
from datasets.sources import withheld
from datasets.tables import available_tables, read_table
from models.cost.model import SHIPPED
from predictor.training.cost.examples import CostExample, balanced, cost_examples
from predictor.training.cost.fit import CostConfig, fit_cost
from predictor.training.cost.operators import operator_examples, sample_operators
from profiling.capture import graph_for
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

HELD_OUT = ("gavel", "lucid")
"""Sources of co-location campaigns."""

# Under MPS caps a job does not slow down by its share alone; the cost model knows physics of whole devices and slices.
_WHOLE = 1.0


def learnable(solo: pd.DataFrame) -> pd.DataFrame:
    """Rows that the shipped cost model may learn from."""
    barred = {source.name for source in withheld(set(solo.source.astype(str)))}
    kept = ~solo.source.isin([*barred, *HELD_OUT]) & (solo.sm_share_ratio.fillna(_WHOLE) == _WHOLE)
    return solo[kept].reset_index(drop=True)


def learnable_operators(operators: pd.DataFrame) -> pd.DataFrame:
    """Single operators that the shipped cost model may learn from."""
    barred = {source.name for source in withheld(set(operators.source.astype(str)))}
    return operators[~operators.source.isin(barred)].reset_index(drop=True)


def stored_graph(workload: Workload) -> ComputationGraph:
    """The graph of a row; networks that a library's later version still has under its name may stand for it."""
    try:
        return graph_for(workload)
    except UnknownNameError:
        if not workload.model.startswith("timm/"):
            raise
        return graph_for(replace(workload, model=workload.model.replace("timm/", "timm-0.6/", 1)))


def family(workload: str) -> str:
    """Letters that a network's name begins with: what folds go by, whatever the collection (`resnet`, `vit`)."""
    name = Workload.parse(workload).model.rpartition("/")[2]
    found = re.match(r"[a-z]+", name)
    return found.group() if found else name


def left_out_errors(
    examples: Sequence[CostExample], families: Sequence[str], folds: int, config: CostConfig
) -> dict[str, dict[str, float]]:
    """Error of each source (MAPE and median, percent) on families left out in turn."""
    fold = _folds(families, folds)
    predicted = np.zeros(len(examples))
    for k in range(folds):
        model = fit_cost(weighted([e for e, f in zip(examples, fold, strict=True) if f != k]), config)
        for i in np.flatnonzero(fold == k):
            one = examples[int(i)]
            predicted[i] = model.cost_of(one.job, one.campaign).step_time_s
    measured = np.exp([e.log_step_s for e in examples])
    errors = 100.0 * np.abs(predicted / measured - 1.0)
    groups = np.array([e.campaign for e in examples])
    return {
        name: {
            "rows": int((groups == name).sum()),
            "mape_percent": round(float(errors[groups == name].mean()), 2),
            "median_ape_percent": round(float(np.median(errors[groups == name])), 2),
        }
        for name in sorted(set(groups.tolist()))
    }


def weighted(examples: Sequence[CostExample]) -> list[CostExample]:
    """Examples by which a campaign on a device counts as the square root of its rows."""
    return balanced(examples, lambda e: f"{e.campaign} {e.job.device.name}")


def _folds(families: Sequence[str], folds: int) -> np.ndarray:
    """[N] fold of each row: whole families, the largest first into the smallest fold."""
    names, counts = np.unique(np.array(families), return_counts=True)
    size, fold_of = np.zeros(folds), {}
    for k in np.argsort(-counts, kind="stable"):
        fold_of[str(names[k])] = int(size.argmin())
        size[fold_of[str(names[k])]] += counts[k]
    return np.array([fold_of[f] for f in families])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m predictor.training.cost", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with imported tables")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the coefficients")
    parser.add_argument(
        "--folds", type=int, default=0, help="leave out families in so many folds first, for the card"
    )
    parser.add_argument("--sample", type=float, default=1.0, help="share of timm's inference rows")
    parser.add_argument(
        "--operators", type=int, default=500, help="most single operators of a kind on a device; 0 for none"
    )
    parser.add_argument("--epochs", type=int, default=CostConfig().epochs)
    given = parser.parse_args(arguments)
    tables = [read_table(given.data, "solo"), bundled.load()["solo"]]
    solo = learnable(pd.concat(tables, ignore_index=True))
    if given.sample < 1.0:
        many = (solo.source == "timm") & (solo["mode"] == "inference")
        chosen = solo[many].sample(frac=given.sample, random_state=0).index
        solo = solo[~many | solo.index.isin(chosen)].reset_index(drop=True)

    def follow(done: int, total: int) -> None:
        if done % 500 == 0:
            print(f"graphs: {done} of {total} rows", file=sys.stderr, flush=True)

    examples, skipped = cost_examples(solo, stored_graph, follow)
    operators: list[CostExample] = []
    if given.operators and "operators" in available_tables(given.data):
        rows = learnable_operators(read_table(given.data, "operators"))
        operators = operator_examples(sample_operators(rows, given.operators))
    config = CostConfig(epochs=given.epochs)
    card: dict[str, Any] = {
        "date": date.today().isoformat(),
        "rows": len(examples),
        "operators": len(operators),
        "sources": sorted(set(solo.source.iloc[[e.row for e in examples]].astype(str))),
        "left_out_rows": skipped.reasons,
    }
    if given.folds:
        families = [family(str(solo.workload.iloc[e.row])) for e in examples]
        card["error_on_left_out_families"] = left_out_errors(examples, families, given.folds, config)
    model = fit_cost(
        weighted([*examples, *operators]),
        config,
        card,
        lambda epoch, loss: print(f"epoch {epoch + 1}: {loss:.4f}", file=sys.stderr, flush=True),
    )
    model.save(given.out)
    print(f"{len(examples)} rows, {len(model.devices)} device effects: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
