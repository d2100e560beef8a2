"""Kernels of a step in launch order, on a V100 16 GB (Orion, Strati et al., EuroSys 2024; MIT).

`benchmarking/model_kernels/MODEL_BATCH_KIND` is a CSV with duration in ns, the SMs that a kernel's blocks
need (more than the device has if they run in waves), and whether it is limited by compute (1), memory (0) or
neither is known (-1). KIND is `fwd` (inference) or `fb1` (one training step); `fb0` has placeholders.
Footprints are 0 everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from datasets.importers.base import CsvRows, Import, find_files, lookup, spec
from profiling.zoo.aliases import ALIASES

DEVICE = "v100"
BOUNDS = {"1": "compute", "0": "memory", "-1": "unknown"}
MODES = {"fwd": "inference", "fb1": "training"}
_NAME = re.compile(r"(?P<model>\w+)_(?P<batch>\d+)_(?P<kind>fwd|fb0|fb1)")
_COLUMNS = ("Name", "Profile", "SM_usage", "Duration")


def read(folder: Path) -> Import:
    """Read every list of kernels in `model_kernels`.

    Raises:
        InputError: there are none, or one is malformed; with line and column.
    """
    result = Import("orion")
    for path in find_files(folder, "model_kernels/*"):
        match = _NAME.fullmatch(path.name)
        if match is None:
            result.notes.append(f"{path.name} is not a list of kernels: skipped")
            continue
        rows = list(CsvRows(path, _COLUMNS))
        result.read += len(rows)
        if match["kind"] == "fb0":
            result.dropped["placeholder (fb0)"] += len(rows)
            continue
        model = lookup(ALIASES, f"orion/{match['model']}", path)
        workload = spec(model, batch_size=int(match["batch"]), mode=MODES[match["kind"]])
        result.add_workload("orion", workload)
        for position, row in enumerate(rows):
            if row.text("Profile") not in BOUNDS:
                raise row.fault("Profile", "one of " + ", ".join(BOUNDS))
            result.add(
                "kernels",
                "orion",
                device=DEVICE,
                workload=workload,
                position=position,
                kernel=row.text("Name"),
                duration_s=row.number("Duration", above=0) / 1e9,
                sm_count=row.integer("SM_usage"),
                bound=BOUNDS[row.text("Profile")],
            )
    return result
