"""The environment of a measurement: machine, driver, versions, and a fingerprint of them."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from profiling.devices.discovery import processor_name, visible_gpu
from profiling.devices.nvml import open_nvml
from profiling.devices.visible import no_answer, visible_handle
from profiling.errors import UnavailableError

# Packages of torch's CUDA builds that choose the kernels.
_GPU_LIBRARIES = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
# Variables of the shell that reach the jobs and change their memory or speed.
_GPU_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)


def provenance(command: str) -> dict[str, Any]:
    """The command, date (UTC) and machine of an evaluation, for its report."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return {"command": command, "date": today, "machine": describe_environment("cpu")}


def describe_environment(device: str) -> dict[str, Any]:
    """Machine, software and device, with a `fingerprint` of them: what stays the same from run to run.

    Unreadable fields are omitted; no privileges are required.

    Raises:
        UnavailableError: `cuda`, and CUDA_VISIBLE_DEVICES names no GPU of this machine.
    """
    import psutil

    facts: dict[str, Any] = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "device": device,
        **_versions(("torch", "numpy", *(_GPU_LIBRARIES if device == "cuda" else ()))),
        **(_gpu() if device == "cuda" else _frequency_policy()),
        **(
            {name: os.environ[name] for name in _GPU_VARIABLES if name in os.environ}
            if device == "cuda"
            else {}
        ),
    }
    body = json.dumps(facts, sort_keys=True, default=str).encode()
    return {**facts, "fingerprint": hashlib.sha256(body).hexdigest()[:16]}


def device_name(device: str) -> str:
    """Catalogue name of `device` on this machine (`cpu`, `h200`, ...).

    Raises:
        UnavailableError: `cuda` on a machine where no NVIDIA driver answers.
    """
    if device == "cpu":
        return "cpu"
    return visible_gpu().name


def _frequency_policy() -> dict[str, Any]:
    try:
        path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        return {"frequency_governor": path.read_text().strip()}
    except OSError:
        return {}


def _versions(packages: Sequence[str]) -> dict[str, Any]:
    """From package metadata, because importing torch in the measuring process could occupy device memory."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, Any] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _gpu() -> dict[str, Any]:
    """Driver, GPU name, power limit, clocks and modes (compute, MIG, ECC, persistence), from NVML."""
    with ExitStack() as opened:
        try:
            nvml = opened.enter_context(open_nvml())
        except UnavailableError as error:
            return {"nvml": f"not available: {type(error.__cause__).__name__}"}
        try:
            handle = visible_handle(nvml)
        except nvml.NVMLError as error:
            raise no_answer(error) from None
        facts: dict[str, Any] = {}
        for name, read in {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "gpu": lambda: nvml.nvmlDeviceGetName(handle),
            "gpu_count": nvml.nvmlDeviceGetCount,
            "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion,
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(handle),
            "mig_mode": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
            "max_sm_clock_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "max_memory_clock_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
            "ecc_mode": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
            "persistence_mode": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        }.items():
            try:
                value = read()
                facts[name] = value.decode() if isinstance(value, bytes) else value
            except Exception:  # an NVML error, or a function missing from these bindings
                continue
        return facts
