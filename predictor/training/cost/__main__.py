"""Fit the shipped cost model to imported tables.

    python -m predictor.training.cost --data DIR [--out DIR] [--force]

Reads the table `solo` and, where they are there, `operators` and `kernels` of DIR (`cotenant data import`),
and the steps of the bundled measurements. Rows of sources that a shipped model may not learn from are
skipped, as are those of co-location campaigns (`HELD_OUT`): predictions of co-location are then judged on
jobs whose solo step time the operators' part of the cost model has not seen. What a training script's host
costs (three numbers), and the effect of a GPU type that nothing else measured (one), are taken from them too,
where they may be learned from, afterwards.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from datasets import bundled
from datasets.tables import available_tables, read_table
from models.cost.model import MARKER, SHIPPED
from predictor.training.cost.busy import busy_rows
from predictor.training.cost.examples import CostExample, cost_examples, weighted
from predictor.training.cost.fit import CostConfig, fit_cost
from predictor.training.cost.left_out import family, left_out_errors
from predictor.training.cost.operators import operator_examples, sample_operators
from predictor.training.cost.rows import learnable, learnable_rows, script_rows, thinned, without_sources
from predictor.training.cost.scripts import with_script_devices, with_script_hosts
from predictor.training.output import Output, claimed
from profiling.capture import graph_for
from profiling.command_line import errors_as_lines
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import Workload


def stored_graph(workload: Workload) -> ComputationGraph:
    """The graph of a row's job; a network missing from collection `timm` is looked up in `timm-0.6`."""
    try:
        return graph_for(workload)
    except UnknownNameError:
        if not workload.model.startswith("timm/"):
            raise
        return graph_for(replace(workload, model=workload.model.replace("timm/", "timm-0.6/", 1)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m predictor.training.cost", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with imported tables")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=SHIPPED,
        help="output folder for the coefficients (default: that of the shipped ones)",
    )
    parser.add_argument("--force", action="store_true", help="replace the coefficients in OUT")
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        help="afterwards hold out families in this many folds, for the model card",
    )
    parser.add_argument("--sample", type=float, default=1.0, help="part of timm's inference rows")
    parser.add_argument(
        "--shares", type=float, default=0.15, help="share of the rows under an MPS share to use"
    )
    parser.add_argument(
        "--operators",
        type=int,
        default=500,
        help="maximum number of single operators per kind and device; 0 for none",
    )
    parser.add_argument("--epochs", type=int, default=CostConfig().epochs)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SOURCE",
        help="learn nothing from this source, to score the model on it; repeatable",
    )
    given = parser.parse_args(arguments)
    if given.without and given.out == SHIPPED:
        parser.error("--without needs --out, or it would replace the shipped coefficients")
    if given.folds < 0 or given.folds == 1:
        parser.error("--folds is out of range: expected 0 or an integer from 2")
    with claimed(given.out, given.force, marker=MARKER) as output:
        _fit(given, output)
    return 0


def _fit(given: argparse.Namespace, output: Output) -> None:
    def read(name: str) -> pd.DataFrame:
        return without_sources(read_table(given.data, name), given.without)

    every = pd.concat([read("solo"), bundled.load()["solo"]], ignore_index=True)
    solo = learnable(every)
    solo = thinned(solo, given.sample, given.shares)

    def follow(done: int, total: int) -> None:
        if done % 500 == 0:
            print(f"graphs: {done} of {total} rows", file=sys.stderr, flush=True)

    examples, skipped = cost_examples(solo, stored_graph, follow)
    operators: list[CostExample] = []
    if given.operators and "operators" in available_tables(given.data):
        rows = learnable_rows(read("operators"))
        operators = operator_examples(sample_operators(rows, given.operators))
    kernels = None
    if "kernels" in available_tables(given.data):
        kernels = learnable_rows(read("kernels"))
    timed, _ = cost_examples(busy_rows(solo, kernels), stored_graph, timing="busy")
    from_scripts = script_rows(every)
    scripts, _ = cost_examples(from_scripts, stored_graph)
    config = CostConfig(epochs=given.epochs)
    card: dict[str, Any] = {
        "date": date.today().isoformat(),
        "rows": len(examples),
        "operators": len(operators),
        "busy_times": len(timed),
        "steps_of_scripts": len(scripts),
        "sources": sorted(
            set(solo.source.iloc[[e.row for e in examples]].astype(str))
            | set(() if kernels is None else kernels.source.astype(str))
            | set(from_scripts.source.iloc[[e.row for e in scripts]].astype(str))
        ),
        "left_out_rows": skipped.reasons,
    }
    model = fit_cost(
        weighted([*examples, *operators, *timed]),
        config,
        card,
        lambda epoch, loss: print(f"epoch {epoch + 1}: {loss:.4f}", file=sys.stderr, flush=True),
    )
    model = with_script_hosts(with_script_devices(model, scripts), scripts, examples)
    output.save(partial(model.save, given.out))
    if given.folds:
        families = [family(str(solo.workload.iloc[e.row])) for e in examples]
        errors = left_out_errors(examples, operators, families, given.folds, config)
        model = replace(model, card=card | errors)
        output.save(partial(model.save, given.out))
    print(f"{len(examples)} rows, {len(model.devices)} device effects: {given.out}")


if __name__ == "__main__":
    with errors_as_lines("predictor.training.cost"):
        sys.exit(main())
