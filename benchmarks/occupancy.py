"""How full kernels keep a GPU's multiprocessors: the cost model compared with measurements.

    python -m benchmarks.occupancy --data TABLES

`TABLES` is a folder of imported tables (`cotenant data import`). Operators (NeuSight): the share of
multiprocessors that are full by the warps launched, predicted and measured. Jobs (Orion): the multiprocessors
that a job's kernels need over the V100's, averaged over kernel time, compared with the predicted occupancy.
Errors are in points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from datasets.tables import read_table
from models.cost import default_cost_model
from models.cost.occupancy import occupancy_of, warps_of
from models.cost.single_operators import operator_columns
from predictor.evaluation.protocols.published.cost_model import job_input
from profiling.devices import get_device


def of_operators(operators: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Device -> kind of operator -> count, mean absolute error and bias."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    measured_rows = operators[operators["warps_per_sm"].notna()]
    for (name, kind), rows in measured_rows.groupby(["device", "kind"]):
        device = get_device(str(name))
        columns, sms = operator_columns(rows), device.sm_count
        launched = rows["warps_per_sm"].to_numpy(dtype=np.float64) * sms
        predicted, measured = (
            occupancy_of(columns, warps, device, sms) for warps in (warps_of(columns, sms), launched)
        )
        figures.setdefault(str(name), {})[str(kind)] = _errors(predicted, measured)
    return figures


def of_jobs(kernels: pd.DataFrame) -> dict[str, Any]:
    """Errors over jobs, and both figures of each; jobs with an unknown graph are left out."""
    jobs = {}
    for (workload, name), rows in kernels.groupby(["workload", "device"]):
        job = job_input(str(workload), str(name))
        if job is None:
            continue
        seconds = rows["duration_s"].to_numpy(dtype=np.float64)
        filled = np.minimum(rows["sm_count"].to_numpy(dtype=np.float64) / job.device.sm_count, 1.0)
        jobs[str(workload)] = {
            "measured_ratio": float((seconds * filled).sum() / seconds.sum()),
            "predicted_ratio": default_cost_model().cost_of(job).occupancy_ratio,
        }
    both = np.array([(job["predicted_ratio"], job["measured_ratio"]) for job in jobs.values()])
    return {"errors": _errors(both[:, 0], both[:, 1]), "jobs": jobs}


def _errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    apart = 100 * (predicted - measured)
    return {
        "n": len(apart),
        "mean_absolute_error_points": float(np.abs(apart).mean()),
        "bias_points": float(apart.mean()),
    }


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    options = parser.parse_args()
    figures = {
        "operators": of_operators(read_table(options.data, "operators")),
        "jobs": of_jobs(read_table(options.data, "kernels")),
    }
    record("occupancy", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
