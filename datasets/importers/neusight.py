"""Single forward operators and whole models on NVIDIA GPUs (NeuSight, Lee et al., ASPLOS 2025; MIT).

Operators are in `dataset/train/collect/OPERATOR/VERSION/GPU.csv` and, with large shapes from real models, in
`dataset/test/*.csv`. Latencies are in ms by CUDA events, mean of the fastest 5 of 25, fp32 without TF32, each
with about 0.025 ms of launch. Whole models: see `neusight_models`.
"""

from __future__ import annotations

from pathlib import Path

from datasets.importers.base import CsvRow, CsvRows, Import, find_files
from datasets.importers.neusight_models import DEVICES, read_models

# Upstream's operator -> canonical kind, operator, tensors that it reads. A name with `u` takes a number
# besides its tensor.
OPERATORS: dict[str, tuple[str, str, int]] = {
    "bmm": ("matmul", "bmm", 2),
    "linear": ("linear", "linear", 2),
    "conv": ("convolution", "conv2d", 2),
    "ln": ("layer_norm", "layer_norm", 1),
    "softmax": ("softmax", "softmax", 1),
    "relu": ("activation", "relu", 1),
    "gelu": ("activation", "gelu", 1),
    "tanh": ("activation", "tanh", 1),
    **{name: ("elementwise", name, 2) for name in ("add", "mul", "div", "pow")},
    **{f"{name}u": ("elementwise", name, 1) for name in ("add", "mul", "div", "pow")},
}
# Upstream multiplies [M, N] by [N, K], as its kernels' grids show: its K is the width of the result.
_PRODUCT = {"b": "B", "m": "M", "n": "K", "k": "N"}
_SHAPES: dict[str, dict[str, str]] = {
    "matmul": _PRODUCT,
    "linear": _PRODUCT,
    "convolution": {
        "b": "B",
        "input_channels": "Input_Channel",
        "output_channels": "Output_Channel",
        "kernel_size": "Kernel_Szie",
        "input_size": "Input_Size",
        "stride": "Stride",
        "padding": "Padding",
    },
}
_ROWS = {"b": "B", "n": "H"}
_COLUMNS = (
    "OPName",
    "Latency",
    "Device",
    "Torch Version",
    "Kernel Name",
    "Warps per SM",
    "Blocks per SM",
    "B",
)


def read(folder: Path) -> Import:
    """Read the operators and whole models below `folder`.

    Raises:
        InputError: there are none, or a file is malformed; with line and column.
    """
    result = Import("neusight")
    # Upstream's other CSVs concatenate those of single devices.
    for path in find_files(folder, "dataset/train/collect/*/*/*.csv", "dataset/test/*.csv"):
        campaign = "neusight-test" if path.parent.name == "test" else "neusight-train"
        for row in CsvRows(path, _COLUMNS):
            result.read += 1
            _add_operator(result, campaign, row)
    read_models(result, folder)
    result.notes.append(
        "operators are forward, fp32 without TF32: no tensor cores; about 0.025 ms of each is launch"
    )
    return result


def _add_operator(result: Import, campaign: str, row: CsvRow) -> None:
    device = DEVICES.get(row.text("Device"))
    if device is None:
        result.dropped[
            f"operator on a device that is not NVIDIA's or has no name here ({row.text('Device')})"
        ] += 1
        return
    if row.text("OPName") not in OPERATORS:
        raise row.fault("OPName", "one of " + ", ".join(OPERATORS))
    kind, operator, operands = OPERATORS[row.text("OPName")]
    result.add(
        "operators",
        campaign,
        device=device,
        kind=kind,
        operator=operator,
        operand_count=operands,
        **{name: row.integer(column) for name, column in _SHAPES.get(kind, _ROWS).items()},
        precision="fp32",
        latency_s=row.number("Latency", above=0) / 1e3,
        kernel=row.text("Kernel Name"),
        warps_per_sm=row.number("Warps per SM", least=0),
        blocks_per_sm=row.number("Blocks per SM", least=0),
        grid_blocks=_product(row, "Grid"),
        block_threads=_product(row, "Block"),
        framework_version=row.text("Torch Version").removeprefix("p"),
    )


def _product(row: CsvRow, what: str) -> int:
    return row.integer(f"{what} x") * row.integer(f"{what} y") * row.integer(f"{what} z")
