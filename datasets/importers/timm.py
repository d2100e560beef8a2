"""Step times of timm's networks alone (huggingface/pytorch-image-models, `results/benchmark-*.csv`;
Apache-2.0).

The file's name states what a row does not: `benchmark-MODE-PRECISION-LAYOUT-ptTORCH-cuCUDA-GPU[-dynamo].csv`.
Times are of a whole batch in ms, on random data resident on the device; training is forward, backward and an
SGD step with momentum. A pre-training tag after a dot does not change the step. Which networks ran, and how,
follows from the release:

* Training files have the networks of timm 0.6 (`timm-0.6/NAME`), inference files those of later releases
  (`timm/NAME`).
* With torch 1.13, attention was not fused yet. Inference ran what is `timm-0.6/NAME` here.
* From torch 2.9 on, inference ran with branches and norms merged if a network supports it
  (`timm-reparameterized/NAME`). The parameters and activations stated there are those of the merged networks.
* Under AMP, inference ran with `--fast-norm` (`timm-fast-norm/NAME`). No file says so, but ResNet-50 takes
  only 15 % longer with group norm than with batch norm. Plain vision transformers had no such layers before
  torch 2.9, and only they sped up with it.

A training benchmark starts at batch 512 and goes to the next smaller size as long as the card's memory is
insufficient: the size that ran and the one before give an upper and a lower bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets.importers.base import CsvRow, CsvRows, Import, find_files, lookup, spec
from profiling.collections import is_collected
from profiling.errors import InputError

DEVICES = {
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "5090": "rtx-5090",
    "pro6000maxq": "rtx-pro-6000-max-q",
}
# `amp_bf16` is autocast to bfloat16, at the rates of fp16; it is distinguished by its campaign.
PRECISIONS = {"amp": "amp", "amp_bf16": "amp", "bf16": "bf16"}
LAYOUTS = {"nchw": "contiguous", "nhwc": "channels-last"}
# Batch sizes tried by a training benchmark, in this order.
TRAINING_BATCHES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
TRAINING_DEVICE_BYTES = 24 * 2.0**30
_MERGED_SINCE = (2, 9)
# Before this release of torch, attention was not fused, as in timm 0.6.
_FUSED_SINCE = (2, 0)
# Networks whose layer norms were torch's own before that release.
_PLAIN_NORMS_UNTIL = (2, 9)
_PLAIN_NORMS = re.compile(r"(deit|eva_large|flexivit|vit_)(?!.*(_r\d|_r_|_rope|_xp))")
_GROUP_NORMS = re.compile(r".*(_gn$|_bit|_r\d|_r_)")
# Networks that had fewer layers when they were measured, as in timm 0.6, than in the release that is bundled.
CHANGED = frozenset({"ecaresnext50t_32x4d"})
_NAME = re.compile(
    r"benchmark-(?P<mode>train|infer)-(?P<precision>\w+)-(?P<layout>nchw|nhwc)-pt(?P<torch>\d+)-(?P<cuda>cu\d+)"
    r"-(?P<device>\w+?)(?P<dynamo>-dynamo)?"
)


@dataclass(frozen=True, slots=True)
class _Setting:
    """Settings stated in a file's name."""

    campaign: str
    torch: str
    device: str
    mode: str
    precision: str
    layout: str
    compiler: str

    def network(self, name: str) -> str:
        """The model of a row named `name`."""
        if self.mode == "training" or name in CHANGED:
            return f"timm-0.6/{name}"
        release = tuple(map(int, self.torch.split(".")[:2]))
        collection = "timm"
        if release >= _MERGED_SINCE and is_collected(f"timm-reparameterized/{name}"):
            collection = "timm-reparameterized"
        elif release < _FUSED_SINCE and not _GROUP_NORMS.match(name):
            collection = "timm-0.6"
        elif self.precision == "amp" and (release >= _PLAIN_NORMS_UNTIL or not _PLAIN_NORMS.match(name)):
            collection = "timm-fast-norm"
        return f"{collection}/{name}" if is_collected(f"{collection}/{name}") else f"timm/{name}"

    @classmethod
    def of(cls, path: Path) -> _Setting:
        match = _NAME.fullmatch(path.stem)
        if match is None:
            raise InputError(
                f"{path} has another name",
                expected="benchmark-MODE-PRECISION-LAYOUT-ptTORCH-cuCUDA-GPU[-dynamo].csv",
            )
        digits = match["torch"]
        return cls(
            campaign=f"timm-pt{digits}-{match['cuda']}"
            + ("-bf16" if match["precision"] == "amp_bf16" else ""),
            torch=f"1.{digits[1:]}" if digits.startswith("1") else ".".join(digits),
            device=lookup(DEVICES, match["device"], path),
            mode="training" if match["mode"] == "train" else "inference",
            precision=lookup(PRECISIONS, match["precision"], path),
            layout=LAYOUTS[match["layout"]],
            compiler="compile" if match["dynamo"] else "eager",
        )


