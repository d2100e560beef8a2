"""Step time and memory by number of frozen layers, on V100s (no licence stated).

Gao et al., FrozenTraceAnalysis and TraceCollectionLibrary. Two layouts are read: a tidy `throughput.csv` and
`memory.csv`, or clones with `APP/frozen/MODEL/placements.csv` (and `app_info.npy`) and
`pytorch-cifar/memory/model_*.npy`, whose pickles are read as NumPy arrays only.

Layers are counted as upstream's atomic layers, in module order. Layers were frozen after the model was
wrapped for data parallelism, so the gradient exchange did not shrink with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from datasets.importers.base import CsvRow, CsvRows, Import, find_file_if_any, lacks_files, spec
from datasets.importers.numpy_only import load_npy
from profiling.errors import InputError
from profiling.zoo.aliases import ALIASES

DEVICE = "v100"
# Names in clones -> names in the tidy files.
_IN_CLONES = {"WikiText2-bert": "bert-mlm-wikitext2", "VOC-yolo": "yolov3-voc"}
_LAYERS = {
    "bert-mlm-wikitext2": 103,
    "yolov3-voc": 117,
    "cifar10-ResNet18": 41,
    "cifar10-ResNet50": 107,
    "cifar10-VGG19": 33,
}


class _Job(NamedTuple):
    """A model of the source with frozen layers; `batch` is per GPU."""

    name: str
    layers: int
    frozen: int
    batch: int


def read(folder: Path) -> Import:
    """Read the tidy files, or clones of upstream.

    Raises:
        InputError: neither is present, or a file is malformed.
        UnsafeFileError: a pickle contains anything but NumPy arrays.
    """
    result = Import("freezing")
    throughput = find_file_if_any(folder, "throughput.csv")
    memory = find_file_if_any(folder, "memory.csv")
    placements = sorted(folder.glob("**/frozen/*/placements.csv"))
    pickles = sorted(folder.glob("**/memory/model_*.npy"))
    if throughput is None and memory is None and not placements and not pickles:
        raise lacks_files(folder, "throughput.csv and memory.csv, or APP/frozen/MODEL/placements.csv")
    if throughput is not None:
        _read_throughput(result, throughput)
    if memory is not None:
        _read_memory(result, memory)
    for path in placements:
        _read_placements(result, path)
    for path in pickles:
        _read_pickle(result, path)
    result.notes.append("the GPU type of the step times is inferred by its publisher, not stated")
    result.notes.append("memory_bytes is the allocator's peak: the CUDA context is not in it")
    return result


def _read_throughput(result: Import, path: Path) -> None:
    columns = (
        "model",
        "placement",
        "num_nodes",
        "num_gpus",
        "local_bsz",
        "frozen_layers",
        "total_layers",
        "step_time_s",
        "sync_time_s",
    )
    for row in CsvRows(path, columns):
        _add_step(
            result,
            _job(row, path),
            row.integer("num_gpus", least=1),
            row.integer("num_nodes", least=1),
            row.number("step_time_s", above=0),
            row.number("sync_time_s", least=0),
        )


def _job(row: CsvRow, path: Path) -> _Job:
    return _Job(
        _known(row.text("model"), f"{path}, line {row.line}"),
        row.integer("total_layers", least=1),
        row.integer("frozen_layers"),
        row.integer("local_bsz", least=1),
    )


def _read_placements(result: Import, path: Path) -> None:
    name = _known(_IN_CLONES.get(path.parent.name, path.parent.name), str(path))
    layers = _LAYERS.get(name)
    info = path.with_name("app_info.npy")
    if info.is_file():
        about = load_npy(info)
        try:
            layers = int(about.get("layer_num", layers or 0)) or layers
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"{info} has an unexpected shape", expected="{layer_num: layers, ...}", got=str(error)
            ) from None
    if layers is None:
        raise InputError(
            f"{path}: unknown number of layers", expected="app_info.npy with layer_num beside it"
        )
    for row in CsvRows(path, ("placement", "local_bsz", "step_time", "sync_time", "frozen_layer")):
        placement = row.text("placement")
        if not placement.isdigit():
            raise row.fault("placement", "one digit per node with its GPU count")
        _add_step(
            result,
            _Job(name, layers, row.integer("frozen_layer"), row.integer("local_bsz", least=1)),
            sum(map(int, placement)),
            len(placement),
            row.number("step_time", above=0),
            row.number("sync_time", least=0),
        )


def _add_step(
    result: Import, job: _Job, gpus: int, nodes: int, step_time_s: float, sync_time_s: float
) -> None:
    result.read += 1
    note = None
    if job.name == "yolov3-voc":
        # Upstream measured these two first, without warm-up; its steps across GPUs scatter by 11 %.
        note = "warm-up" if job.frozen == 0 and job.batch in (4, 24) else "noisy" if gpus > 1 else None
    if note:
        result.flagged[note] += 1
    _add(result, job, gpus, nodes, note, step_time_s=step_time_s, sync_time_s=sync_time_s)


def _read_memory(result: Import, path: Path) -> None:
    for row in CsvRows(path, ("model", "frozen_layers", "total_layers", "local_bsz", "peak_mem_bytes")):
        _add_memory(result, _job(row, path), row.number("peak_mem_bytes", above=0))


def _read_pickle(result: Import, path: Path) -> None:
    name = _known("cifar10-" + path.stem.removeprefix("model_"), str(path))
    body: Any = load_npy(path)
    layers = _LAYERS.get(name)
    if not isinstance(body, dict):
        raise InputError(
            f"{path} has an unexpected shape",
            expected="{frozen layers: {batch size: bytes}}",
            got=type(body).__name__,
        )
    for frozen, by_batch in body.items():
        if not isinstance(by_batch, dict):
            continue  # `total_memory` of the device
        for batch, peak in by_batch.items():
            if layers is None:
                result.read += 1
                result.dropped[f"unknown number of layers of {name}"] += 1
                continue
            try:
                job, peak_bytes = _Job(name, layers, int(frozen), int(batch)), float(peak)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{path} has an unexpected shape",
                    expected="{frozen layers: {batch size: bytes}}",
                    got=str(error),
                ) from None
            _add_memory(result, job, peak_bytes)


def _add_memory(result: Import, job: _Job, peak_bytes: float) -> None:
    result.read += 1
    note = "cudnn-workspace" if job.frozen == 0 else None
    if note:
        result.flagged["cudnn-workspace: 0.8 to 5 GB on top"] += 1
    _add(result, job, 1, 1, note, memory_bytes=peak_bytes)


def _add(result: Import, job: _Job, gpus: int, nodes: int, note: str | None, **measured: float) -> None:
    if job.frozen > job.layers:
        raise InputError(
            f"{job.name} has more frozen layers than layers",
            expected=f"at most {job.layers}",
            got=job.frozen,
        )
    model = ALIASES.get(job.name, job.name)
    workload = spec(model, batch_size=job.batch, frozen_prefix=job.frozen or None)
    result.add(
        "freezing",
        "freezing",
        device=DEVICE,
        workload=workload,
        frozen_prefix=job.frozen,
        total_layers=job.layers,
        gpus=gpus,
        nodes=nodes,
        note=note,
        **measured,
    )


def _known(name: str, where: str) -> str:
    if name not in ALIASES and name not in _LAYERS:
        raise InputError(f"{where}: unknown model", expected="one of " + ", ".join(_LAYERS), got=name)
    return name
