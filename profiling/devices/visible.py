"""Which of the machine's GPUs CUDA sees first: the one that a process on device `cuda` runs on."""

from __future__ import annotations

import os
from typing import Any

from profiling.errors import UnavailableError


def visible_entries() -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES up to the first one that hides the rest (-1); None where it is not set."""
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
    """What CUDA_VISIBLE_DEVICES has to be for the GPU that CUDA sees as number `position`.

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
    """NVML handle of the GPU that CUDA sees first; for a MIG slice, of the GPU that it is cut from.

    An index counts in the order of the PCI bus, as NVML does; `profiling.measure` sets CUDA_DEVICE_ORDER so that CUDA
    does too.

    Raises:
        UnavailableError: CUDA sees no GPU, or names one that NVML does not list.
        pynvml.NVMLError: NVML has no GPU of that index or UUID.
    """
    entry = visible_entry(0)
    if entry.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))
    if entry.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(entry))
    for index in range(nvml.nvmlDeviceGetCount()):  # CUDA takes the beginning of a UUID too
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if nvml.nvmlDeviceGetUUID(handle).startswith(entry):
            return handle
    raise UnavailableError(f"no GPU has the UUID {entry} of CUDA_VISIBLE_DEVICES")


def visible_slice(nvml: Any) -> str | None:
    """MIG profile (`3g.20gb`) of the slice that CUDA sees first; None for a whole GPU."""
    entry = visible_entry(0)
    return mig_profile(nvml, nvml.nvmlDeviceGetHandleByUUID(entry)) if entry.startswith("MIG-") else None


def mig_profile(nvml: Any, mig_handle: Any) -> str | None:
    """Profile in the title of a MIG device (`NVIDIA A100-SXM4-40GB MIG 3g.20gb`)."""
    title = nvml.nvmlDeviceGetName(mig_handle)
    title = title.decode() if isinstance(title, bytes) else title
    return str(title).rpartition(" MIG ")[2].strip().lower() if " MIG " in title else None
