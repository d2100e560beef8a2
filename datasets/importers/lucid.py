"""Lucid's pairs on an RTX 3090 (Hu et al., ASPLOS 2023; S-Lab License 1.0: non-commercial use only).

`single_data.csv` has samples/s, SM %, memory-bandwidth % and MiB of each job alone; `colocate_info.csv` has
the speed of each member relative to its solo speed, and SM %, bandwidth % and MiB of both together.
"""

from __future__ import annotations

from pathlib import Path

from datasets.importers.base import MEBIBYTE, CsvRow, CsvRows, Import, find_file, spec
from profiling.zoo.aliases import ALIASES

DEVICE = "rtx-3090"
MODELS = [
    "ResNet18",
    "MobileNetV2",
    "EfficientNet",
    "VGG",
    "MobileNetV3",
    "ResNet50",
    "DCGAN",
    "LSTM",
    "NeuMF",
    "PointNet",
    "BERT",
    "Transformer",
    "PPO",
    "TD3",
]
# Their speeds in pairs are all exactly 1.0, and their solo speeds have no stated unit: used as partners,
# never as targets.
HARD_CODED = frozenset({"ppo-lunarlander", "td3-bipedalwalker"})


def read(folder: Path) -> Import:
    """Read both files from `folder`, by upstream path or bare name.

    Raises:
        InputError: a file is missing or malformed; with line and column.
    """
    result = Import("lucid")
    singles = find_file(folder, "simulation/analyzer/single_data.csv")
    pairs = find_file(folder, "simulation/data/colocate_info.csv")
    alone = _read_singles(result, singles)
    _read_pairs(result, pairs, alone)
    result.notes.append(
        "13 % of upstream's ratios exceed 1.05: solo runs were measured cold (noise, sd 0.046)"
    )
    return result


def _read_singles(result: Import, path: Path) -> dict[str, float]:
    """Step time by SPEC."""
    alone: dict[str, float] = {}
    columns = ("model", "dataset", "batchsize", "amp", "speed", "gpu_util", "gmem_util", "gmem")
    for row in CsvRows(path, columns):
        result.read += 1
        model, batch, workload = _job(row, "")
        speed = row.number("speed", above=0)
        known = model not in HARD_CODED
        if not known:
            result.flagged["hard-coded: solo speed without a unit left empty"] += 1
        else:
            alone[workload] = batch / speed
        result.add_workload("lucid", workload, dataset=row.text("dataset"))
        result.add(
            "solo",
            "lucid",
            device=DEVICE,
            workload=workload,
            step_time_s=batch / speed if known else None,
            samples_per_s=speed if known else None,
            memory_bytes=row.number("gmem", above=0) * MEBIBYTE,
            utilization_ratio=_percent(row, "gpu_util"),
            memory_bandwidth_ratio=_percent(row, "gmem_util"),
            gpus=1,
        )
    return alone


def _read_pairs(result: Import, path: Path, alone: dict[str, float]) -> None:
    columns = tuple(f"{name}{n}" for n in "12" for name in ("model", "gpu_num", "batchsize", "amp", "speed"))
    seen: dict[str, int] = {}
    for row in CsvRows(path, (*columns, "gpu_util", "gmem_util", "gmem")):
        result.read += 1
        if row.integer("gpu_num1") != 1 or row.integer("gpu_num2") != 1:
            result.dropped["pair of multi-GPU jobs"] += 1
            continue
        jobs = [_job(row, n) for n in "12"]
        name = " + ".join(sorted(workload for *_, workload in jobs))
        seen[name] = seen.get(name, 0) + 1
        set_id = f"lucid/{DEVICE}/{name}" + (f" #{seen[name]}" if seen[name] > 1 else "")
        for member, (model, _, workload) in enumerate(jobs):
            ratio = row.number(f"speed{member + 1}", above=0)
            solo = alone.get(workload)
            if model in HARD_CODED:
                result.flagged["hard-coded: ratio of 1, partner only"] += 1
            elif solo is None:
                result.flagged["job without a row in single_data.csv: its step times are unknown"] += 1
            result.add(
                "colocation",
                "lucid",
                set_id=set_id,
                member=member,
                device=DEVICE,
                sharing="time-slice",
                workload=workload,
                throughput_ratio=ratio,
                step_time_s=solo / ratio if solo else None,
                solo_step_time_s=solo,
                set_memory_bytes=row.number("gmem", above=0) * MEBIBYTE,
                set_utilization_ratio=_percent(row, "gpu_util"),
                set_memory_bandwidth_ratio=_percent(row, "gmem_util"),
                censored=False,
                is_target=model not in HARD_CODED,
            )


def _job(row: CsvRow, suffix: str) -> tuple[str, int, str]:
    """(architecture, batch size, SPEC)."""
    name = row.text(f"model{suffix}")
    if name not in MODELS:
        raise row.fault(f"model{suffix}", "one of " + ", ".join(MODELS))
    amp = row.text(f"amp{suffix}")
    if amp not in ("0", "1"):
        raise row.fault(f"amp{suffix}", "0 or 1")
    batch = row.integer(f"batchsize{suffix}", least=1)
    precision = "amp" if amp == "1" else None
    return ALIASES[name], batch, spec(ALIASES[name], batch_size=batch, precision=precision)


def _percent(row: CsvRow, column: str) -> float:
    value = row.number(column, least=0)
    if value > 100:
        raise row.fault(column, "a percentage from 0 to 100")
    return value / 100
