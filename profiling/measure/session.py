"""Runs the members of a set in processes: starts them together, warms them up, and runs phases."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from profiling.errors import UnavailableError, without_name
from profiling.measure.mps import undisturbed
from profiling.measure.request import NotMeasurableError
from profiling.measure.settings import MeasureSettings
from profiling.workload import Workload

# From the command to the common start; longer than a command takes to reach every member.
START_DELAY_S = 0.03
_ON_GPU = {
    # Indices in NVML's order, so that the sampled GPU is the one in use.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Without this variable CUDA joins an MPS daemon that happens to run, and jobs would not be time-sliced.
    "CUDA_MPS_PIPE_DIRECTORY": os.devnull,
}
_SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass
class MemberProcess:
    """A member's process and its state.

    Attributes:
        outcome: `ok`, `out-of-memory`, `failed` or `killed`; `no-device` if it cannot use the GPU at all, and `refused`
            if there is no such job or it does not train, which are errors and not results (see `Session.require_sound`).
        message: the error if the outcome is not ok.
        facts: properties that the job reported when it was built.
    """

    workload: Workload
    process: subprocess.Popen[bytes]
    replies: Any
    log: Any
    outcome: str = "ok"
    message: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.outcome == "ok"


class Session:
    """A context manager for the members' processes. If one dies, its outcome says why, and the others continue.

    Args:
        workloads: the members.
        device: `cpu` or `cuda`.
        settings: windows and limits.
        core: CPU core to pin members to; None does not pin.
        environments: environment variables of each member (MPS pipes, a MIG slice).
        cached_activations: take the output of the frozen prefix from a cache.
        distributed: if not empty, members are ranks of one job: `rewrapped` after freezing, or `wrapped-before`.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        device: str,
        settings: MeasureSettings,
        *,
        core: int | None = None,
        environments: Sequence[dict[str, str]] | None = None,
        cached_activations: bool = False,
        distributed: str = "",
    ) -> None:
        self.settings = settings
        self._selector = selectors.DefaultSelector()
        self._buffers: dict[int, bytes] = {}
        self.members: list[MemberProcess] = []
        try:
            for workload, extra in zip(workloads, environments or [{}] * len(workloads), strict=True):
                self.members.append(self._spawn(workload, device, extra))
            build = {
                "do": "build",
                "device": device,
                "core": core,
                "cached_activations": cached_activations,
                "distributed": distributed,
                "host_input": settings.host_input,
                "loader_processes": settings.loader_processes,
            }
            # All at once and not yet pinned, because importing torch takes longer than most windows.
            answers = self._ask(
                {
                    i: {**build, "workload": str(m.workload.without_solo()), "seed": settings.seed + i}
                    for i, m in enumerate(self.members)
                }
            )
        except BaseException:
            # Nobody calls `__exit__` of a session that was not entered.
            self.__exit__()
            raise
        for i, answer in answers.items():
            self.members[i].facts = answer

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            # A member exits at end of file; one that hangs in a step is killed.
            with contextlib.suppress(OSError):
                member.process.stdin.close()  # type: ignore[union-attr]
        for member in self.members:
            try:
                member.process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            member.replies.close()
            member.log.close()
        self._selector.close()

    @property
    def alive(self) -> list[int]:
        return [i for i, m in enumerate(self.members) if m.alive]

    def require_sound(self) -> None:
        """Check that every member could use the GPU, and that its job exists and, once it took a step, trains.

        Raises:
            NotMeasurableError: a factory is missing or fails, its model lacks what the SPEC asks for, or its loss trains
                nothing.
            UnavailableError: one could not use the GPU. That says nothing of its job, and every other run would fail alike.
        """
        for member in self.members:
            if member.outcome == "no-device":
                raise UnavailableError(
                    "a job's process cannot use the GPU",
                    got=member.message.partition("\n")[0],
                    hint="torch needs a build with CUDA (UV_TORCH_BACKEND=auto make install), a driver that is new "
                    "enough for it, and a GPU that no other process holds exclusively (nvidia-smi -q -d COMPUTE)",
                )
            if member.outcome == "refused":
                raise NotMeasurableError(
                    f"{member.workload}: {without_name(member.message, member.workload.model)}"
                )

    def warm(self, index: int) -> dict[str, Any] | None:
        """Warm up one member while the others are paused; None if it died."""
        s = self.settings
        return self.ask(
            index,
            lasting_s=s.max_warmup_s,
            do="warm",
            block_steps=s.warmup_block_steps,
            max_s=s.max_warmup_s,
            tolerance=s.settle_tolerance,
        )

    def ask(self, index: int, lasting_s: float = 0.0, **command: Any) -> dict[str, Any] | None:
        """Send a command, which should take `lasting_s`, to one member. Returns its reply, or None if it died."""
        return self._ask({index: command}, lasting_s).get(index)

    def ask_all(self, lasting_s: float = 0.0, **command: Any) -> dict[int, dict[str, Any]]:
        """Send a command, which should take `lasting_s`, to all members at once.

        Returns:
            The replies of the members that survived, by member.
        """
        return self._ask(dict.fromkeys(range(len(self.members)), command), lasting_s)

    def phase(self, active: Sequence[int], window_s: float) -> dict[int, dict[str, Any]]:
        """Train the `active` members from a common start until each has its window and its steps.

        Args:
            active: numbers of the members; the others stay paused.
            window_s: minimum length in seconds.

        Returns:
            Replies of the members that survived, by member: `boundaries` in seconds of the monotonic clock, `cpu_s`,
            `rss_bytes`, and on CUDA `allocated_bytes` and `reserved_bytes`.
        """
        command = {
            "do": "phase",
            "start_s": time.monotonic() + START_DELAY_S,
            "window_s": window_s,
            "min_steps": self.settings.min_steps,
        }
        return self._ask(dict.fromkeys(active, command), window_s, stop_when_enough=True)

    # -- messages --------------------------------------------------------------------------------------------------

    def _spawn(self, workload: Workload, device: str, environment: dict[str, str]) -> MemberProcess:
        read, write = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 closed with the session
        variables = {
            **undisturbed(),
            # Members must find the modules that this process can import.
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*filter(None, sys.path), os.getcwd()])),
            **(_SINGLE_THREAD if device == "cpu" else _ON_GPU),
            **environment,
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiling.measure.member", str(write)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
                env=variables,
            )
        except OSError:
            os.close(read)
            log.close()
            raise
        finally:
            os.close(write)
        replies = os.fdopen(read, "rb", buffering=0)
        member = MemberProcess(workload, process, replies, log)
        self._buffers[read] = b""
        self._selector.register(read, selectors.EVENT_READ)
        return member

    def _send(self, index: int, command: dict[str, Any]) -> None:
        stream = self.members[index].process.stdin
        # If the member has died, the end of its replies will tell.
        with contextlib.suppress(OSError):
            stream.write(json.dumps(command).encode() + b"\n")  # type: ignore[union-attr]
            stream.flush()  # type: ignore[union-attr]

    def _ask(
        self, commands: dict[int, dict[str, Any]], lasting_s: float = 0.0, stop_when_enough: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Send commands, and wait until every member has replied or died; they may be silent for `lasting_s` longer."""
        patience_s = self.settings.timeout_s + lasting_s
        by_descriptor = {m.replies.fileno(): i for i, m in enumerate(self.members)}
        waiting = {i for i in commands if self.members[i].alive}
        for i in sorted(waiting):
            self._send(i, commands[i])
        answers: dict[int, dict[str, Any]] = {}
        enough: set[int] = set()
        stopped = False
        heard = time.monotonic()
        while waiting:
            for key, _ in self._selector.select(timeout=0.5):
                index = by_descriptor[int(key.fd)]
                for message in self._receive(index):
                    heard = time.monotonic()
                    event = message.pop("event")
                    if event == "enough":
                        enough.add(index)
                    elif event == "done":
                        answers[index] = message
                        waiting.discard(index)
                    elif event == "error":
                        self._lost(index, message["outcome"], message["message"])
                if not self.members[index].alive:
                    waiting.discard(index)
            # Without one member there is no common window, so the phase ends for the others too.
            dead = any(not self.members[i].alive for i in commands)
            if stop_when_enough and not stopped and waiting and (waiting <= enough or dead):
                for i in waiting:
                    self._send(i, {"do": "stop"})
                stopped = True
            if time.monotonic() - heard > patience_s:
                # A member with enough steps is only waiting to be stopped.
                silent = waiting if stopped else waiting - enough
                for i in sorted(silent):
                    self.members[i].process.kill()
                    self._lost(i, "killed", f"no response for {patience_s:g} s")
                waiting, heard = waiting - silent, time.monotonic()
        return answers

    def _receive(self, index: int) -> list[dict[str, Any]]:
        member = self.members[index]
        descriptor = member.replies.fileno()
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            self._selector.unregister(descriptor)
            if member.alive:
                self._lost(index, *self._post_mortem(member))
            return []
        *lines, rest = (self._buffers[descriptor] + chunk).split(b"\n")
        self._buffers[descriptor] = rest
        return [json.loads(line) for line in lines]

    def _lost(self, index: int, outcome: str, message: str) -> None:
        self.members[index].outcome, self.members[index].message = outcome, message

    @staticmethod
    def _post_mortem(member: MemberProcess) -> tuple[str, str]:
        code = member.process.wait()
        member.log.seek(0)
        tail = member.log.read()[-300:].decode(errors="replace").strip().splitlines()
        # SIGKILL comes from the kernel's out-of-memory killer; nothing else here sends it.
        if code == -9:
            return "out-of-memory", "the system killed the process (signal 9), most likely for memory"
        return "failed", f"exit status {code}: {tail[-1] if tail else 'no message'}"
