"""What a training job takes of its GPU, by NVML (`nvidia-ml-py`). Needs nothing else; the Python client contains a copy."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from statistics import fmean
from typing import Any

log = logging.getLogger("cotenant.step_times")

_PREFIXES = ("GPU-", "MIG-")


class GpuUsage:
    """Samples the GPU on which this process runs.

    That is the one on which torch has most memory, or else the first of `CUDA_VISIBLE_DEVICES`, if it names an index or a
    whole UUID. Without NVML, a driver or a reading (utilisation under MIG), there is less in `take`.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpu: Any = None
        self._busy, self._memory_bytes = list[float](), 0
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # no bindings, library or driver
            log.info("utilisation and memory are not reported: %s", error)
            return
        self._nvml = pynvml

    def sample(self) -> None:
        """Read NVML; a second after the last time, say, because its readings are means of about that long."""
        if self._nvml is None:
            return
        try:
            self._gpu = self._gpu or self._handle()
        except Exception as error:  # NVML's, or torch's
            log.debug("the job's GPU is not known: %s", error)
            return
        try:
            self._busy.append(self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu / 100)
        except self._nvml.NVMLError as error:
            log.debug("no utilisation: %s", error)
        try:
            self._memory_bytes = max(self._memory_bytes, self._used_bytes())
        except (self._nvml.NVMLError, AttributeError) as error:  # bindings before 11.5 lack `nvmlMemory_v2`
            log.debug("no memory: %s", error)

    def take(self) -> dict[str, float]:
        """Mean `utilization_ratio` of the GPU and largest `memory_bytes` since the last call.

        The memory is that of this process, or all that is in use if NVML hides processes, as in containers.
        """
        taken: dict[str, float] = {"utilization_ratio": fmean(self._busy)} if self._busy else {}
        if self._memory_bytes:
            taken["memory_bytes"] = float(self._memory_bytes)
        self._busy, self._memory_bytes = [], 0
        return taken

    def uuid(self) -> str:
        """Of the GPU, or its MIG slice, without NVIDIA's prefix; empty if it is not known."""
        found = visible_uuid()
        if found or self._nvml is None:
            return found
        try:
            # Not kept for `sample`: torch may still choose another one.
            return _plain(self._nvml.nvmlDeviceGetUUID(self._seen_of(self._gpu or self._handle())))
        except Exception as error:  # NVML's, or torch's
            log.debug("the job's GPU is not known: %s", error)
            return ""

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _handle(self) -> Any:
        if uuid := _uuid_in(_torch_properties()):
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        entry = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        if entry.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(entry))
        return self._nvml.nvmlDeviceGetHandleByUUID(entry)

    def _seen_of(self, gpu: Any) -> Any:
        """The GPU, or the only slice of it that this process sees. Raises `ValueError` if there are several."""
        n = self._nvml
        try:
            if not n.nvmlDeviceGetMigMode(gpu)[0]:
                return gpu
        except n.NVMLError_NotSupported:
            return gpu
        slices = []
        for number in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(n.NVMLError_NotFound):
                slices.append(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number))
        (only,) = slices
        return only

    def _used_bytes(self) -> int:
        n = self._nvml
        for process in n.nvmlDeviceGetComputeRunningProcesses(self._gpu):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
        # Only this version leaves out what the driver keeps.
        return int(n.nvmlDeviceGetMemoryInfo(self._gpu, version=n.nvmlMemory_v2).used)


def visible_uuid() -> str:
    """Of this process's GPU, or its slice, by torch or the environment; without NVIDIA's prefix, empty if not known."""
    named = _named()
    if named.startswith("MIG-"):  # for which torch may give the UUID of the card, that all its slices share
        return _plain(named)
    try:
        own = _torch_properties()
    except RuntimeError:
        return ""
    if own is not None and " MIG " in own.name:
        return ""
    return _uuid_in(own) or _plain(named)


def _named() -> str:
    """The only device that the environment makes visible, if by its UUID; else empty."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):  # of the process, of its container
        entries = os.environ.get(name, "").split(",")
        if len(entries) == 1 and entries[0].startswith(_PREFIXES):
            return entries[0].strip()
    return ""


def _torch_properties() -> Any:
    """Of the GPU that torch uses; None without torch. Raises `RuntimeError` while torch has no memory on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    # Not the current device, which every thread has for itself.
    own = max(range(torch.cuda.device_count()), key=torch.cuda.memory_reserved)
    if not torch.cuda.memory_reserved(own):
        raise RuntimeError("torch has no memory on a GPU yet")
    return torch.cuda.get_device_properties(own)


def _uuid_in(properties: Any) -> str:
    """Empty if torch does not say."""
    return str(getattr(properties, "uuid", ""))


def _plain(uuid: str | bytes) -> str:
    """Without the prefix, which torch does not give."""
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    return text.partition("-")[2] if text.startswith(_PREFIXES) else text
