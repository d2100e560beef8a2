"""Sum of relative speeds of a GPU's jobs, measured and predicted, by campaign, GPU type and mode.

    python -m benchmarks.sharing_sums --data TABLES [--model PATH]

1 means that a shared GPU does as much work as an exclusive one. Predictions are made as for a user: no
campaign is named, and solo step times are given as measured (`solo`) or not at all (`graph`). Then the same
for two equal jobs on GPU types without sharing measurements, in both modes: there is nothing to compare with,
but MPS should not be behind time slicing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from datasets.tables import read_table
from predictor import load_predictor
from predictor.examples.examples import examples_of
from predictor.types import Floats, SetPredictor
from profiling.workload import ColocationSet, Workload

NETWORKS = ("resnet50-imagenet:batch_size=64", "bert-base-squad:batch_size=8", "lstm-wikitext2")
CARDS = ("v100", "a100", "h100", "rtx-3090")
MODES = ("time-slice", "mps")


def sums(predictor: SetPredictor, colocation: pd.DataFrame, solo: pd.DataFrame) -> pd.DataFrame:
    """One row per set whose ratios are all measured and not mere bounds.

    Columns: campaign, GPU type, mode, size and three sums.
    """
    examples = examples_of(colocation, solo)
    known = ~np.isnan(examples.ratio) & ~examples.censored
    size = np.bincount(examples.set_index)
    complete = np.flatnonzero(np.bincount(examples.set_index, known) == size)
    first = examples.first
    members = np.split(np.arange(len(examples.workloads)), np.cumsum(size)[:-1])
    rows = pd.DataFrame(
        {
            "campaign": [examples.campaign[first[s]] for s in complete],
            "device": [examples.devices[first[s]] for s in complete],
            "mode": [examples.mode[first[s]] for s in complete],
            "jobs": size[complete],
            "measured": np.bincount(examples.set_index, np.nan_to_num(examples.ratio))[complete],
        }
    )
    for name, workloads in (("solo", examples.workloads), ("graph", examples.without_solo().workloads)):
        asked = [
            ColocationSet(device, tuple(workloads[i] for i in members[s]), mode)
            for s, device, mode in zip(complete, rows["device"], rows["mode"], strict=True)
        ]
        rows[name] = _relative_speeds(predictor, asked)
    return rows


def _relative_speeds(predictor: SetPredictor, asked: list[ColocationSet]) -> Floats:
    """[S] sum of the members' relative speeds, 1 / slowdown."""
    answers = predictor.predict_arrays(asked)
    return (answers.mask / answers.slowdown).sum(1)


def table(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Means by campaign, GPU type, mode and number of jobs."""
    groups = rows.groupby(["campaign", "device", "mode", "jobs"])
    means = groups[["measured", "solo", "graph"]].mean().round(3)
    rows_of_table = means.assign(sets=groups.size()).reset_index().to_dict("records")
    return [{str(column): value for column, value in row.items()} for row in rows_of_table]


def pairs(predictor: SetPredictor) -> list[dict[str, Any]]:
    """Two equal jobs on GPUs of `CARDS`, in both modes."""
    result = []
    for network in NETWORKS:
        job = Workload.parse(network)
        for card in CARDS:
            asked = [ColocationSet(card, (job, job), mode) for mode in MODES]
            ratio = _relative_speeds(predictor, asked)
            result.append(
                {"job": network, "device": card} | dict(zip(MODES, ratio.round(3).tolist(), strict=True))
            )
    return result


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    parser.add_argument(
        "--model", default="default", help="a checkpoint or a name (default: the shipped one)"
    )
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "sharing_sums", "model")
    predictor = load_predictor(arguments.model)
    rows = table(
        sums(predictor, read_table(arguments.data, "colocation"), read_table(arguments.data, "solo"))
    )
    equal = pairs(predictor)
    print(pd.DataFrame(rows).to_string(index=False))
    print(pd.DataFrame(equal).to_string(index=False))
    record(stem, {"model": predictor.version, "sets": rows, "two_equal_jobs": equal})


if __name__ == "__main__":
    run_benchmark(__file__, main)
