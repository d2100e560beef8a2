"""The process in which one member trains: `python -m profiling.measure.member`, driven by JSON lines.

Commands come on stdin, replies go to the descriptor named in the first command line argument; stdout and stderr stay
free for what models print. A reader thread takes the commands, so that "stop" and the end of the measuring process
(end of file) are seen in the middle of a window without any call in the training loop.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from itertools import pairwise
from typing import Any

from profiling.measure.clocks import clock_for


class Member:
    """State of one member; every `do_*` method carries out the command of that name and answers its reply."""

    def __init__(self, replies: Any) -> None:
        self.replies = replies
        self.stop = threading.Event()

    def send(self, **reply: Any) -> None:
        self.replies.write(json.dumps(reply) + "\n")
        self.replies.flush()

    def do_build(self, command: dict[str, Any]) -> dict[str, Any]:
        """Build the job, then pin every thread of this process."""
        import torch

        from profiling.measure.job import prepare

        self.device = command["device"]
        torch.manual_seed(command["seed"])
        if self.device == "cpu":
            torch.set_num_threads(1)
        else:
            torch.zeros(1, device="cuda")
        self.job, facts = prepare(command, self.device)
        if command["core"] is not None:
            pin(command["core"])
        return facts

    def do_warm(self, command: dict[str, Any]) -> dict[str, Any]:
        """Train until two successive blocks of steps take equally long, or until the time is over."""
        from statistics import median

        block, limit = command["block_steps"], time.monotonic() + command["max_s"]
        previous: float | None = None
        steps = 0
        # One step builds lazily what later steps use (optimiser state, workspaces): no part of a block.
        self._block(1)
        while True:
            durations = self._block(block)
            steps += block
            current = median(durations)
            settled = previous is not None and abs(current - previous) <= command["tolerance"] * previous
            if settled or time.monotonic() >= limit or self.stop.is_set():
                return {"settled": settled, "steps": steps + 1, "step_time_s": current, **self._usage()}
            previous = current

    def _block(self, steps: int) -> list[float]:
        clock = clock_for(self.device)
        clock.start()
        for _ in range(steps):
            self.job.step()
            clock.mark()
        boundaries = clock.finish()
        return [b - a for a, b in pairwise(boundaries)]

    def do_phase(self, command: dict[str, Any]) -> dict[str, Any]:
        """Train from the given moment until told to stop; say so once the window and the steps are enough."""
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
        """Take a fixed number of steps, as ranks of one job have to; `without_sync` leaves the all-reduce out."""
        from contextlib import nullcontext

        clock = clock_for(self.device)
        clock.start()
        for _ in range(command["count"]):
            with self.job.model.no_sync() if command["without_sync"] else nullcontext():
                self.job.step()
            clock.mark()
        return {"boundaries": clock.finish(), **self._usage()}

    def do_operators(self, command: dict[str, Any]) -> dict[str, Any]:
        """Time per module and operator kind by torch.profiler."""
        from profiling.measure.operator_times import profile_operators

        return {"operators": profile_operators(self.job, self.device, command["steps"])}

    def _reset_peak(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()

    def _usage(self) -> dict[str, Any]:
        import psutil

        usage: dict[str, Any] = {"rss_bytes": psutil.Process().memory_info().rss}
        if self.device == "cuda":
            import torch

            usage["allocated_bytes"] = torch.cuda.max_memory_allocated()
            usage["reserved_bytes"] = torch.cuda.max_memory_reserved()
        return usage


def pin(core: int) -> None:
    """Keep every thread of this process on one core; threads that come later inherit it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), {core})
        except ProcessLookupError:
            continue


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on either device."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
        # cuBLAS and cuDNN say it in their own way
        or "status_alloc_failed" in text
    )


def main() -> None:
    replies = os.fdopen(int(sys.argv[1]), "w")
    member = Member(replies)
    commands: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        # os.read and not sys.stdin, whose lock a forked loader process would inherit held, and wait for forever
        rest = b""
        while chunk := os.read(0, 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                command = json.loads(line)
                if command["do"] == "stop":
                    member.stop.set()
                else:
                    # cleared here and not where the command is carried out: a stop may follow on its heels
                    member.stop.clear()
                    commands.put(command)
        # End of file: the measuring process is done or gone. Do not train on alone.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        command = commands.get()
        try:
            reply = getattr(member, f"do_{command['do']}")(command)
        except BaseException as error:
            kind = "out-of-memory" if is_out_of_memory(error) else "failed"
            member.send(event="error", outcome=kind, message=f"{type(error).__name__}: {error}"[:500])
            raise
        member.send(event="done", **reply)


if __name__ == "__main__":
    main()
