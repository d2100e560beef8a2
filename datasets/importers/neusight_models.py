"""NeuSight's whole models, some with a CSV of node times.

Files are `label/GPU/MODEL-MODE-SEQUENCE-BATCH[-VARIANT].json`. Times are in ms. Training is forward and
backward without an optimiser step. A CSV traces embeddings, **one** layer and the head; the layer runs
`num_layer` times in the whole model.
"""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

from datasets.importers.base import CsvRow, CsvRows, Import, find_files, lookup, spec
from profiling.errors import InputError
from profiling.files import read_json
from profiling.zoo.aliases import ALIASES

DEVICES = {
    "Tesla P4": "p4",
    "Tesla P100-PCIE-16GB": "p100",
    "Tesla V100-PCIE-32GB": "v100-32gb",
    "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100",
    "NVIDIA A100-SXM4-40GB": "a100",
}
CAMPAIGN = "neusight-end-to-end"
_RUN = re.compile(
    r"(?P<model>\w+)-(?P<mode>inf|train)-(?P<sequence>\d+)-(?P<batch>\d+)(?:-(?P<variant>\w+))?"
)
_IN_REPEATED_LAYER = re.compile(r"'[\w.]+\.(?:layer|h|block)\.0[.']")
_ELEMENT_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "bool": 1}
_NODE_COLUMNS = (
    "target",
    "_input_nodes",
    "meta",
    "fw_latency",
    "bw_latency",
    "acc_latency",
    "output_shape",
    "dtype",
    "Name",
)


def read_models(result: Import, folder: Path) -> None:
    """Add every run of a whole model, and its nodes if they were timed.

    Raises:
        InputError: a file is malformed.
    """
    for path in find_files(folder, "label/*/*.json"):
        match = _RUN.fullmatch(path.stem)
        if match is None:
            raise InputError(f"{path} has another name", expected="MODEL-MODE-SEQUENCE-BATCH[-VARIANT].json")
        result.read += 1
        device = DEVICES.get(path.parent.name.replace("_", " "))
        if device is None:
            result.dropped[
                f"model on a device that is not NVIDIA's or has no name here ({path.parent.name})"
            ] += 1
            continue
        if match["variant"] not in (None, "fusion"):
            result.dropped["model over four GPUs (data, tensor or pipeline parallel)"] += 1
            continue
        training = match["mode"] == "train"
        batch = int(match["batch"])
        model = lookup(ALIASES, f"neusight/{match['model']}", path)
        workload = spec(
            model,
            batch_size=batch,
            sequence_length=int(match["sequence"]),
            mode="training" if training else "inference",
            compiler="compile" if match["variant"] else "eager",
            data_on_device=True,
            optimizer="none" if training else None,
        )
        step, layers = _whole(path)
        result.add_workload(CAMPAIGN, workload)
        result.add(
            "solo",
            CAMPAIGN,
            device=device,
            workload=workload,
            step_time_s=step,
            samples_per_s=batch / step,
            gpus=1,
            framework_version="2.1.0",
        )
        nodes = path.with_suffix(".csv")
        if nodes.is_file():
            for row in CsvRows(nodes, _NODE_COLUMNS):
                result.read += 1
                _add_node(result, row, device, workload, layers)


def _whole(path: Path) -> tuple[float, int]:
    """Seconds of a step, and number of repeats of its traced layer."""
    body: Any = read_json(path)
    try:
        step = float(body["e2e_latency"]) / 1e3
        layers = int(body["num_layer"] or 1)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a run", expected="e2e_latency, num_layer", got=repr(error)) from None
    if not 0 < step < math.inf:
        raise InputError(f"{path}: e2e_latency", expected="ms, above 0", got=step * 1e3)
    return step, layers


def _add_node(result: Import, row: CsvRow, device: str, workload: str, layers: int) -> None:
    repeated = _IN_REPEATED_LAYER.search(row.text("meta")) is not None
    inputs = re.findall(r"(\w+): None", row.text("_input_nodes"))
    result.add(
        "graphs",
        CAMPAIGN,
        device=device,
        workload=workload,
        node=row.text("Name"),
        # An address in a function's text has no meaning.
        operator=re.sub(r" at 0x\w+", "", row.text("target")),
        inputs=" ".join(inputs) or None,
        occurrences=layers if repeated else 1,
        forward_time_s=row.number("fw_latency", least=0) / 1e3,
        # Accumulating the gradient into its parameter is part of the backward pass.
        backward_time_s=(row.number("bw_latency", least=0) + row.number("acc_latency", least=0)) / 1e3,
        activation_bytes=_output_bytes(row),
    )


def _output_bytes(row: CsvRow) -> float:
    kind = row.text("dtype").removeprefix("torch.")
    if not kind:
        return 0.0  # a size or another number, not a tensor
    try:
        shape = ast.literal_eval(row.text("output_shape"))
        return float(math.prod(shape) * _ELEMENT_BYTES[kind])
    except (KeyError, TypeError, ValueError, SyntaxError):
        raise row.fault("output_shape", "a shape, with the element type in dtype") from None
