"""One node from `nvidia-smi --query-gpu=... --format=csv`, or from `nvidia-smi -L`."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from profiling.devices import canonical
from profiling.errors import InputError
from scheduling.clusters.importers.titles import device_of
from scheduling.core.snapshot import Gpu, Node

_LISTED = re.compile(r"GPU (\d+): (.+?) \(UUID: [^)]*\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+):")


def read(text: str, devices: Mapping[str, str], node: str) -> list[Node]:
    """GPUs of the node that the command ran on. MIG slices, which `-L` lists, count as separate GPUs."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and _LISTED.match(lines[0]):
        return [Node(node, tuple(_listed(lines, devices)))]
    rows = list(csv.reader(lines, skipinitialspace=True))
    header = [name.split(" [")[0].strip() for name in rows[0]] if rows else []
    if "name" not in header:
        raise InputError(
            "not the output of nvidia-smi",
            expected="CSV with a header and the columns index, name, memory.total; or nvidia-smi -L",
            got=lines[0][:80] if lines else "nothing",
        )
    gpus = []
    for number, row in enumerate(rows[1:]):
        cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
        amount = re.match(r"[\d.]+", cells.get("memory.total", ""))
        memory_bytes = float(amount[0]) * 2**20 if amount else None
        device = device_of(cells["name"], devices, memory_bytes)
        mode = cells.get("mig.mode.current", "")
        gpus.append(
            Gpu(cells.get("index", str(number)), device, "mig" if mode == "Enabled" else "time-slice")
        )
    return [Node(node, tuple(gpus))]


def _listed(lines: list[str], devices: Mapping[str, str]) -> list[Gpu]:
    gpus: list[Gpu] = []
    card = Gpu("", "")
    for line in lines:
        whole, part = _LISTED.match(line), _SLICE.match(line)
        if whole:
            card = Gpu(whole[1], device_of(whole[2], devices))
            gpus.append(card)
        elif part:
            if gpus and gpus[-1] is card:  # slices replace the card
                gpus.pop()
            gpus.append(Gpu(f"{card.id}.{part[2]}", canonical(f"{card.device}:mig={part[1]}")))
    return gpus
