"""Constants of a process's memory (`HeadCalibration`) and their errors.

    python -m benchmarks.memory_constants --data TABLES

Full-precision constants are fitted to SchedTune's peaks: the context and its growth with the threads that a
device can hold, activations, and workspace as it is. Half-precision constants come from a grid: those that
refuse the fewest of timm's batch sizes that ran in 24 GB, while predicting "fits" for at most 1.05 % of the
sampled ones that failed. GPUMemNet's peaks are only scored, because their licence does not allow training on
them.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from datasets.tables import read_table
from predictor.examples.featurizer import JobOnDevice, shared_featurizer
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from profiling.errors import CotenantError
from profiling.workload import SoloProfile, Workload

SOURCES, ROWS = ("schedtune", "timm", "gpumemnet"), 1_000
FACTORS, WORKSPACES = (0.94, 0.97, 1.0), tuple(product((0.0, 0.3, 0.6, 1.2), (0.5e9, 1e9, 1.5e9)))
MOST_MISSED = 0.0105


def jobs_of(memory: pd.DataFrame, most: int) -> list[tuple[JobOnDevice, dict[str, Any]]]:
    """Jobs with known graphs and their rows, from at most `most` rows."""
    featurizer, result = shared_featurizer(), []
    for row in memory.sample(min(most, len(memory)), random_state=0).to_dict("records"):
        try:
            job = featurizer.job(Workload.parse(str(row["workload"])), str(row["device"]))
        except CotenantError:
            continue
        result.append((job, {str(column): value for column, value in row.items()}))
    return result


def peaks(jobs: list[tuple[JobOnDevice, dict[str, Any]]], heads: HeadCalibration) -> dict[str, Any]:
    """Errors of predicted peaks in percent."""
    off = np.array(
        [abs(member_memory_bytes(job, SoloProfile(), heads) / row["memory_bytes"] - 1) for job, row in jobs]
    )
    return {
        "n": len(off),
        "mape_percent": round(100 * float(off.mean()), 1),
        "median_ape_percent": round(100 * float(np.median(off)), 1),
    }


def verdict(jobs: list[tuple[JobOnDevice, dict[str, Any]]], heads: HeadCalibration) -> dict[str, Any]:
    """By the upper bound, the share of failed batch sizes predicted to fit, and of successful ones that are
    refused."""
    fits: dict[bool, list[bool]] = {True: [], False: []}
    factor = float(np.exp(heads.memory_log_error[0]))
    for job, row in jobs:
        state = job.demand.state_bytes
        upper = state + (member_memory_bytes(job, SoloProfile(), heads) - state) * factor
        fits[not np.isnan(row["lower_bound_bytes"])].append(upper <= job.device.memory_bytes)
    return {
        "failed": len(fits[True]),
        "failed_said_to_fit_ratio": round(float(np.mean(fits[True])), 4),
        "ran": len(fits[False]),
        "ran_refused_ratio": round(1 - float(np.mean(fits[False])), 4),
    }


def fitted(jobs: dict[str, list[tuple[JobOnDevice, dict[str, Any]]]]) -> HeadCalibration:
    """Fit the constants again to the rows."""
    from scipy.optimize import minimize

    start = HeadCalibration()
    names = ("context_bytes", "context_bytes_per_thread", "old_context_bytes", "activation_factor")
    unit = np.array([1e9, 1e3, 1e9, 1.0])

    def full(values: np.ndarray) -> HeadCalibration:
        return replace(start, **dict(zip(names, (np.abs(values) * unit).tolist(), strict=True)))

    def loss(values: np.ndarray) -> float:
        heads = full(values)
        return float(
            np.mean(
                [
                    abs(np.log(member_memory_bytes(job, SoloProfile(), heads) / row["memory_bytes"]))
                    for job, row in jobs["schedtune"]
                ]
            )
        )

    best = minimize(loss, np.array([1.2, 1.5, 0.5, 1.0]), method="Nelder-Mead", options={"maxfev": 600})
    heads, least = full(best.x), (1.0, start)
    for factor, (part, most) in product(FACTORS, WORKSPACES):
        tried = replace(
            heads, half_activation_factor=factor, half_workspace_factor=part, half_workspace_bytes=most
        )
        found = verdict(jobs["timm"], tried)
        if found["failed_said_to_fit_ratio"] <= MOST_MISSED and found["ran_refused_ratio"] < least[0]:
            least = found["ran_refused_ratio"], tried
    return least[1]


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    parser.add_argument("--fit", action="store_true", help="refit the constants, which takes minutes")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="maximum rows per source (default: %(default)s)"
    )
    arguments = parser.parse_args()
    memory = read_table(arguments.data, "memory")
    jobs = {source: jobs_of(memory[memory["source"] == source], arguments.rows) for source in SOURCES}
    answers = {"shipped": HeadCalibration()} | ({"fitted": fitted(jobs)} if arguments.fit else {})
    figures = {}
    for name, heads in answers.items():
        figures[name] = {
            "schedtune": peaks(jobs["schedtune"], heads),
            "gpumemnet": peaks(jobs["gpumemnet"], heads),
            "timm": verdict(jobs["timm"], heads),
            "constants": asdict(heads),
        }
        print(name, figures[name])
    record("memory_constants" if arguments.rows == ROWS else f"memory_constants_{arguments.rows}", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