def read(folder: Path) -> Import:
    """Read every `benchmark-train-*.csv` and `benchmark-infer-*.csv` below `folder`.

    Raises:
        InputError: there are none, or one is malformed; with line and column.
    """
    result = Import("timm")
    counts: dict[tuple[str, int], tuple[float, float]] = {}
    # Inference files first, older before newer: they count what training files do not, and older releases
    # also count attention's products, which fused kernels hide from the newer ones.
    files = sorted(
        find_files(folder, "benchmark-train-*.csv", "benchmark-infer-*.csv"),
        key=lambda path: (path.stem.startswith("benchmark-train"), _Setting.of(path).torch, path.name),
    )
    for path in files:
        _read_file(result, path, counts)
    result.notes.append(
        "from torch 2.9 on, RepVGG, MobileOne, FastViT, RepViT and others ran re-parameterised: timm-reparameterized/NAME"
    )
    result.notes.append("under AMP, inference ran with norms in half precision: timm-fast-norm/NAME")
    result.notes.append("before torch 2.0, inference ran without fused attention: timm-0.6/NAME")
    result.notes.append(
        "multiply-adds of training rows are those that an inference file states for that name and image size"
    )
    return result


def _read_file(result: Import, path: Path, counts: dict[tuple[str, int], tuple[float, float]]) -> None:
    setting = _Setting.of(path)
    prefix = "train" if setting.mode == "training" else "infer"
    columns = (
        "model",
        *(f"{prefix}_{name}" for name in ("step_time", "batch_size", "img_size")),
        "param_count",
    )
    seen: dict[str, int] = {}
    for row in CsvRows(path, columns):
        result.read += 1
        if not all(row.text(f"{prefix}_{name}") for name in ("step_time", "batch_size")):
            result.dropped["no step time: the network did not run"] += 1
            continue
        name = row.text("model").partition(".")[0]
        batch = row.integer(f"{prefix}_batch_size", least=1)
        size = row.integer(f"{prefix}_img_size", least=1)

        def job(batch: int, name: str = name, size: int = size) -> str:
            return spec(
                setting.network(name),
                batch_size=batch,
                image_size=size,
                mode=setting.mode,
                precision=setting.precision,
                compiler=setting.compiler,
                memory_layout=setting.layout,
                data_on_device=True,
                optimizer="momentum" if setting.mode == "training" else None,
            )

        workload = job(batch)
        seen[workload] = seen.get(workload, 0) + 1
        step = row.number(f"{prefix}_step_time", above=0) / 1e3
        result.add(
            "solo",
            setting.campaign,
            device=setting.device,
            workload=workload,
            step_time_s=step,
            samples_per_s=batch / step,
            gpus=1,
            repeat=seen[workload] if seen[workload] > 1 else None,
            framework_version=setting.torch,
        )
        _add_workload(result, setting, row, workload, counts, (name, size))
        if setting.mode == "training" and seen[workload] == 1:
            _add_bracket(result, setting, job, batch, row)


def _add_workload(
    result: Import,
    setting: _Setting,
    row: CsvRow,
    workload: str,
    counts: dict[tuple[str, int], tuple[float, float]],
    key: tuple[str, int],
) -> None:
    if row.cells.get("infer_gmacs", "").strip() and row.cells.get("infer_macts", "").strip():
        stated = (row.number("infer_gmacs", least=0) * 1e9, row.number("infer_macts", least=0) * 1e6)
        counts.setdefault(key, stated)
    elif setting.mode == "inference":
        stated = None
    else:
        stated = counts.get(key)
    if stated is None:
        result.flagged["multiply-adds and activations not stated"] += 1
    millions = row.text("param_count")
    result.add_workload(
        setting.campaign,
        workload,
        parameter_count=round(row.number("param_count", least=0) * 1e6) if millions else None,
        macs_per_sample=stated[0] if stated else None,
        activations_per_sample=stated[1] if stated else None,
    )


def _add_bracket(
    result: Import, setting: _Setting, job: Callable[[int], str], batch: int, row: CsvRow
) -> None:
    """Add the batch that ran, and the next larger one that did not."""
    if batch not in TRAINING_BATCHES:
        raise row.fault("train_batch_size", "one of " + ", ".join(map(str, TRAINING_BATCHES)))
    common = {"device": setting.device, "scope": "device"}
    result.add(
        "memory", setting.campaign, workload=job(batch), upper_bound_bytes=TRAINING_DEVICE_BYTES, **common
    )
    position = TRAINING_BATCHES.index(batch)
    if position:
        result.add(
            "memory",
            setting.campaign,
            workload=job(TRAINING_BATCHES[position - 1]),
            lower_bound_bytes=TRAINING_DEVICE_BYTES,
            **common,
        )
