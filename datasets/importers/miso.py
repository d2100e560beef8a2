"""One to seven training jobs together under MPS on an A100 40 GB (MISO, Li et al., SoCC 2022; MIT).

`unet/input_data.npy` [mixes, 3, 7]: mean step of every job with all processes limited to 100, 50 or 14 % of
the SMs, divided by the longest of the three, so only ratios between shares are known. `unet/target_data.npy`
[mixes, 3, 7]: the same jobs alone on slices 7g, 4g, 3g, which identifies the job of each column. Every mix
occurs five times with its columns permuted. Positions without a job hold tiny fillers, so seven processes
always run.

`mps/models/logs/mig/SLICE_MODEL_trainBATCH.json`: seconds of every step of a job alone on a MIG slice, by
epoch, timed on the host.
`mps/configs/util_collection/*.json`: SM %, memory-bandwidth %, W and MiB of a job alone, by batch; the MiB
are TensorFlow's pool.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.importers.base import MEBIBYTE, Import, find_files, lookup, read_object, spec
from datasets.importers.numpy_only import load_npy
from profiling.errors import InputError
from profiling.zoo.aliases import ALIASES

DEVICE, PROCESSES = "a100", 7
SHARES = (1.0, 0.5, 0.14)
# Upstream gives the steps of a job on slices relative to the longest of them, rounded to four decimals.
_PROFILE_SLICES = ("7g.40gb", "4g.20gb", "3g.20gb")
_FILLER = np.array([8 / 9, 1.0, 8 / 9])
_TOLERANCE = 6e-5
_LOG = re.compile(r"(?P<slice>\dg)\.(?P<memory>\d+gb)_(?P<model>\w+)_train(?P<batch>\d+)")
_OPTIMIZERS = {"embedding": "rmsprop"}
# Files of `util_collection` -> column of `solo`, and the size of one unit.
_USAGE = {
    "util_sm": ("utilization_ratio", 0.01),
    "util_mem": ("memory_bandwidth_ratio", 0.01),
    "power": ("power_w", 1.0),
}

Job = tuple[str, int]


def read(folder: Path) -> Import:
    """Read mixes, steps on slices and usage below `folder`.

    Raises:
        InputError: a file is missing or malformed, or a column is not a known job.
    """
    result = Import("miso")
    steps = _steps_on_slices(folder)
    for (job, name), seconds in sorted(steps.items()):
        result.read += 1
        step = float(np.mean(seconds[1:]))  # the first includes compilation
        workload = _spec(job)
        result.add_workload("miso", workload)
        result.add(
            "solo",
            "miso",
            device=f"{DEVICE}:mig={name.partition('.')[0]}",
            workload=workload,
            step_time_s=step,
            samples_per_s=job[1] / step,
            gpus=1,
        )
    _add_usage(result, folder)
    _add_mixes(result, folder, steps)
    result.notes.append(
        "no time of a mix is absolute: a member's ratio between two shares is what was published"
    )
    result.notes.append("deepspeech2's inputs vary in length: its steps spread by 5 to 14 %")
    return result


def _spec(job: Job) -> str:
    model, batch = job
    return spec(
        lookup(ALIASES, f"miso/{model}", "MISO"),
        batch_size=batch,
        framework="tensorflow",
        # How TensorFlow 2 runs fp32 on an A100.
        precision="tf32",
        optimizer=_OPTIMIZERS.get(model, "adam"),
    )


def _steps_on_slices(folder: Path) -> dict[tuple[Job, str], list[float]]:
    """((model, batch), slice) to the seconds of all steps in order."""
    steps_s: dict[tuple[Job, str], list[float]] = {}
    for path in find_files(folder, "logs/mig/*_train*.json"):
        match = _LOG.fullmatch(path.stem)
        if match is None:
            raise InputError(f"{path} has another name", expected="SLICE_MODEL_trainBATCH.json")
        body = read_object(path, "{epoch: [seconds]}")
        try:
            seconds = [float(s) for epoch in sorted(body, key=int) for s in body[epoch]]
        except (TypeError, ValueError) as error:
            raise InputError(f"{path} is not a log", expected="{epoch: [seconds]}", got=str(error)) from None
        if len(seconds) < 2 or not all(0 < s < math.inf for s in seconds):
            raise InputError(f"{path}: steps", expected="at least 2, in seconds above 0", got=len(seconds))
        job = (match["model"], int(match["batch"]))
        steps_s[job, f"{match['slice']}.{match['memory']}"] = seconds
    return steps_s


def _add_usage(result: Import, folder: Path) -> None:
    rows: dict[Job, dict[str, float]] = {}
    for path in find_files(folder, "util_collection/*.json"):
        kind, _, model = path.stem.rpartition("_")
        by_batch = read_object(path, "{batch size: number}")
        result.read += len(by_batch)
        if model == "dummy":
            result.dropped["usage of the filler"] += len(by_batch)
            continue
        for batch, value in by_batch.items():
            if not batch.isdecimal() or not isinstance(value, int | float):
                raise InputError(
                    f"{path} has an unexpected shape",
                    expected="{batch size: number}",
                    got=f"{batch}: {value!r}"[:80],
                )
            job = (model, int(batch))
            if kind == "memory":
                result.add(
                    "memory",
                    "miso",
                    device=DEVICE,
                    workload=_spec(job),
                    memory_bytes=value * MEBIBYTE,
                    scope="pool",
                )
            else:
                column, unit = lookup(_USAGE, kind, path)
                rows.setdefault(job, {})[column] = value * unit
    for job, usage in sorted(rows.items()):
        result.add("solo", "miso", device=DEVICE, workload=_spec(job), gpus=1, **usage)


def _add_mixes(result: Import, folder: Path, steps: dict[tuple[Job, str], list[float]]) -> None:
    inputs, targets = (
        load_npy(find_files(folder, f"unet/{name}_data.npy")[0]) for name in ("input", "target")
    )
    for array in (inputs, targets):
        # Of another type, it may have no shape.
        shape = np.shape(array)
        if len(shape) != 3 or shape != (len(inputs), len(SHARES), PROCESSES) or not (array > 0).all():
            raise InputError(
                "MISO's mixes have an unexpected shape", expected="[n, 3, 7], above 0", got=str(shape)
            )
    who = _who(targets, _profiles(steps))
    seen: set[tuple[Any, ...]] = set()
    times: Counter[tuple[Job, ...]] = Counter()
    for number in range(len(inputs)):
        result.read += PROCESSES
        # The order of columns has no meaning: mixes that are equal after sorting their columns are the same.
        members = sorted(
            (who[number * PROCESSES + place], tuple(inputs[number, :, place].tolist()))
            for place in range(PROCESSES)
        )
        if tuple(members) in seen:
            result.dropped["permuted copy of a mix"] += PROCESSES
            continue
        seen.add(tuple(members))
        real = [(job, shares) for job, shares in members if job != _NOBODY]
        result.dropped["filler process"] += PROCESSES - len(real)
        jobs = tuple(job for job, _ in real)
        times[jobs] += 1
        _add_mix(result, [(_spec(job), shares) for job, shares in real], times[jobs])


_NOBODY: Job = ("", 0)


def _add_mix(result: Import, members: list[tuple[str, tuple[float, ...]]], number: int) -> None:
    names = " + ".join(workload for workload, _ in members)
    set_id = f"miso/{DEVICE}/{names}" + (f" #{number}" if number > 1 else "")
    for member, (workload, steps) in enumerate(members):
        for share, step in zip(SHARES[:-1], steps[:-1], strict=True):
            result.add(
                "mixes",
                "miso",
                set_id=set_id,
                member=member,
                device=DEVICE,
                sharing="mps",
                processes=PROCESSES,
                workload=workload,
                numerator_sm_share_ratio=share,
                denominator_sm_share_ratio=SHARES[-1],
                log_step_time_ratio=math.log(step / steps[-1]),
            )


def _profiles(steps: dict[tuple[Job, str], list[float]]) -> dict[Job, NDArray[np.float64]]:
    speeds = {}
    for job in {job for job, _ in steps}:
        if all((job, name) in steps for name in _PROFILE_SLICES):
            means = np.array([round(float(np.mean(steps[job, name][1:])), 4) for name in _PROFILE_SLICES])
            speeds[job] = means / means.max()
    return speeds


def _who(targets: NDArray[np.float64], profiles: dict[Job, NDArray[np.float64]]) -> list[Job]:
    """The job of each column of [mixes, 3, 7], identified by its steps on slices; `_NOBODY` for a filler."""
    jobs = list(profiles)
    columns = targets.transpose(0, 2, 1).reshape(-1, 1, len(_PROFILE_SLICES))
    same = np.abs(columns - np.array([profiles[job] for job in jobs])).max(axis=2) < _TOLERANCE
    filler = np.abs(columns[:, 0] - _FILLER).max(axis=1) < _TOLERANCE
    matches = same.sum(axis=1)
    unclear = np.flatnonzero((matches > 1) | ((matches == 0) & ~filler))
    if len(unclear):
        raise InputError(
            f"mix {unclear[0] // PROCESSES} of target_data.npy: a column is not one job",
            expected="the steps of one job on 7g, 4g and 3g",
            got=f"{columns[unclear[0], 0].tolist()}, like {matches[unclear[0]]}",
        )
    return [
        jobs[position] if is_listed else _NOBODY
        for position, is_listed in zip(same.argmax(1), matches, strict=True)
    ]
