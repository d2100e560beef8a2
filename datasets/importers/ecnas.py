"""Training steps and power of NAS-Bench-101 cells on a Quadro RTX 6000 (EC-NAS-Bench; MIT).

Bakhtiarifard et al., ICASSP 2024. `.../energy/SPACE/4_epochs/XX/CELL/repeat_N/results.json` is one run,
`.../graphs/generated_graphs_SPACE.json` has the cells. A run trains four epochs and evaluates three times.
The time of the first evaluation includes TensorFlow's compilation, so a step is the training time between the
last two evaluations divided by the steps in between. It includes the input pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets.importers.base import Import, find_files, read_object, spec
from datasets.importers.nasbench import CellCounts, count_cell_network
from profiling.errors import InputError
from profiling.files import read_json

DEVICE, BATCH_SIZE = "quadro-rtx-6000", 256


def read(folder: Path) -> Import:
    """Read every run and the cells' adjacency matrices below `folder`.

    Raises:
        InputError: they are missing, a file is malformed, or a cell's graph is missing.
    """
    result = Import("ecnas")
    runs = find_files(folder, "energy/*/*/*/*/*/results.json")
    cells: dict[str, Any] = {}
    for path in find_files(folder, "generated_graphs_*.json"):
        cells |= read_object(path, "{cell: [adjacency matrix, operations]}")
    counted: dict[str, CellCounts] = {}
    for path in runs:
        if "_recovery" in str(path.relative_to(folder)):
            result.dropped["interrupted run (_recovery)"] += 1
            continue
        result.read += 1
        cell = path.parts[-3]
        if cell not in cells:
            raise InputError(f"{path}: no graph for this cell", expected="generated_graphs_*.json with it")
        if cell not in counted:
            counted[cell] = _counted(cell, cells[cell])
        _read_run(result, path, cell, counted[cell])
    result.notes.append("power is the mean over the whole run: compilation and evaluation are in it")
    return result


def _counted(cell: str, graph: Any) -> CellCounts:
    try:
        matrix, operations = graph
        return count_cell_network(matrix, operations)
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"the graph of cell {cell} has an unexpected shape",
            expected="[adjacency matrix, operations]",
            got=repr(error),
        ) from None


def _read_run(result: Import, path: Path, cell: str, counts: CellCounts) -> None:
    body = read_json(path)
    try:
        before, after = body["evaluation_results"][-2:]
        seconds = after["training_time"] - before["training_time"]
        steps = after["training_steps"] - before["training_steps"]
        parameters = int(body["trainable_params"])
        power = float(body["avg_power_usages:"]["gpu"]["avg_power_usages (W)"][0][0])
        valid = seconds > 0 and steps > 0
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a run of EC-NAS-Bench",
            expected="evaluation_results, trainable_params, avg_power_usages",
            got=repr(error),
        ) from None
    if not valid:
        raise InputError(
            f"{path}: no training between the last two evaluations",
            expected="training_time and training_steps that grow",
            got=f"{seconds} s, {steps} steps",
        )
    if parameters != counts.parameters:
        raise InputError(
            f"{path}: the cell's graph is a different network",
            expected=f"{parameters} parameters",
            got=counts.parameters,
        )
    campaign = f"ecnas-{path.parts[-6].lower()}"
    workload = spec(
        f"nasbench/{cell}",
        batch_size=BATCH_SIZE,
        framework="tensorflow",
        memory_layout="channels-last",
        optimizer="rmsprop",
    )
    result.add_workload(
        campaign,
        workload,
        parameter_count=parameters,
        macs_per_sample=counts.macs,
        activations_per_sample=counts.activations,
        pooled_activations_per_sample=counts.pooled,
        layer_count=counts.layers,
        dataset="CIFAR-10",
    )
    result.add(
        "solo",
        campaign,
        device=DEVICE,
        workload=workload,
        step_time_s=seconds / steps,
        samples_per_s=BATCH_SIZE * steps / seconds,
        power_w=power,
        gpus=1,
        repeat=int(path.parent.name.removeprefix("repeat_")),
        framework_version="1",
    )
