"""Finds the first GPU that CUDA sees, on which a process with device `cuda` runs."""

from __future__ import annotations

import os
from typing import Any

from profiling.errors import UnavailableError


def visible_entries() -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES, up to a -1 or empty entry, which hides the rest; None if it is not set."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if not entry or entry == "-1":
            break
        entries.append(entry)
    return entries


def visible_entry(position: int) -> str:
    """The value of CUDA_VISIBLE_DEVICES that leaves only the GPU which CUDA now sees as number `position`.

    Raises:
        UnavailableError: CUDA sees fewer GPUs.
    """
    entries = visible_entries()
    if entries is None:
        return str(position)
    if position >= len(entries):
        raise UnavailableError(
            f"CUDA sees no GPU number {position}",
            got=f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}",
            hint="name an existing GPU, or unset it",
        )
    return entries[position]


def visible_handle(nvml: Any) -> Any:
    """NVML handle of the first GPU that CUDA sees; for a MIG slice, of the GPU it belongs to.

    Indices are in PCI bus order, as in NVML; `profiling.measure` sets CUDA_DEVICE_ORDER so that CUDA uses it too.

    Raises:
        UnavailableError: CUDA sees no GPU, or names one that NVML does not list.
        pynvml.NVMLError: NVML has no GPU of that index or UUID.
    """
    entry = visible_entry(0)
    if entry.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    if entry.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(entry))
    for index in range(nvml.nvmlDeviceGetCount()):  # CUDA also accepts a prefix of a UUID
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(entry):
            return handle
    raise UnavailableError(f"no GPU has the UUID {entry} of CUDA_VISIBLE_DEVICES")


def visible_uuid(nvml: Any) -> str:
    """UUID of the first GPU or MIG slice that CUDA sees: unlike an index, it means the same to every process.

    Raises:
        UnavailableError, pynvml.NVMLError: as for `visible_handle`.
    """
    entry = visible_entry(0)
    return entry if entry.startswith("MIG-") else _text(nvml.nvmlDeviceGetUUID(visible_handle(nvml)))


def visible_slice(nvml: Any) -> str | None:
    """MIG profile (`3g.20gb`) of the first slice that CUDA sees; None for a whole GPU."""
    entry = visible_entry(0)
    return mig_profile(nvml, nvml.nvmlDeviceGetHandleByUUID(entry)) if entry.startswith("MIG-") else None


def mig_profile(nvml: Any, mig_handle: Any) -> str | None:
    """Profile in the name of a MIG device (`NVIDIA A100-SXM4-40GB MIG 3g.20gb`); None if there is none."""
    title = _text(nvml.nvmlDeviceGetName(mig_handle))
    return title.rpartition(" MIG ")[2].strip().lower() if " MIG " in title else None


def _text(value: str | bytes) -> str:
    """A name as older bindings (bytes) or newer ones return it."""
    return value.decode() if isinstance(value, bytes) else value
