"""Stored graphs against what publishers state of their networks: parameters, and multiply-adds per sample.

    python -m benchmarks.graph_agreement --data TABLES

TABLES is a folder of imported tables (`cotenant data import timm|ecnas ...`). Prints, by collection, how many networks are
within 0.5 % (parameters) and 3 % (multiply-adds), and names the rest.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.record import record
from datasets.tables import read_table
from models.cost.work import IS_CONTRACTION
from profiling.capture import graph_for
from profiling.collections import collection_of
from profiling.errors import CotenantError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

WITHIN = {"parameters": 0.005, "multiply_adds": 0.03}


def multiply_adds(graph: ComputationGraph) -> float:
    """Of products and convolutions, per sample of a forward pass."""
    columns = graph.columns
    counted = IS_CONTRACTION[columns["kind"].astype(int)]
    flops = columns["forward_flops"] * columns["repeat"] * counted
    return float(flops.sum()) / 2.0 / graph.batch_size


def agreement(workloads: pd.DataFrame) -> pd.DataFrame:
    """One row per network and size: relative difference of both counts, NaN where the publisher states none."""
    rows = []
    stated = workloads.drop_duplicates(["architecture", "image_size"])
    for row in stated.to_dict("records"):
        job = Workload.parse(str(row["workload"]))
        try:
            graph = graph_for(job.captured())
        except CotenantError as error:
            rows.append({"model": job.model, "size": row["image_size"], "missing": type(error).__name__})
            continue
        rows.append(
            {
                "model": job.model,
                "size": row["image_size"],
                "missing": "",
                "parameters": graph.parameter_count / row["parameter_count"] - 1.0
                if row["parameter_count"] == row["parameter_count"]
                else np.nan,
                "multiply_adds": multiply_adds(graph) / row["macs_per_sample"] - 1.0
                if row["macs_per_sample"] == row["macs_per_sample"]
                else np.nan,
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    workloads = read_table(given.data, "workloads")
    workloads = workloads[workloads.workload.map(lambda w: bool(collection_of(Workload.parse(w).model)))]
    found = agreement(workloads)
    found["collection"] = found.model.map(collection_of)
    result: dict[str, Any] = {}
    for name, rows in found.groupby("collection"):
        part: dict[str, Any] = {"networks": len(rows), "not_stored": int((rows.missing != "").sum())}
        for what, limit in WITHIN.items():
            stated = rows.dropna(subset=[what])
            off = stated[stated[what].abs() > limit]
            part[what] = {
                "stated": len(stated),
                "within": len(stated) - len(off),
                "exceptions": {
                    f"{m} at {s}": round(float(v), 4)
                    for m, s, v in zip(off.model, off["size"], off[what], strict=True)
                },
            }
        result[str(name)] = part
        print(
            name, {k: v if not isinstance(v, dict) else (v["within"], v["stated"]) for k, v in part.items()}
        )
    record("graph_agreement", result)


if __name__ == "__main__":
    main()
