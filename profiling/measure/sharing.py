"""Sets up the requested sharing mode, and records the one in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from profiling.devices.nvml import open_nvml
from profiling.devices.visible import MigSlice, visible_slices, visible_uuid
from profiling.errors import UnavailableError
from profiling.measure.mps import MpsDaemon

T = TypeVar("T")


class SharesNotEnforcedError(UnavailableError):
    """A job has an SM share, but no MPS to limit it. Runs without shares are unaffected."""


@dataclass
class Sharing:
    """The sharing mode in force, and its settings for the members.

    Attributes:
        mode: the mode in force: `time-slice`, `mps` or `mig`.
        environments: environment variables of each member.
        notes: why the mode differs from the requested one.
        daemon: the MPS daemon, if it runs.
        slices: MIG profile of each member's slice (`3g.20gb`); empty without MIG.
        limited: whether a member has an SM share below 1, which only MPS enforces.
    """

    mode: str
    environments: list[dict[str, str]]
    notes: list[str] = field(default_factory=list)
    daemon: Any = None
    slices: list[str] = field(default_factory=list)
    limited: bool = False

    def confirm(self, running: int) -> None:
        """Check, while members run, that all are MPS clients; otherwise the mode in force is time slicing.

        Args:
            running: number of members that have a CUDA context.

        Raises:
            SharesNotEnforcedError: MPS is not in force, and a member has an SM share below 1.
        """
        clients = len(self.daemon.clients()) if self.mode == "mps" else running
        if clients < running:
            note = f"MPS daemon runs, but only {clients} of {running} members are its clients"
            if self.limited:
                raise _no_shares(note)
            self.mode = "time-slice"
            self.notes.append(note)

    def compare_limits(self, shares: Sequence[float], counts: Sequence[int | None], whole: int) -> None:
        """Note a limited member to which CUDA reports all SMs: its limit may not be in force.

        Args:
            shares: SM share of each member.
            counts: SMs that CUDA reports to it; None if it died.
            whole: SMs of the GPU.
        """
        for share, count in zip(shares, counts, strict=True):
            if share < 1 and count is not None and count >= whole:
                self.notes.append(f"CUDA reports all {count} SMs to a job limited to {share:g} of them")


def _no_shares(note: str) -> SharesNotEnforcedError:
    return SharesNotEnforcedError("SM shares cannot be enforced", expected="MPS in force", got=note)


@contextmanager
def sharing_in_force(
    mode: str, device: str, members: int, sm_share_ratios: Sequence[float] = ()
) -> Iterator[Sharing]:
    """Set up a sharing mode; falls back to time slicing, with a note, if it is not available.

    Args:
        mode: requested mode.
        device: `cpu` or `cuda`.
        members: number of processes.
        sm_share_ratios: SM share of each member (0 to 1); empty if all have 1. Only MPS enforces shares.

    Raises:
        SharesNotEnforcedError: a share is below 1, but MPS is not available.
    """
    shares = [*sm_share_ratios] or [1.0] * members
    limited = min(shares) < 1
    if limited and (device == "cpu" or mode != "mps"):
        raise _no_shares(f"{mode} on {device}")
    gpu = _gpu_uuid() if device == "cuda" else ""
    # Which slice CUDA would choose of a GPU in MIG mode is its own affair; the record names the first.
    plain = [{"CUDA_VISIBLE_DEVICES": gpu} if gpu.startswith("MIG-") else {} for _ in range(members)]
    if device == "cpu":
        notes = [] if mode == "time-slice" else [f"a CPU core is time-sliced; {mode} does not apply"]
        yield Sharing("time-slice", plain, notes)
    elif mode == "mps":
        with MpsDaemon(gpu) as daemon:
            if daemon.environment:
                environments = [daemon.environment | _share_limit(share) for share in shares]
                yield Sharing("mps", environments, limited=limited, daemon=daemon)
            elif limited:
                raise _no_shares(daemon.note)
            else:
                yield Sharing("time-slice", plain, [daemon.note])
    elif mode == "mig":
        slices = mig_slices()
        if len(slices) >= members:
            chosen = slices[:members]
            yield Sharing(
                "mig",
                [{"CUDA_VISIBLE_DEVICES": mig_slice.uuid} for mig_slice in chosen],
                slices=[mig_slice.profile for mig_slice in chosen],
            )
        else:
            note = (
                f"MIG requested, but there are {len(slices)} slices for {members} members; members are "
                f"time-sliced"
            )
            yield Sharing("time-slice", plain, [note])
    else:
        yield Sharing("time-slice", plain)


def _share_limit(share: float) -> dict[str, str]:
    """Environment variable for an SM share; the driver rounds it up to whole multiprocessors."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * share:g}"} if share < 1 else {}


def _gpu_uuid() -> str:
    """UUID of the GPU or slice that members see first; empty if NVML does not tell."""
    return _nvml_says(visible_uuid) or ""


def mig_slices() -> list[MigSlice]:
    """Present MIG slices that members may use; empty if there are none. The MIG mode is never changed."""
    return _nvml_says(visible_slices) or []


def _nvml_says(read: Callable[[Any], T]) -> T | None:
    """What `read` finds with NVML; None without NVML or a GPU."""
    try:
        with open_nvml() as nvml:
            try:
                return read(nvml)
            except nvml.NVMLError:
                return None
    except UnavailableError:
        return None
