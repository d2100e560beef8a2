"""The process in which one member trains: `python -m profiling.measure.member`, driven by JSON lines.

Commands arrive on stdin and replies go to the file descriptor given as the first argument, so that stdout and stderr
stay free for what models print. A thread reads the commands: a `stop`, or end of file when the measuring process has
exited, is noticed within a window without polling in the training loop.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiling.errors import InputError
from profiling.measure.clocks import clock_for
from profiling.measure.job import check_trained, prepare
from profiling.workload import Workload

# Commands that show whether there is such a job, and whether it trains.
_FIRST = ("build", "warm", "steps")


class Member:
    """State of one member; each `do_*` method executes the command of that name and returns its reply."""

    def __init__(self, replies: Any) -> None:
        self.replies = replies
        self.stop = threading.Event()
        self.has_peak = False

    def send(self, **reply: Any) -> None:
        self.replies.write(json.dumps(reply) + "\n")
        self.replies.flush()

    def do_build(self, command: dict[str, Any]) -> dict[str, Any]:
        """Build the job, then pin every thread of this process."""
        import torch

        self.device = command["device"]
        torch.manual_seed(command["seed"])
        if self.device == "cpu":
            torch.set_num_threads(1)
        else:
            sms = use_gpu()
        self.job, facts = prepare(command, self.device)
        self.workload = Workload.parse(command["workload"])
        if command["core"] is not None:
            pin(command["core"])
        return facts if self.device == "cpu" else {**facts, "sm_count": sms}

    def do_warm(self, command: dict[str, Any]) -> dict[str, Any]:
        """Train until two successive blocks of steps take about equally long, or the time limit is reached."""
        from statistics import median

        block, limit = command["block_steps"], time.monotonic() + command["max_s"]
        previous: float | None = None
        steps = 0
        # The first step allocates optimiser state and workspaces, so it is not timed.
        self._block(1)
        check_trained(self.job, self.loss, self.workload)
        while True:
            durations = self._block(block)
            steps += block
            current = median(durations)
            settled = previous is not None and abs(current - previous) <= command["tolerance"] * previous
            if settled or time.monotonic() >= limit or self.stop.is_set():
                reply = {"settled": settled, "steps": steps + 1, "step_time_s": current, **self._usage()}
                return {**reply, "finite": is_finite(self.loss)}
            previous = current

    def _block(self, steps: int) -> list[float]:
        clock = clock_for(self.device)
        clock.start()
        for _ in range(steps):
            self.loss = self.job.step()
            clock.mark()
        boundaries = clock.finish()
        return [b - a for a, b in pairwise(boundaries)]

    def do_phase(self, command: dict[str, Any]) -> dict[str, Any]:
        """Train from `start_s` until told to stop; report `enough` once the window and the steps are complete."""
        clock = clock_for(self.device)
        self._reset_peak()
        time.sleep(max(0.0, command["start_s"] - time.monotonic()))
        cpu_start = time.process_time()
        start = clock.start()
        steps, enough = 0, False
        while not self.stop.is_set():
            self.job.step()
            newest = clock.mark()
            steps += 1
            if not enough and steps >= command["min_steps"] and newest - start >= command["window_s"]:
                enough = True
                self.send(event="enough")
        boundaries = clock.finish()
        return {"boundaries": boundaries, "cpu_s": time.process_time() - cpu_start, **self._usage()}

    def do_steps(self, command: dict[str, Any]) -> dict[str, Any]:
        """Take a fixed number of steps, as the ranks of a job must; `without_sync` skips the all-reduce."""
        from contextlib import nullcontext

        clock = clock_for(self.device)
        clock.start()
        for _ in range(command["count"]):
            with self.job.model.no_sync() if command["without_sync"] else nullcontext():
                loss = self.job.step()
            clock.mark()
        check_trained(self.job, loss, self.workload)
        return {"boundaries": clock.finish(), **self._usage()}

    def do_operators(self, command: dict[str, Any]) -> dict[str, Any]:
        """Time per module and operator kind, from torch.profiler."""
        from profiling.measure.operator_times import profile_operators

        return {"operators": profile_operators(self.job, self.device, command["steps"])}

    def _reset_peak(self) -> None:
        self.has_peak = reset_peak_resident()
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {"rss_bytes": resident_bytes(peak=self.has_peak)}
        if self.device == "cuda":
            import torch

            usage["allocated_bytes"] = torch.cuda.max_memory_allocated()
            usage["reserved_bytes"] = torch.cuda.max_memory_reserved()
        return usage


def reset_peak_resident() -> bool:
    """Have the kernel record the peak of this process's resident set anew. Returns whether it does; only Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident_bytes(peak: bool) -> int:
    """Resident set of this process: its peak since the last reset, or what it is now.

    Between two steps it lacks the activations, as the allocator returns large blocks to the system at once.
    """
    if peak:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    import psutil

    return int(psutil.Process().memory_info().rss)


def is_finite(loss: Any) -> bool:
    """Whether a step's loss is a number. A job of the user's own may return anything else, which tells nothing."""
    import torch

    return not isinstance(loss, torch.Tensor) or loss.numel() != 1 or bool(torch.isfinite(loss))


class NoDeviceError(Exception):
    """This process cannot use the GPU, whatever the job."""


def use_gpu() -> int:
    """Create the CUDA context, so that no later step pays for it.

    Returns:
        The number of SMs that CUDA lets this process use: fewer than the GPU has under an MPS limit or on a MIG slice.

    Raises:
        NoDeviceError: CUDA does not work here: torch without CUDA, an older driver, a GPU in use exclusively.
    """
    import torch

    try:
        torch.zeros(1, device="cuda")
        return int(torch.cuda.get_device_properties(0).multi_processor_count)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise NoDeviceError(f"{type(error).__name__}: {error}") from error


def pin(core: int) -> None:
    """Pin every thread of this process to one core; threads started later inherit this."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), {core})
        except ProcessLookupError:
            continue


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that memory ran out, on the CPU or the GPU."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
        # cuBLAS, cuDNN up to 8, cuDNN from 9 on; then cuBLAS, which says so if there is no room for its handle
        or "status_alloc_failed" in text
        or "_allocation_failed" in text
        or "cublas_status_not_initialized" in text
    )


def main() -> None:
    replies = os.fdopen(int(sys.argv[1]), "w")
    member = Member(replies)
    commands: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        # os.read, because a forked loader process would inherit the lock of sys.stdin while held, and deadlock.
        rest = b""
        while chunk := os.read(0, 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                command = json.loads(line)
                if command["do"] == "stop":
                    member.stop.set()
                else:
                    # Cleared here, because a stop may arrive before the command is executed.
                    member.stop.clear()
                    commands.put(command)
        # End of file: the measuring process has exited, so stop training.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        command = commands.get()
        try:
            reply = getattr(member, f"do_{command['do']}")(command)
        except BaseException as error:
            if isinstance(error, NoDeviceError):
                kind, message = "no-device", str(error)
            elif isinstance(error, InputError) and command["do"] in _FIRST and not is_out_of_memory(error):
                kind, message = "refused", str(error)
            else:
                kind = "out-of-memory" if is_out_of_memory(error) else "failed"
                message = f"{type(error).__name__}: {error}"
            member.send(event="error", outcome=kind, message=message[:500])
            raise
        member.send(event="done", **reply)


if __name__ == "__main__":
    main()
