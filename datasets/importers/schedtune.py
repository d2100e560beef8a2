"""Peak training memory of torchvision's CNNs on five GPUs (SchedTune; MIT): `model_stats.csv`.

Albahar et al., CCGrid 2022. Memory is that of the device in MiB, context included; activations, parameters
and input are in MiB for the whole batch, activations as counted by `torchsummary` (forward and backward:
twice the outputs). A GPU is identified by its number of SMs.
"""

from __future__ import annotations

from pathlib import Path

from datasets.importers.base import MEBIBYTE, CsvRows, Import, find_file, spec

DEVICES = {13: "k80", 40: "rtx-2070-super", 46: "rtx-3070", 80: "v100", 82: "rtx-3090"}
_BYTES_PER_ELEMENT = 4


def read(folder: Path) -> Import:
    """Read `model_stats.csv`.

    Raises:
        InputError: it is missing or malformed; with line and column.
    """
    result = Import("schedtune")
    path = find_file(folder, "model_stats.csv")
    columns = ("model", "batchsize", "activations", "parameters", "peak mem usage", "SM count")
    for row in CsvRows(path, columns):
        result.read += 1
        batch = row.integer("batchsize", least=1)
        processors = row.integer("SM count", least=1)
        if processors not in DEVICES:
            raise row.fault("SM count", "one of " + ", ".join(map(str, DEVICES)))
        workload = spec(f"torchvision/{row.text('model')}", batch_size=batch)
        result.add_workload(
            "schedtune",
            workload,
            parameter_count=round(row.number("parameters", least=0) * MEBIBYTE / _BYTES_PER_ELEMENT),
            activations_per_sample=row.number("activations", least=0) * MEBIBYTE / _BYTES_PER_ELEMENT / batch,
        )
        result.add(
            "memory",
            "schedtune",
            device=DEVICES[processors],
            workload=workload,
            memory_bytes=row.number("peak mem usage", above=0) * MEBIBYTE,
            scope="device",
        )
    return result
