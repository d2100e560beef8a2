"""Stored graphs compared with what publishers state: parameters, and multiply-adds per sample.

    python -m benchmarks.graph_agreement --data TABLES

TABLES is a folder of imported tables (`cotenant data import timm|ecnas ...`). Prints, by collection, how many
networks are within 0.5 % (parameters) and 3 % (multiply-adds), and lists the others with the way of counting
under which both agree.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from datasets.tables import read_table
from profiling.collections import collection_of
from profiling.collections.affine import FIXED_SCALARS, NUMBERS, AffineGraph
from profiling.collections.store import store_of
from profiling.operators import CONTRACTIONS
from profiling.workload import Workload

WITHIN = {"parameters": 0.005, "multiply_adds": 0.03}
# Half a unit of the last digit in timm's files.
ROUNDING = {"parameters": 5e3, "multiply_adds": 5e6}
# Numbers of classes of heads pre-trained on more than 1,000 classes.
CLASSES = (11_821, 21_841, 21_843)
FUSED = re.compile(r"repvgg|mobileone|repvit|fastvit|mobilenetv4")
ATTENTION = "the publisher's counter passes over fused attention"
NORMS = (
    "the publisher's counter adds 2 for each element of a batch norm, 5 of a layer or group norm, 1 of a mean"
)
BOTH = "both of attention and norms"
RECURRENT = "the publisher's counter passes over recurrent layers"
SAME = 'the publisher\'s counter passes over convolutions with padding="same"'
HEAD = "the graph has the head of the name's default weights (11,821 or 21,84x classes), the row another"
REPARAMETERISED = "stated after branches were fused for inference"
BUFFERS = "the publisher's count holds the running statistics of batch norms"
CHANGED = "the library has changed the network since it was measured; 0.6.13's agrees"
ROUNDED = "within half of the last digit stated"
NORM_ELEMENTS = {"batch_norm": 2.0, "layer_norm": 5.0, "group_norm": 5.0}


def counts(line: AffineGraph) -> dict[str, float]:
    """Parameters, and multiply-adds of a forward pass on one sample: for products and convolutions, and as
    others count."""
    values = line.values(1)
    kinds = np.array([trait[0] for trait in line.traits])
    each = values[:, NUMBERS.index("forward_flops")] * line.repeat / 2.0
    each = np.where(np.isin(kinds, sorted(CONTRACTIONS)), each, 0.0)
    first, last = NUMBERS.index("output_0"), NUMBERS.index("output_5") + 1
    elements = np.maximum(values[:, first:last], 1.0).prod(axis=1) * line.repeat
    norms = sum(float(elements[kinds == kind].sum()) * c for kind, c in NORM_ELEMENTS.items())
    size, count = (values[:, NUMBERS.index(f"reduction_{what}")] for what in ("size", "count"))
    norms += float((size * count * line.repeat)[kinds == "reduction"].sum())
    total = float(each.sum())
    attention = float(each[kinds == "attention"].sum())
    grouped = values[:, NUMBERS.index("groups")] > 1
    return {
        "parameters": float(line.fixed[FIXED_SCALARS.index("parameter_count")]),
        BUFFERS: 2.0 * float((count * line.repeat)[kinds == "batch_norm"].sum())
        + float(line.fixed[FIXED_SCALARS.index("parameter_count")]),
        "multiply_adds": total,
        ATTENTION: total - attention,
        NORMS: total + norms,
        BOTH: total - attention + norms,
        RECURRENT: total - float(each[kinds == "recurrent"].sum()),
        SAME: total - float(each[grouped].sum()),
    }


def reason_of(what: str, stated: float, captured: dict[str, float], name: str) -> str:
    """Why a count deviates by more than it should; empty if unknown."""
    limit = WITHIN[what]
    if abs(captured[what] - stated) <= ROUNDING[what] + (limit * stated if what == "multiply_adds" else 0):
        return ROUNDED
    if FUSED.search(name) and captured[what] > stated:
        return REPARAMETERISED
    if what == "parameters":
        if any(_is_head(abs(captured[what] - stated), classes) for classes in CLASSES):
            return HEAD
        return BUFFERS if abs(captured[BUFFERS] / stated - 1.0) <= 0.001 else ""
    for reason in (ATTENTION, NORMS, BOTH, RECURRENT, SAME):
        if abs(captured[reason] - stated) <= limit * stated + ROUNDING[what]:
            return reason
    return HEAD if reason_of("parameters", captured["stated_parameters"], captured, name) == HEAD else ""


def _is_head(difference: float, classes: int) -> bool:
    """Whether so many parameters belong to a linear layer's additional classes, with features in a multiple
    of 64."""
    features = difference / (classes - 1000) - 1
    return features > 100 and abs(features - 64 * round(features / 64)) < 1


def stored_line(job: Workload) -> AffineGraph | None:
    """Return the stored graph of a job, whatever its precision, which affects neither count."""
    store, name = store_of(collection_of(job.model)), job.model.partition("/")[2]
    entry = store.names.get(name)
    if entry is None:
        return None
    size = entry.default_size if job.image_size is None else job.image_size
    for precision in ("fp32", "amp"):
        if (entry.alias_of or name, size, precision) in store.rows:
            return store.line(entry.alias_of or name, size, precision)
    return None


def agreement(workloads: pd.DataFrame) -> pd.DataFrame:
    """One row per network and size: relative difference of both counts, NaN if the publisher states none."""
    rows = []
    # The larger of two counts is from before branches were fused.
    stated = workloads.sort_values("macs_per_sample", ascending=False, na_position="last", kind="stable")
    for row in stated.drop_duplicates(["architecture", "image_size"]).to_dict("records"):
        job = Workload.parse(str(row["workload"]))
        line = stored_line(job)
        entry: dict[str, Any] = {"model": job.model, "size": row["image_size"], "is_stored": line is not None}
        earlier = stored_line(replace(job, model=job.model.replace("timm/", "timm-0.6/")))
        if line is not None:
            ours = counts(line)
            says = {
                w: _number(row[c])
                for w, c in zip(WITHIN, ("parameter_count", "macs_per_sample"), strict=True)
            }
            ours["stated_parameters"] = says["parameters"]
            for what, limit in WITHIN.items():
                off = ours[what] / says[what] - 1.0
                entry[what] = off
                if abs(off) <= limit:
                    continue
                before = counts(earlier)[what] if earlier is not None else np.nan
                is_changed = abs(before / says[what] - 1.0) <= limit
                entry[f"{what}_reason"] = (
                    CHANGED if is_changed else reason_of(what, says[what], ours, job.model)
                )
        rows.append(entry)
    columns = [name for what in WITHIN for name in (what, f"{what}_reason")]
    return pd.DataFrame(rows, columns=["model", "size", "is_stored", *columns])


def _number(value: Any) -> float:
    return float(value) if pd.notna(value) else float("nan")


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    given = parser.parse_args()
    workloads = read_table(given.data, "workloads")
    workloads = workloads[workloads.workload.map(lambda w: bool(collection_of(Workload.parse(w).model)))]
    rows_of_all = agreement(workloads)
    rows_of_all["collection"] = rows_of_all.model.map(collection_of)
    result: dict[str, Any] = {}
    for name, rows in rows_of_all.groupby("collection"):
        part: dict[str, Any] = {"networks": len(rows), "not_stored": int((~rows.is_stored).sum())}
        for what, limit in WITHIN.items():
            stated = rows.dropna(subset=[what])
            off = stated[stated[what].abs() > limit]
            named = {
                f"{m} at {n}": {"off": round(float(v), 4), "reason": reason or "not known"}
                for m, n, v, reason in zip(
                    off["model"], off["size"], off[what], off[f"{what}_reason"], strict=True
                )
            }
            part[what] = {
                "stated": len(stated),
                "within": len(stated) - len(off),
                "reasons": dict(Counter(e["reason"] for e in named.values()).most_common()),
                "exceptions": named,
            }
        result[str(name)] = part
        print(f"{name}: {part['networks']} networks, {part['not_stored']} not stored")
        for what in WITHIN:
            print(f"  {what}: {part[what]['within']} of {part[what]['stated']}", part[what]["reasons"])
    record("graph_agreement", result)


if __name__ == "__main__":
    run_benchmark(__file__, main)
