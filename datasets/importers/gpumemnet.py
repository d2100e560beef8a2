"""Peak training memory of timm's networks on an A100 40 GB, and FakeTensor's estimates (GPUMemNet).

It has no licence, so it is for evaluation only. `Related_works/FakeTensor/fake_tensor.xlsx` has one row per
run, `NAME_BATCH.out`. Columns headed GB hold MiB. A run that crashed has a value like any other, from the
moment of the crash. Such runs are recognised where memory falls or hardly rises with the batch, and where it
is below the total size of the step's tensors, which is what FakeTensor estimates.

The optimiser is not stated. Between networks, memory grows by 11.6 bytes per parameter (median slope, besides the
activations), which is what parameters, gradients and one momentum take; without momentum it would be 8, with Adam 16 (12 if
gradients are dropped before the forward pass).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from datasets.importers.base import MEBIBYTE, Import, find_files, spec
from datasets.importers.timm import CHANGED
from profiling.errors import InputError

DEVICE, OPTIMIZER = "a100", "momentum"
COLUMNS = ("Filename", "Batch Size", "Max GPU Memory (MiB)", "Last Numeric Value")
# From the batch at which a network's memory rises by less than this, its runs crashed.
LEAST_SLOPE_RATIO = 0.5
LEAST_SLOPE_MIB_PER_IMAGE = 5.0
# Networks not run at their default size: their estimates are a fourteenth of those for 1,024 pixels.
_IMAGE_SIZES = {"sam2_hiera_tiny": 224}
_RUN = re.compile(r"(?P<name>.+)_(?P<batch>\d+)\.out")


def read(folder: Path) -> Import:
    """Read `fake_tensor.xlsx`.

    Raises:
        InputError: it is missing or malformed; with the row.
    """
    result = Import("gpumemnet")
    (path,) = find_files(folder, "fake_tensor.xlsx")[:1]
    runs: dict[str, list[tuple[int, float, float]]] = {}
    for line, row in enumerate(_rows(path), 2):
        result.read += 1
        match = _RUN.fullmatch(str(row["Filename"]))
        if match is None:
            raise InputError(
                f"{path}, row {line}, column Filename", expected="NAME_BATCH.out", got=row["Filename"]
            )
        numbers = [row[column] for column in COLUMNS[2:]]
        if not all(isinstance(value, int | float) and value > 0 for value in numbers):
            raise InputError(f"{path}, row {line}", expected="MiB, numbers above 0", got=numbers)
        runs.setdefault(match["name"], []).append((int(match["batch"]), float(numbers[0]), float(numbers[1])))
    for name, by_batch in runs.items():
        by_batch.sort()
        if len({batch for batch, *_ in by_batch}) < len(by_batch):
            raise InputError(
                f"{path} has several runs of {name} with one batch size",
                expected="one row per network and batch size",
                got=", ".join(str(batch) for batch, *_ in by_batch),
            )
        alive = _alive([(batch, memory) for batch, memory, _ in by_batch])
        reason = (
            "crashed: memory falls or hardly rises with the batch"
            if alive
            else "only run left of a network, perhaps a crash"
        )
        result.dropped[reason] += len(by_batch) - alive
        for batch, memory, estimate in by_batch[:alive]:
            if memory < estimate:
                result.dropped["crashed: less memory than its tensors take"] += 1
                continue
            collection = "timm-0.6" if name in CHANGED else "timm"
            workload = spec(
                f"{collection}/{name}",
                batch_size=batch,
                optimizer=OPTIMIZER,
                image_size=_IMAGE_SIZES.get(name),
            )
            result.add_workload("gpumemnet", workload)
            result.add(
                "memory",
                "gpumemnet",
                device=DEVICE,
                workload=workload,
                memory_bytes=memory * MEBIBYTE,
                estimate_bytes=estimate * MEBIBYTE,
                scope="device",
            )
    result.notes.append(
        "precision and optimiser are not stated; by their size the runs were in fp32, and SGD with momentum"
    )
    return result


def _alive(points: list[tuple[int, float]]) -> int:
    """Number of a network's runs, by ascending batch, that did not crash; 0 if a single one is left, unconfirmed."""
    first: float | None = None
    for position in range(1, len(points)):
        (batch, memory), (smaller, before) = points[position], points[position - 1]
        slope = (memory - before) / (batch - smaller)
        least = LEAST_SLOPE_MIB_PER_IMAGE if first is None else LEAST_SLOPE_RATIO * first
        if slope < max(least, LEAST_SLOPE_MIB_PER_IMAGE):
            return position if position > 1 else 0
        first = slope if first is None else first
    return len(points) if len(points) > 1 else 0


def _rows(path: Path) -> list[dict[str, Any]]:
    import zipfile

    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except (InvalidFileException, zipfile.BadZipFile, KeyError, OSError) as error:
        raise InputError(f"{path} is not a workbook", expected="xlsx", got=str(error)) from None
    lines = book.worksheets[0].iter_rows(values_only=True)
    header = [str(cell) for cell in next(lines, ())]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path}: columns are missing", expected=", ".join(COLUMNS), got=", ".join(header))
    rows = [dict(zip(header, line, strict=True)) for line in lines if any(cell is not None for cell in line)]
    book.close()
    return rows
