"""Do neighbouring operators help? The cost model with and without graph networks.

    python -m benchmarks.graph_correction --data TABLES [--protocol NAME] [--folds 3] [--only cost-gine-2,...]

Leaves out families of networks (timm, training) and the largest cells (NAS-Bench-101), as the protocols do;
only some folds of the first, because a graph network takes minutes per fold. Fits are stored with the
protocol's and reused. `graph-trees` are trees on each operator kind's share of the roofline.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import RESULTS, record
from datasets.tables import available_tables, read_table
from predictor.evaluation.metrics import score
from predictor.evaluation.protocols.catalogue import get_protocol
from predictor.evaluation.protocols.protocol import Trial, make_trial
from predictor.evaluation.protocols.published.steps import OF_NEIGHBOURS
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import make_plan, run_missing

PROTOCOLS = {"timm-train-by-family": ("memory_layout", 3), "ecnas-largest-fifth": ("campaign", 1)}
BASE = ("graph-trees", "cost-model")


def answers(trial: Trial, name: str, folder: Path) -> list[np.ndarray]:
    """Predictions for the test rows of each fold."""
    plan = make_plan(trial, contenders([name]), [0], folder)
    run_missing(plan, lambda cell: print(f"{name}, {cell.fold.name}", file=sys.stderr, flush=True))
    stored = [json.loads((folder / cell.file).read_text()) for cell in plan.cells]
    return [np.array([np.nan if v is None else v for v in one["predicted"]]) for one in stored]


def compared(trial: Trial, names: tuple[str, ...], column: str, folder: Path) -> list[dict[str, Any]]:
    """Errors of each contender on the rows that all of them predict."""
    tests = [trial.bundles(fold)[1] for fold in trial.folds]
    measured = np.concatenate([test.y for test in tests])
    groups = np.concatenate([test.rows[column].to_numpy(dtype=str) for test in tests])
    given = {name: np.concatenate(answers(trial, name, folder)) for name in names}
    usable = np.isfinite(list(given.values())).all(0) & np.isfinite(measured)
    rows = []
    for name, values in given.items():
        for group in sorted(set(groups)):
            chosen = usable & (groups == group)
            part = score(measured[chosen], values[chosen])
            kept = {k: part[k] for k in ("n", "mape_percent", "median_ape_percent", "spearman")}
            rows.append({"contender": name, column: group} | kept)
            print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    parser.add_argument("--folds", type=int, help="how many of timm's ten (default: 3)")
    parser.add_argument("--protocol", choices=list(PROTOCOLS), help="one of them (default: both)")
    parser.add_argument("--only", help="graph networks, comma-separated (default: all)")
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(
        parser, arguments, "_".join(filter(None, ("graph_correction", arguments.protocol))), "folds", "only"
    )
    tables = {name: read_table(arguments.data, name) for name in available_tables(arguments.data)}
    names = (*BASE, *(arguments.only.split(",") if arguments.only else OF_NEIGHBOURS))
    figures: dict[str, Any] = {}
    for name, (column, folds) in PROTOCOLS.items():
        if arguments.protocol not in (None, name):
            continue
        trial = make_trial(get_protocol(name), tables, 0)
        trial = replace(trial, folds=trial.folds[: arguments.folds or folds])
        rows = compared(trial, names, column, RESULTS / "protocols" / name)
        figures[name] = {"folds": len(trial.folds), "rows": rows}
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
