"""The partition that `cotenant plan slices` chooses for MISO's mixes, against the measured best.

    python -m benchmarks.slices_measured --data TABLES

`TABLES` is a folder of tables with MISO's measurements (Li et al., SoCC 2022; `cotenant data import`). Mixes:
one of each size from 2 to 6, drawn with a seed from those measured together; then the same with jobs measured
on every slice. One job per slice on one A100 40 GB, because only that was measured. Best: the same exact
search over the measured step times; a job does not fit on a slice on which it was not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.left_out import add_cost_model, with_cost_model
from benchmarks.record import record
from datasets.sets import rows_of
from datasets.tables import read_parquet
from predictor.types import SetPredictor
from profiling.devices import mig_layout
from profiling.workload import Workload
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.slices.card_plan import SlicePlan
from scheduling.slices.options import SliceConfig, SliceJob
from scheduling.slices.plan import plan_slices

CARD = "a100"
SIZES = (2, 3, 4, 5, 6)
ONE_JOB_A_SLICE = SliceConfig(sharing=())


def measured_table(solo: pd.DataFrame) -> SliceTable:
    """MISO's step times on slices."""
    rows = rows_of(solo, ["miso"], "source").dropna(subset=["step_time_s"])
    rows = rows[rows["device"].str.startswith(f"{CARD}:mig=")]
    table = {
        (device, Workload.parse(workload)): Solo(float(step))
        for device, workload, step in zip(rows["device"], rows["workload"], rows["step_time_s"], strict=True)
    }
    # 1g with twice the memory did not exist then: it is at least as fast as 1g.
    return SliceTable.of(TablePredictor(table, {}))


def everywhere(table: SliceTable) -> set[str]:
    """Jobs that were measured on every slice."""
    devices = {device for device, _ in table.solo}
    return {str(w) for w in table.workloads(CARD) if all((device, w) in table.solo for device in devices)}


def drawn_mixes(mixes: pd.DataFrame, seed: int, allowed: set[str] | None = None) -> list[tuple[str, ...]]:
    """One combination of the allowed jobs for each size."""
    rows = rows_of(mixes, ["miso"], "source")
    members = rows.drop_duplicates(["set_id", "member"]).groupby("set_id")["workload"]
    combinations = sorted({tuple(sorted(names)) for _, names in members})
    generator = np.random.default_rng(seed)
    drawn = []
    for size in SIZES:
        of_size = [
            jobs
            for jobs in combinations
            if len(jobs) == size and (allowed is None or allowed.issuperset(jobs))
        ]
        drawn.append(of_size[generator.integers(len(of_size))])
    return drawn


def slice_of_each(plan: SlicePlan) -> list[str]:
    """The slice of each job; empty if it waits."""
    placed = (plan.chosen.of_job(number) for number in range(len(plan.options.jobs)))
    return [place[0].device if place else "" for place in placed]


def measured_speeds(table: SliceTable, jobs: list[SliceJob], slices: list[str]) -> list[float | None]:
    """Measured speed of each job on its slice relative to 7g; None if not measured there."""
    whole = mig_layout(CARD).device(mig_layout(CARD).profiles[-1])
    speeds: list[float | None] = []
    for job, device in zip(jobs, slices, strict=True):
        here, alone = table.solo.get((device, job.workload)), table.solo[whole, job.workload]
        speeds.append(alone.step_time_s / here.step_time_s if here else None)
    return speeds


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of MISO's imported tables")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn mixes (default: %(default)s)")
    add_cost_model(parser)
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "slices_measured", "cost_model", "seed")
    table = measured_table(read_parquet(arguments.data / "solo.parquet"))
    mixes = read_parquet(arguments.data / "mixes.parquet")
    predictor = with_cost_model(arguments.cost_model)
    groups = {
        "any jobs": drawn_mixes(mixes, arguments.seed),
        "jobs measured on every slice": drawn_mixes(mixes, arguments.seed, everywhere(table)),
    }
    figures = {name: [against_best(mix, table, predictor) for mix in drawn] for name, drawn in groups.items()}
    record(
        stem,
        {"card": CARD, "seed": arguments.seed, "data": "MISO, steps of one job on slices", "mixes": figures},
    )


def against_best(mix: tuple[str, ...], table: SliceTable, predictor: SetPredictor) -> dict[str, Any]:
    """For one mix: the choice by prediction, the choice by measurement, and the measured speeds of both."""
    jobs = [SliceJob(Workload.parse(workload)) for workload in mix]
    best = plan_slices(jobs, CARD, table, ONE_JOB_A_SLICE)
    chosen = plan_slices(jobs, CARD, predictor, ONE_JOB_A_SLICE)
    slices = slice_of_each(chosen)
    speeds = measured_speeds(table, jobs, slices)
    reached, best_sum = sum(speed or 0.0 for speed in speeds), best.summary(best.chosen)["speed_sum"]
    row = {
        "jobs": len(jobs),
        "chosen_partition": chosen.chosen.partition,
        "best_partition": best.chosen.partition,
        "same_slices": slice_of_each(best) == slices,
        "placed": chosen.chosen.placed,
        "best_placed": best.chosen.placed,
        "not_measured_there": sum(s is None for s, device in zip(speeds, slices, strict=True) if device),
        "measured_speed_sum": reached,
        "best_speed_sum": best_sum,
        "of_best_ratio": reached / best_sum,
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    run_benchmark(__file__, main)
