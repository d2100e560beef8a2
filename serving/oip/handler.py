"""The protocol's calls.

The model `cotenant` takes N co-location sets of up to M jobs: `device` [N], `jobs` [N, M] (SPECs; an empty
string is no job), optionally `sharing` [N]. It returns [N, M] tensors per job, zero where there is no job
(`mask` is false there), and [N] tensors per set.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import QUANTITIES, MemberPrediction, Prediction
from profiling.errors import CotenantError, InputError, LimitError, UnavailableError, UnknownNameError
from profiling.workload import ColocationSet
from serving.handlers.jobs import admit_sets
from serving.oip import tensors
from serving.schemas import job_of
from serving.service import Service

Mask = NDArray[np.bool_]
MODEL = "cotenant"
PLATFORM = "cotenant_colocation"
_BOUNDED = ("step_time_s", "slowdown", "memory_bytes")
_PER_JOB = (*QUANTITIES, *(f"{n}_{b}" for n in _BOUNDED for b in ("lower", "upper")))
OUTPUTS = ("mask", *_PER_JOB, "in_domain", "total_memory_bytes", "total_memory_bytes_upper", "fits")
_FLAGS = ("mask", "in_domain", "fits")
_PER_SET = ("total_memory_bytes", "total_memory_bytes_upper", "fits")


class _Outputs:
    """The output tensors of a request with this mask [N, M], filled set by set."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.model_version, self._row = mask, "", 0
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            name: np.zeros(
                mask.shape[:1] if name in _PER_SET else mask.shape, bool if name in _FLAGS else float
            )
            for name in OUTPUTS
        }
        self.arrays["mask"] = mask

    def take(self, predictions: list[Prediction]) -> None:
        """Fill in the predictions of the next sets."""
        arrays = self.arrays
        for row, prediction in enumerate(predictions, self._row):
            for column, member in zip(
                np.flatnonzero(self.mask[row]).tolist(), prediction.members, strict=True
            ):
                arrays["in_domain"][row, column] = member.in_domain
                _fill(arrays, (row, column), member)
            arrays["total_memory_bytes"][row] = prediction.total_memory_bytes.value
            arrays["total_memory_bytes_upper"][row] = prediction.total_memory_bytes.upper
            arrays["fits"][row] = prediction.fits
            self.model_version = prediction.model_version
        self._row += len(predictions)


def _fill(arrays: dict[str, np.ndarray[Any, Any]], at: tuple[int, int], member: MemberPrediction) -> None:
    for name in QUANTITIES:
        arrays[name][at] = getattr(member, name).value
    for name in _BOUNDED:
        arrays[f"{name}_lower"][at] = getattr(member, name).lower
        arrays[f"{name}_upper"][at] = getattr(member, name).upper


