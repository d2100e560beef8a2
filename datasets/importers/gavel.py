"""Gavel's throughputs of jobs alone and in pairs (Narayanan et al., OSDI 2020; MIT).

There are two files and two campaigns. Their numbers for "the same" pair differ by a fifth on P100 and V100,
so a pair is only compared with a solo run of its own file. Values are steps per second:

    {gpu: {job: {"null": alone, other job: [of job, of other job]}}}

A job is `Model (batch size n)`; the 2020 file writes `('Model (batch size n)', gpus)`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from datasets.importers.base import Import, find_file, find_file_if_any, spec
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.files import read_json
from profiling.zoo.aliases import ALIASES

FILES = {
    "gavel-2020": "scheduler/simulation_throughputs.json",
    "gavel-2019": "scheduler/notebooks/figures/motivation/oracle_throughputs.json",
}
DATASETS = {
    "ResNet-18": "CIFAR-10",
    "ResNet-50": "ImageNet",
    "Transformer": "Multi30k",
    "LM": "Wikitext-2",
    "Recommendation": "ML-20M",
    "CycleGAN": "monet2photo",
    "A3C": "Pong",
}
_SPREAD = "_unconsolidated"  # over several servers
_JOB = re.compile(r"^(?:\('(?P<quoted>[^']+)', (?P<gpus>\d+)\)|(?P<plain>[^(']+(?:\(batch size \d+\))?))$")
_NAME = re.compile(r"^(?P<model>[^( ]+)(?: \(batch size (?P<batch>\d+)\))?$")


def read(folder: Path) -> Import:
    """Read whichever of the two files `folder` has, by upstream path or bare name.

    Raises:
        InputError: neither is present, one is not in Gavel's format, or a GPU is not in the catalogue.
    """
    result = Import("gavel")
    find_file(folder, *FILES.values())
    for campaign, name in FILES.items():
        path = find_file_if_any(folder, name)
        if path is None:
            result.notes.append(f"{Path(name).name} is missing: skipping campaign {campaign}")
        else:
            _read_file(result, campaign, path)
    result.notes.append("V100 pairs of 2020 were probably measured under MPS; the others were time-sliced")
    result.notes.append("gpus > 1: Gavel states steps/s of all workers together; step time = gpus / that")
    return result


def _read_file(result: Import, campaign: str, path: Path) -> None:
    body = read_json(path)
    if not isinstance(body, dict) or not body or not all(isinstance(jobs, dict) for jobs in body.values()):
        raise InputError(
            f"{path} is not Gavel's", expected="{gpu: {job: {other job: steps/s}}}", got="another shape"
        )
    for gpu, jobs in body.items():
        device = _device(path, gpu.removesuffix(_SPREAD))
        placement = _SPREAD[1:] if gpu.endswith(_SPREAD) else "consolidated"
        alone = {}
        for job, others in jobs.items():
            if not isinstance(others, dict) or not isinstance(others.get("null"), int | float):
                raise _fault(path, job, f"{gpu}: {{'null': steps/s, ...}}", others)
            alone[job] = _rate(path, job, others["null"])
            result.read += 1
            _add_alone(result, campaign, path, device, placement, job, alone[job])
        seen: dict[tuple[str, str], list[float]] = {}
        for job, others in jobs.items():
            for other, value in others.items():
                if other == "null":
                    continue
                result.read += 1
                if not isinstance(value, list) or len(value) != 2:
                    raise _fault(path, job, f"{gpu}: [steps/s, steps/s] beside {other}", value)
                rates = [_rate(path, job, rate) for rate in value]
                if placement != "consolidated":
                    result.dropped["pair repeated under *_unconsolidated"] += 1
                elif (other, job) in seen and other != job:
                    if seen[(other, job)] != rates[::-1]:
                        mirrored = f"{gpu}: {seen[(other, job)][::-1]} beside {other}, as in the mirror copy"
                        raise _fault(path, job, mirrored, value)
                    result.dropped["mirror copy of a pair"] += 1
                else:
                    seen[(job, other)] = rates
                    _add_pair(result, campaign, path, device, (job, other), rates, alone)


def _add_alone(
    result: Import, campaign: str, path: Path, device: str, placement: str, job: str, rate: float
) -> None:
    model, dataset, batch, gpus = _job(path, job)
    workload = spec(model, batch_size=batch)
    batch = batch or 1
    if rate == 0:
        result.dropped["failed or out of memory alone"] += 1
        return
    row = {"device": device, "workload": workload, "batch_size": batch}
    if gpus > 1:
        result.add(
            "scaling",
            campaign,
            **row,
            gpus=gpus,
            placement=placement,
            step_time_s=gpus / rate,
        )
    elif placement != "consolidated":
        result.dropped["solo run repeated under *_unconsolidated"] += 1
    else:
        result.add_workload(campaign, workload, batch_size=batch, dataset=dataset)
        result.add(
            "solo",
            campaign,
            **row,
            step_time_s=1 / rate,
            samples_per_s=batch * rate,
            gpus=1,
        )


def _add_pair(
    result: Import,
    campaign: str,
    path: Path,
    device: str,
    jobs: tuple[str, str],
    rates: list[float],
    alone: dict[str, float],
) -> None:
    members = [_job(path, job) for job in jobs]
    if any(gpus > 1 for *_, gpus in members):
        # The paper's simulator never shares GPUs between distributed jobs, so these cells were filled with 0.
        result.dropped["multi-GPU pair, not profiled"] += 1
        return
    if 0 in rates:
        result.dropped["pair failed or out of memory"] += 1
        return
    if not all(alone.get(job) for job in jobs):
        result.dropped["pair without a solo run"] += 1
        return
    workloads = [spec(model, batch_size=batch) for model, _, batch, _ in members]
    result.flagged["censored: capped at the solo rate"] += sum(
        rate == alone[job] for job, rate in zip(jobs, rates, strict=True)
    )
    for member, (job, rate) in enumerate(zip(jobs, rates, strict=True)):
        result.add(
            "colocation",
            campaign,
            set_id=f"{campaign}/{device}/{' + '.join(sorted(workloads))}",
            member=member,
            device=device,
            sharing="mps" if (campaign, device) == ("gavel-2020", "v100") else "time-slice",
            workload=workloads[member],
            batch_size=members[member][2] or 1,
            throughput_ratio=rate / alone[job],
            step_time_s=1 / rate,
            solo_step_time_s=1 / alone[job],
            # The publisher caps a co-located rate at the solo rate; the measured one was at least that.
            censored=rate == alone[job],
            is_target=True,
        )


def _device(path: Path, gpu: str) -> str:
    """The catalogue's name of a GPU: sets are recognised as learned by it, and shared as on it."""
    try:
        return get_device(gpu).name
    except InputError as error:
        raise error.at(path) from None


def _job(path: Path, text: str) -> tuple[str, str, int | None, int]:
    """(architecture, data set, batch size or None, GPUs) of a job name."""
    match = _JOB.match(text)
    name = _NAME.match((match["quoted"] or match["plain"]).strip()) if match else None
    if match is None or name is None or name["model"] not in DATASETS:
        raise _fault(
            path, text, "a job such as ('ResNet-18 (batch size 16)', 1) of " + ", ".join(DATASETS), text
        )
    batch = int(name["batch"]) if name["batch"] else None
    return (ALIASES[name["model"]], DATASETS[name["model"]], batch, int(match["gpus"] or 1))


def _rate(path: Path, job: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise _fault(path, job, "steps/s, a number from 0", value)
    return float(value)


def _fault(path: Path, key: str, expected: str, got: Any) -> InputError:
    """An error that names the first line with `key`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if f'"{key}"' in text), 0)
    return InputError(f"{path}, line {line}, job {key}", expected=expected, got=repr(got)[:80])
