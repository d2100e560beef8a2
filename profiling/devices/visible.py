"""Finds the first GPU that CUDA sees, on which a process with device `cuda` runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
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


def no_answer(error: Exception) -> UnavailableError:
    """What an NVML error of the first GPU that CUDA sees means to a user."""
    return UnavailableError(
        "the first CUDA-visible GPU does not respond",
        got=str(error),
        hint="check CUDA_VISIBLE_DEVICES and nvidia-smi",
    )


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG slice that exists now: UUID for CUDA_VISIBLE_DEVICES, and profile (`3g.20gb`; empty if unknown)."""

    uuid: str
    profile: str = ""


def visible_slices(nvml: Any) -> list[MigSlice]:
    """The slices that CUDA_VISIBLE_DEVICES names, or else those of the first GPU that CUDA sees; empty without MIG.

    Raises:
        UnavailableError, pynvml.NVMLError: as for `visible_handle`; or the GPU is in MIG mode, but has no slice.
    """
    named = [entry for entry in visible_entries() or () if entry.startswith("MIG-")]
    if named:
        handles = [nvml.nvmlDeviceGetHandleByUUID(entry) for entry in named]
        return [MigSlice(u, mig_profile(nvml, h) or "") for u, h in zip(named, handles, strict=True)]
    card = visible_handle(nvml)
    try:
        if not nvml.nvmlDeviceGetMigMode(card)[0]:
            return []
    except nvml.NVMLError:  # a GPU without MIG, or an older driver
        return []
    slices = []
    for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, i)
        except nvml.NVMLError:  # no slice of this number
            continue
        slices.append(MigSlice(_text(nvml.nvmlDeviceGetUUID(handle)), mig_profile(nvml, handle) or ""))
    if not slices:
        raise UnavailableError(
            "the GPU is in MIG mode, but has no slice",
            hint="create one (nvidia-smi mig -cgi 3g -C), or switch MIG off (nvidia-smi -mig 0)",
        )
    return slices


def visible_uuid(nvml: Any) -> str:
    """UUID of the first GPU or MIG slice that CUDA sees: unlike an index, it means the same to every process.

    Raises:
        UnavailableError, pynvml.NVMLError: as for `visible_slices`.
    """
    slices = visible_slices(nvml)
    return slices[0].uuid if slices else _text(nvml.nvmlDeviceGetUUID(visible_handle(nvml)))


def visible_slice(nvml: Any) -> str | None:
    """MIG profile (`3g.20gb`) of the first slice that CUDA sees; None for a whole GPU.

    CUDA never uses a GPU in MIG mode as a whole.

    Raises:
        UnavailableError, pynvml.NVMLError: as for `visible_slices`.
    """
    slices = visible_slices(nvml)
    return slices[0].profile if slices else None


def mig_profile(nvml: Any, mig_handle: Any) -> str | None:
    """Profile in the name of a MIG device (`NVIDIA A100-SXM4-40GB MIG 3g.20gb`); None if there is none."""
    title = _text(nvml.nvmlDeviceGetName(mig_handle))
    return title.rpartition(" MIG ")[2].strip().lower() if " MIG " in title else None


def _text(value: str | bytes) -> str:
    """A name as older bindings (bytes) or newer ones return it."""
    return value.decode() if isinstance(value, bytes) else value