def metadata(service: Service, name: str, version: str | None = None) -> dict[str, Any]:
    """The model's inputs and outputs. Raises `UnknownNameError`."""
    _known(service, name, version)
    return {
        "name": MODEL,
        "versions": versions(service),
        "platform": PLATFORM,
        "inputs": [
            {"name": "device", "datatype": "BYTES", "shape": [-1]},
            {"name": "jobs", "datatype": "BYTES", "shape": [-1, -1]},
            {"name": "sharing", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [
            {
                "name": output,
                "datatype": "BOOL" if output in _FLAGS else "FP64",
                "shape": [-1] if output in _PER_SET else [-1, -1],
            }
            for output in OUTPUTS
        ],
    }


def versions(service: Service) -> list[str]:
    """The version in service, if any."""
    return [service.life.serving.version] if service.life.serving else []


def statistics(service: Service, name: str, version: str | None = None) -> dict[str, Any]:
    """Request statistics of the model since this process started. Raises `UnknownNameError`."""
    _known(service, name, version)
    counts = service.oip
    seconds = {"count": counts.requests, "ns": round(counts.seconds * 1e9)}
    failed = {"count": counts.failures, "ns": 0}
    own = [
        {"name": MODEL, "version": number, "inference_count": counts.sets, "execution_count": counts.requests,
         "inference_stats": {"success": seconds, "fail": failed}}
        for number in versions(service)
    ]  # fmt: skip
    return {"model_stats": own}


def check_ready(service: Service, name: str, version: str | None = None) -> None:
    """Raises `UnknownNameError` for another model, `UnavailableError` while none serves."""
    if name != MODEL:
        _known(service, name, version)
    service.life.current()
    _known(service, name, version)
    if service.stuck_lanes():
        raise UnavailableError("a lane is stuck", got=", ".join(service.stuck_lanes()))


async def infer(
    service: Service, name: str, version: str | None, raw: bytes, header_length: str | None
) -> tuple[bytes, bytes]:
    """Predict the request's sets. Returns the JSON of the response and the binary tensors after it."""
    started = time.perf_counter()
    try:
        answer = await _infer(service, name, version, raw, header_length)
    except CotenantError:
        service.oip.failures += 1
        raise
    service.oip.requests += 1
    service.oip.seconds += time.perf_counter() - started
    return answer


async def _infer(
    service: Service, name: str, version: str | None, raw: bytes, header_length: str | None
) -> tuple[bytes, bytes]:
    check_ready(service, name, version)
    body, sets, mask = await service.batcher.off_loop(len(raw), _read, service, raw, header_length)
    names, as_bytes = tensors.wanted(body, OUTPUTS)
    await admit_sets(service, sets)
    outputs = _Outputs(mask)
    await service.batcher.each_part(sets, outputs.take)
    service.oip.sets += len(sets)
    answer: dict[str, Any] = {"model_name": MODEL, "model_version": outputs.model_version}
    if isinstance(body.get("id"), str):
        answer["id"] = body["id"]
    chosen = {name: outputs.arrays[name] for name in names}
    return await service.batcher.apart(len(sets), tensors.write_response, answer, chosen, as_bytes)


def _read(
    service: Service, raw: bytes, header_length: str | None
) -> tuple[dict[str, Any], list[ColocationSet], Mask]:
    body, binary = tensors.read_request(raw, header_length)
    return body, *_sets(service, tensors.strings(body, binary))


def _known(service: Service, name: str, version: str | None) -> None:
    if name != MODEL:
        raise UnknownNameError("unknown model", expected=MODEL, got=repr(name[:80]))
    if version is not None and version not in versions(service):
        service.life.current()  # raises while there is none
        raise UnknownNameError(
            "unknown model version", expected=", ".join(versions(service)), got=repr(version[:80])
        )


def _sets(service: Service, inputs: dict[str, tensors.Strings]) -> tuple[list[ColocationSet], Mask]:
    """The sets, and a mask [N, M] of where there is a job."""
    for key in inputs:
        if key not in ("device", "jobs", "sharing"):
            raise InputError("unknown input", expected="device, jobs, sharing", got=repr(key[:80]))
    if "device" not in inputs or "jobs" not in inputs:
        raise InputError("an input is missing", expected="device and jobs", got=", ".join(inputs) or "none")
    device, jobs = inputs["device"], inputs["jobs"]
    count = len(device.values)
    sharing = inputs.get("sharing", tensors.Strings((count,), ["time-slice"] * count))
    width = jobs.shape[1] if len(jobs.shape) == 2 else 1
    if len(device.shape) != 1 or sharing.shape != (count,) or jobs.shape[0] != count:
        raise InputError("shapes do not agree", expected="device [N], jobs [N, M], sharing [N]")
    if count > service.config.batch_sets:
        raise LimitError(
            "the batch is too large", expected=f"at most {service.config.batch_sets} sets", got=count
        )
    if width > service.config.set_jobs:
        raise LimitError(
            "a co-location set is too large", expected=f"at most {service.config.set_jobs} jobs", got=width
        )
    sets = []
    for row in range(count):
        specs = [text for text in jobs.values[row * width : (row + 1) * width] if text]
        sets.append(ColocationSet(device.values[row], tuple(map(job_of, specs)), sharing.values[row]))
    return sets, np.array([bool(text) for text in jobs.values]).reshape(count, width)
