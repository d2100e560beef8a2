"""Co-location sets in ISACPP's CSV layout (Liu et al., TPDS 2025), for users who have such data.

There is one folder per set, `A_32_and_B_64_in_RTX_4090` or `A_32_B_64_and_C_16_in_RTX_4090`, with

* `node_features.csv`: one row per member, its name under `Model name`;
* `edges.csv`: `src, dst, performance degradation`: co-located / solo time of `dst`;
* `labels.csv`: `execution_time, gpu_memory, pcie_band, gpu_util`, one row per member.

Features and labels were min-max normalised by their authors, and the ranges are not included. Only batch
sizes (in the folder's name) and slowdowns (on the edges) are physical, and these are imported.
"""

from __future__ import annotations

import re
from pathlib import Path

from datasets.importers.base import CsvRows, Import, spec
from profiling.errors import InputError
from profiling.zoo.aliases import ALIASES

DEVICES = {"RTX_4090": "rtx-4090", "RTX_3090": "rtx-3090", "Titan_Xp": "titan-xp"}


def read(folder: Path) -> Import:
    """Read every set below `folder`.

    Raises:
        InputError: there are none, or one is malformed; with file, line and column.
    """
    result = Import("isacpp")
    sets = sorted(path.parent for path in folder.glob("**/node_features.csv"))
    if not sets:
        raise InputError(
            f"{folder} lacks the files that this importer reads",
            expected="folders with node_features.csv, edges.csv and labels.csv",
        )
    for path in sets:
        _read_set(result, path)
    result.notes.append(
        "times and memories of this layout are normalised: only batch sizes and slowdowns are imported"
    )
    return result


def _read_set(result: Import, folder: Path) -> None:
    names = [row.text("Model name") for row in CsvRows(folder / "node_features.csv", ("Model name",))]
    batches, device = _folder_name(folder, names)
    if len(
        list(CsvRows(folder / "labels.csv", ("execution_time", "gpu_memory", "pcie_band", "gpu_util")))
    ) != len(names):
        raise InputError(f"{folder / 'labels.csv'}", expected=f"{len(names)} rows, one per member")
    slowdowns: dict[str, list[float]] = {}
    for row in CsvRows(folder / "edges.csv", ("src", "dst", "performance degradation")):
        if row.text("dst") not in names:
            raise row.fault("dst", "one of " + ", ".join(names))
        slowdowns.setdefault(row.text("dst"), []).append(row.number("performance degradation", above=0))
    result.read += len(names)
    if len(set(names)) < len(names):
        # Edges name their ends, so two members with the same name cannot be distinguished.
        result.dropped["two members with the same name"] += len(names)
        return
    if any(name not in slowdowns for name in names):
        raise InputError(
            f"{folder / 'edges.csv'}", expected="an edge into every member", got=", ".join(slowdowns)
        )
    for member, (name, batch) in enumerate(zip(names, batches, strict=True)):
        model = ALIASES.get(name, re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"))
        workload = spec(model, batch_size=batch)
        result.add_workload("isacpp", workload)
        result.add(
            "colocation",
            "isacpp",
            set_id=f"isacpp/{device}/{folder.name}",
            member=member,
            device=device,
            sharing="time-slice",
            workload=workload,
            throughput_ratio=1 / slowdowns[name][0],
            censored=False,
            is_target=True,
        )


def _folder_name(folder: Path, names: list[str]) -> tuple[list[int], str]:
    """(batch sizes, device) from the folder's name."""
    members = r"_(?:and_)?".join(re.escape(name) + r"_(\d+)" for name in names)
    match = re.fullmatch(members + "_in_(" + "|".join(DEVICES) + ")", folder.name)
    if match is None or len(names) < 2:
        raise InputError(
            f"folder {folder} has another name than its members",
            expected=" and ".join(f"{name}_BATCH" for name in names) + " in one of " + ", ".join(DEVICES),
            got=folder.name,
        )
    *batches, device = match.groups()
    return [int(batch) for batch in batches], DEVICES[device]
