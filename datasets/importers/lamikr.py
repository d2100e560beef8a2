"""Training and inference of torchvision's CNNs alone on eight GPUs (lamikr/pytorch-gpu-benchmark; MIT).

In `results/Nvidia/GPU/GPU__PRECISION_model_MODE_benchmark.csv`, a column is a network and a row one iteration
in ms. An iteration copies the batch to the device and runs forward and, for training, backward; there is no
optimiser step. `float` is TF32 from Ampere on, which is torch's default for convolutions.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from datasets.importers.base import CsvRows, Import, find_files, lookup, read_object, spec
from profiling.errors import InputError

DEVICES = {
    "A100_SXM4_40GB": "a100",
    "GeForce_GTX_1080_TI": "gtx-1080-ti",
    "GeForce_RTX_2060_MaxQ": "rtx-2060-max-q",
    "GeForce_RTX_3090": "rtx-3090",
    "GeForce_RTX_4060_TI_16GB": "rtx-4060-ti-16gb",
    "TITAN_RTX": "titan-rtx",
    "TITAN_V": "titan-v",
    "TITAN_XP": "titan-xp",
}
WITH_TF32 = ("a100", "rtx-3090", "rtx-4060-ti-16gb")
PRECISIONS = {"float": "fp32", "half": "fp16", "double": "fp64"}
MODES = {"train": "training", "inference": "inference"}
DEFAULT_BATCH_SIZE, IMAGE_SIZE = 12, 224
_NAME = re.compile(
    r"(?P<device>\w+)__(?P<precision>float|half|double)_model_(?P<mode>train|inference)_benchmark"
)
# Folders with several GPUs used DataParallel.
_SEVERAL = re.compile(r"_[2-9]X$")


def read(folder: Path) -> Import:
    """Read every `*_benchmark.csv` below `folder` from a single NVIDIA GPU.

    Raises:
        InputError: there are none, or one is malformed; with line and column.
    """
    result = Import("lamikr")
    for path in find_files(folder, "*_benchmark.csv"):
        match = _NAME.fullmatch(path.stem)
        if match is None:
            raise InputError(f"{path} has another name", expected="GPU__PRECISION_model_MODE_benchmark.csv")
        series = _read_series(path)
        result.read += len(series)
        if match["device"] not in DEVICES and (
            _SEVERAL.search(path.parent.name) or "Nvidia" not in path.parts
        ):
            result.dropped["several GPUs (DataParallel), or another vendor's"] += len(series)
            continue
        device = lookup(DEVICES, match["device"], path)
        batch = _batch_size(result, path, len(series))
        precision = PRECISIONS[match["precision"]]
        for network, times_ms in series.items():
            workload = spec(
                f"torchvision/{network}",
                batch_size=batch,
                image_size=IMAGE_SIZE,
                mode=MODES[match["mode"]],
                precision="tf32" if precision == "fp32" and device in WITH_TF32 else precision,
                optimizer="none" if match["mode"] == "train" else None,
            )
            step = median(times_ms) / 1e3
            result.add_workload("lamikr", workload)
            result.add(
                "solo",
                "lamikr",
                device=device,
                workload=workload,
                step_time_s=step,
                samples_per_s=batch / step,
                gpus=1,
            )
    result.notes.append(
        "each step copies its batch from the host; small ones are bound by launches on fast GPUs"
    )
    return result


def _batch_size(result: Import, path: Path, series: int) -> int:
    config = path.with_name("config.json")
    if config.is_file():
        value = read_object(config, "{BATCH_SIZE: integer}").get("BATCH_SIZE")
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{config}: BATCH_SIZE", expected="an integer from 1", got=value)
        return value
    result.flagged[f"batch size not recorded: assumed to be the tool's default of {DEFAULT_BATCH_SIZE}"] += (
        series
    )
    return DEFAULT_BATCH_SIZE


def _read_series(path: Path) -> dict[str, list[float]]:
    """Network to its iterations in ms."""
    rows = list(CsvRows(path, ()))
    if not rows:
        raise InputError(f"{path} is empty", expected="a header of networks and rows of iterations")
    return {name: [row.number(name, above=0) for row in rows] for name in rows[0].cells}
