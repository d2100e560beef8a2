"""One node from `nvidia-smi --query-gpu=... --format=csv`, or from `nvidia-smi -L`."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from profiling.devices import canonical
from profiling.errors import InputError
from profiling.files import check_once
from scheduling.clusters.importers.titles import device_of
from scheduling.core.snapshot import Gpu, Node

# Printed among the GPUs about one that cannot be used, or whose board has lost its description.
_MESSAGE = re.compile(r"WARNING: |Unable to determine the device handle for gpu", re.IGNORECASE)
_LISTED = re.compile(r"GPU (\d+): (.+?) \(UUID: [^)]*\)")
_SLICE = re.compile(
    r"\s+MIG (?:(?P<compute>\d+)c\.)?(?P<profile>(?P<slices>\d+)g\S*)\s+Device\s+(?P<number>\d+):"
    r"(?: \(UUID: MIG-GPU-[^/)]+/(?P<instance>\d+)/)?"
)


def read(text: str, devices: Mapping[str, str], node: str) -> list[Node]:
    """GPUs of the node that the command ran on. MIG slices, which `-L` lists, count as separate GPUs.

    Compute instances of one slice (`1c.3g.20gb`) share its memory and bandwidth, but no multiprocessors. They count as
    one GPU, the slice, shared as by MPS; `sm_share_ratio` of a job is then its instance's part of the slice.
    """
    lines = [line for line in text.splitlines() if line.strip() and not _MESSAGE.match(line)]
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
    check_once("nvidia-smi's output", header)
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
    instance: tuple[str, str | None] | None = (
        None  # profile and number of the slice whose parts are being listed
    )
    left = 0  # its compute slices that have not been listed yet
    for line in lines:
        whole, part = _LISTED.match(line), _SLICE.match(line)
        if whole:
            card = Gpu(whole[1], device_of(whole[2], devices))
            gpus.append(card)
            instance = None
        elif part:
            if gpus and gpus[-1] is card:  # slices replace the card
                gpus.pop()
            compute = int(part["compute"] or part["slices"])
            # Newer drivers do not say which slice an instance belongs to, but list them slice by slice.
            if instance == (part["profile"], part["instance"]) and compute <= left:
                left -= compute
                continue
            sharing = "mps" if part["compute"] else "time-slice"
            device = canonical(f"{card.device}:mig={part['profile']}")
            gpus.append(Gpu(f"{card.id}.{part['number']}", device, sharing))
            instance, left = (part["profile"], part["instance"]), int(part["slices"]) - compute
    return gpus
