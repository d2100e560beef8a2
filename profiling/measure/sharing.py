"""The sharing mode asked for, and the one that is in force."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from profiling.devices.visible import visible_handle
from profiling.errors import UnavailableError
from profiling.measure.mps import MpsDaemon


@dataclass
class Sharing:
    """What members get for it.

    Attributes:
        mode: in force: `time-slice`, `mps` or `mig`.
        environments: variables of each member's process.
        notes: why the mode is not the one asked for.
    """

    mode: str
    environments: list[dict[str, str]]
    notes: list[str] = field(default_factory=list)
    daemon: Any = None

    def confirm(self) -> None:
        """Called while members run: MPS counts as in force only if a server has clients."""
        if self.mode == "mps" and not self.daemon.servers():
            self.mode = "time-slice"
            self.notes.append("MPS daemon runs, but no server has taken the members on")


@contextmanager
def sharing_in_force(mode: str, device: str, members: int) -> Iterator[Sharing]:
    """Set a sharing mode up for `members` processes. What cannot be set up degrades to time slices, with a note."""
    plain: list[dict[str, str]] = [{} for _ in range(members)]
    if device == "cpu":
        notes = [] if mode == "time-slice" else [f"a CPU core is shared by time slices, not by {mode}"]
        yield Sharing("time-slice", plain, notes)
    elif mode == "mps":
        with MpsDaemon() as daemon:
            if daemon.environment:
                yield Sharing("mps", [daemon.environment] * members, daemon=daemon)
            else:
                yield Sharing("time-slice", plain, [daemon.note])
    elif mode == "mig":
        slices = mig_slices()
        if len(slices) >= members:
            yield Sharing("mig", [{"CUDA_VISIBLE_DEVICES": uuid} for uuid in slices[:members]])
        else:
            note = f"MIG asked for, but there are {len(slices)} slices for {members} members; sharing by time slices"
            yield Sharing("time-slice", plain, [note])
    else:
        yield Sharing("time-slice", plain)


def mig_slices() -> list[str]:
    """UUIDs of the MIG slices that the first visible GPU is cut into now; MIG is never switched on or off here."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # no library or no driver: then there are no slices
        return []
    found = []
    try:
        handle = visible_handle(nvml)
        for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))
            except nvml.NVMLError:
                continue
            found.append(uuid.decode() if isinstance(uuid, bytes) else uuid)
    except (nvml.NVMLError, UnavailableError):
        pass
    finally:
        nvml.nvmlShutdown()
    return found
