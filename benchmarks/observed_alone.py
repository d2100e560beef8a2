"""Sets of jobs that the predictor knows by graph only, before and after each job was observed alone.

    python -m benchmarks.observed_alone --data TABLES [--model PATH]

Per campaign, the error of the co-located throughput and of the slowdown of every measured member:

* `graph`: nothing was measured of the jobs;
* `step time`: that of each job alone on the device was observed once, as a scheduler sees it before a second
  job joins;
* `and utilisation`, `and memory`: these were observed along with it, as a monitoring agent sees them;
* `stated`: everything that was measured of the jobs alone is in their SPECs (step time, memory, utilisation).

Predictions are made as for a user: no campaign is named. Sets whose members were not on the device together
are left out. `learned_from` says whether the model was trained on sets of the campaign.
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
from predictor.examples.examples import Examples, examples_of
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from predictor.types import Floats, SetPredictor
from profiling.workload import ColocationSet, Workload

SEEN = {
    "step time": (),
    "and utilisation": ("utilization_ratio",),
    "and memory": ("utilization_ratio", "memory_bytes"),
}
"""What is observed besides step times."""


def errors(predictor: Predictor, examples: Examples) -> pd.DataFrame:
    """One row per measured member and case, with the relative errors."""
    members = np.split(np.arange(len(examples.workloads)), examples.first[1:])
    known = [
        all(examples.workloads[i].solo.step_time_s for i in rows) and len(rows) > 1 and resident
        for rows, resident in zip(members, examples.resident, strict=True)
    ]
    chosen = [rows for rows, complete in zip(members, known, strict=True) if complete]

    def sets(workloads: tuple[Workload, ...]) -> list[ColocationSet]:
        return [
            ColocationSet(
                examples.devices[rows[0]], tuple(workloads[i] for i in rows), examples.mode[rows[0]]
            )
            for rows in chosen
        ]

    by_graph, stated = sets(examples.without_solo().workloads), sets(examples.workloads)
    asked: list[tuple[str, SetPredictor, list[ColocationSet]]] = [("graph", predictor, by_graph)]
    for way, names in SEEN.items():
        posterior = Posterior(predictor)
        posterior.observe(_alone(stated, names))
        asked.append((way, posterior, by_graph))
    asked.append(("stated", predictor, stated))
    flat = np.concatenate(chosen)
    scored = examples.scored[flat]
    ratio = examples.ratio[flat][scored]
    solo = np.array([examples.workloads[i].solo.step_time_s for i in flat])[scored]
    parts = []
    for name, predicts, questions in asked:
        answers = predicts.predict_arrays(questions)
        slowdown, step = (values[answers.mask][scored] for values in (answers.slowdown, answers.step_time_s))
        parts.append(
            pd.DataFrame(
                {
                    "asked": name,
                    "throughput_ratio": np.abs(1 / slowdown / ratio - 1),
                    "throughput": np.abs(solo / ratio / step - 1),
                }
            )
        )
    return pd.concat(parts)


def _alone(sets: list[ColocationSet], names: tuple[str, ...]) -> list[Observation]:
    """One observation of each job alone on each device: its measured step time and, of the rest, `names`."""
    jobs = {
        (each.device, workload.without_solo()): workload.solo for each in sets for workload in each.workloads
    }
    return [
        Observation(
            ColocationSet(device, (job,)),
            0,
            solo.step_time_s,
            **{name: getattr(solo, name) for name in names},
        )
        for (device, job), solo in jobs.items()
        if solo.step_time_s is not None
    ]


def table(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Mean and median of both errors in percent, by case."""

    def percent(values: Floats) -> dict[str, float]:
        return {
            "mape_percent": 100 * float(np.mean(values)),
            "median_percent": 100 * float(np.median(values)),
        }

    return {
        str(name): {
            f"{column}_{key}": round(value, 2)
            for column in ("throughput", "throughput_ratio")
            for key, value in percent(part[column].to_numpy()).items()
        }
        for name, part in rows.groupby("asked", sort=False)
    }


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with imported tables")
    parser.add_argument("--model", default="default", help="a checkpoint or a name (default: %(default)s)")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "observed_alone", "model")
    colocation, solo = (read_table(options.data, name) for name in ("colocation", "solo"))
    predictor = load_predictor(options.model)
    learned = predictor.fitted_.manifest.set_ids
    figures: dict[str, Any] = {"model_version": predictor.version}
    for campaign, part in colocation.groupby("campaign"):
        rows = errors(predictor, examples_of(part, solo))
        figures[str(campaign)] = {
            "members": int((rows["asked"] == "graph").sum()),
            "learned_from": bool(set(part.set_id) & set(learned)),
            **table(rows),
        }
        print(campaign, figures[str(campaign)])
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
