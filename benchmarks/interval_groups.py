"""Coverage and width of 90 % intervals, zero-shot, with and without separate groups.

    python -m benchmarks.interval_groups TABLES

The shipped predictor has one quantile for jobs with solo measurements and one for jobs known only from their graph,
each with a factor for device types without measurements. Here both are replaced by their geometric means. Sets in its
training data are left out; the others are scored with solo measurements, and from graphs alone.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.record import record
from predictor.fitted.intervals import GROUPS, Intervals
from predictor.predictor import Predictor


def pooled(intervals: Intervals) -> Intervals:
    """Copy with one width for all groups."""
    quantile = math.prod(intervals.quantile[g] for g in GROUPS) ** (1 / len(GROUPS))
    factor = math.prod(intervals.device_factor[g] for g in GROUPS) ** (1 / len(GROUPS))
    return replace(
        intervals, quantile=dict.fromkeys(GROUPS, quantile), device_factor=dict.fromkeys(GROUPS, factor)
    )


def main() -> None:
    """Print and write coverage and median width of the throughput ratio's intervals."""
    from datasets.sets import read_sets
    from predictor import load_predictor
    from predictor.evaluation.evaluation import evaluate

    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval_groups", description=__doc__)
    parser.add_argument("tables", type=Path, help="folder of imported tables")
    options = parser.parse_args()
    tables = read_sets(options.tables)
    shipped = load_predictor("default")
    assert shipped.network is not None
    assert shipped.training is not None
    fitted = replace(shipped.fitted_, intervals=pooled(shipped.fitted_.intervals))
    single = Predictor.of(fitted, shipped.version, shipped.network, shipped.training)
    figures: dict[str, Any] = {}
    for name, predictor in (("groups", shipped), ("one group", single)):
        for known, graph_only in (("measured alone", False), ("graph only", True)):
            metrics = evaluate(predictor, *tables, graph_only=graph_only)["metrics"]
            row = {key: metrics[key] for key in ("n", "coverage_90", "median_width")}
            figures.setdefault(name, {})[known] = row
            print(
                f"{name:10} {known:15} covers {100 * row['coverage_90']:.1f} %, median width {row['median_width']:.3f}"
            )
    record("interval_groups", figures)


if __name__ == "__main__":
    main()
