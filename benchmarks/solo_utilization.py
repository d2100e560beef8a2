"""Predicted utilisation of jobs alone on a GPU, against the measured one; of the jobs only the graphs are known.

    python -m benchmarks.solo_utilization TABLES [--source lucid]

The shipped predictor has not learned from Lucid's measurements.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from datasets.sets import read_sets, rows_of
from predictor import load_predictor
from profiling.workload import ColocationSet, SoloProfile, Workload


def main() -> None:
    """Print and record errors in points of the device's time, by model."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", type=Path, help="folder of imported tables")
    parser.add_argument("--source", default="lucid", help="only rows of this source (default: %(default)s)")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "solo_utilization", "source")
    _, solo = read_sets(options.tables)
    rows = rows_of(solo, [options.source])
    rows = rows[rows.utilization_ratio.notna() & (rows.gpus == 1)]
    predictor = load_predictor()
    jobs = [replace(Workload.parse(spec), solo=SoloProfile()) for spec in rows.workload.astype(str)]
    arrays = predictor.predict_arrays(
        [ColocationSet(device, (job,)) for device, job in zip(rows.device.astype(str), jobs, strict=True)]
    )
    apart = 100.0 * (arrays.utilization_ratio[:, 0] - rows.utilization_ratio.to_numpy(np.float64))
    errors = pd.DataFrame({"model": [job.model for job in jobs], "bias": apart, "error": np.abs(apart)})
    groups = errors.groupby("model")
    table = groups.mean().assign(jobs=groups.size()).sort_values("error")
    total = {"jobs": len(errors), "error": float(errors.error.mean()), "bias": float(errors.bias.mean())}
    print(table.round(1).to_string())
    print(f"all: {total['jobs']} jobs, error {total['error']:.1f} points, bias {total['bias']:+.1f}")
    by_model = {str(name): row.to_dict() for name, row in table.iterrows()}
    record(stem, {"model": predictor.version, "source": options.source, "points": total, "by_model": by_model})  # fmt: skip


if __name__ == "__main__":
    run_benchmark(__file__, main)
