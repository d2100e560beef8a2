"""Starts and stops an MPS control daemon for one run, with its own pipe and log folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# A minimal MPS client: retains a primary context through the driver library, without importing torch.
CLIENT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
for name, arguments in (
    ("cuInit", (0,)),
    ("cuDeviceGet", (ctypes.byref(device), 0)),
    ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name} answered {status}")
"""
# Ends the daemon when its input ends, which it also does if the measuring process is killed; then waits for the servers,
# whose memory would otherwise count as used before the next run.
GUARD = """
import os, shutil, subprocess, sys, time
binary, folder = sys.argv[1:]
def ask(command):
    try:
        return subprocess.run([binary], input=command, text=True, capture_output=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
sys.stdin.read()
servers = [word for word in ask("get_server_list\\n") if word.isdigit()]
ask("quit\\n")
limit = time.monotonic() + 5
while any(os.path.exists("/proc/" + server) for server in servers) and time.monotonic() < limit:
    time.sleep(0.05)
# The daemon closes its pipes shortly after it has replied.
time.sleep(0.2)
shutil.rmtree(folder, ignore_errors=True)
"""
# Variables of the user that would change what is measured: every step waits for the GPU, or TF32 is switched off.
_DISTURBING = ("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE")


def undisturbed() -> dict[str, str]:
    """Environment variables without those that limit MPS clients, name another daemon, or disturb a measurement."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CUDA_MPS_") and name not in _DISTURBING
    }


class MpsDaemon:
    """A context manager that starts `nvidia-cuda-mps-control -d` if possible, and stops it.

    Args:
        gpu: UUID of the only GPU to share; empty if unknown. The daemon numbers the GPUs of CUDA_VISIBLE_DEVICES anew,
            so an index there would name another GPU in its clients, or none.

    Attributes:
        environment: variables for the clients; empty if MPS is not in force.
        note: why MPS is not in force; empty if it is.
    """

    def __init__(self, gpu: str = "") -> None:
        self.gpu = gpu
        self.environment: dict[str, str] = {}
        self.note = ""

    def __enter__(self) -> MpsDaemon:
        binary = shutil.which("nvidia-cuda-mps-control")
        if binary is None:
            self.note = "MPS requested, but nvidia-cuda-mps-control is not installed; members are time-sliced"
            return self
        self._binary = binary
        # Not in TMPDIR, which may be on a network or too long a name for a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="cotenant-mps-", dir="/tmp"))
        self._variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }
        for path in self._variables.values():
            Path(path).mkdir()
        if self.gpu:
            self._variables["CUDA_VISIBLE_DEVICES"] = self.gpu
        # In a session of its own, so that an interrupt from the terminal does not end it first.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", GUARD, binary, str(self._folder)],
            env={**undisturbed(), **self._variables},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        # A file, because the daemon may keep the descriptor open, and reading a pipe would then block forever.
        with tempfile.TemporaryFile("w+") as output:
            try:
                status = subprocess.run(
                    [binary, "-d"],
                    env={**undisturbed(), **self._variables},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=20,
                    check=False,
                ).returncode
            except (OSError, subprocess.SubprocessError) as error:
                self._failed(str(error))
                return self
            output.seek(0)
            said = output.read().strip()
        if status != 0 or not self._answers():
            self._failed(said or f"exit status {status}")
            return self
        refused = self._client_error()
        if refused:
            self._control("quit")
            self._failed(refused)
            return self
        self.environment = dict(self._variables)
        return self

    def _client_error(self) -> str:
        """Why a process cannot use the GPU through this daemon; empty if it can.

        The daemon starts its server only when the first client connects, and may lack a privilege for that. A short
        process that creates a CUDA context tests this first, so that no member fails.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-c", CLIENT],
                env={**undisturbed(), **self._variables, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if done.returncode == 0:
            return ""
        return "no CUDA context through it: " + (done.stderr.strip().splitlines() or ["no message"])[-1]

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_guard"):
            self._guard.communicate()

    def clients(self) -> list[int]:
        """Process ids of the clients of all servers; a server alone proves nothing, as the first test started it."""
        return [
            client
            for server in self._ids("get_server_list")
            for client in self._ids(f"get_client_list {server}")
        ]

    def _ids(self, command: str) -> list[int]:
        answer = self._control(command) if self.environment else ""
        return [int(word) for word in answer.split() if word.isdigit()]

    def _answers(self) -> bool:
        for _ in range(20):
            try:
                done = self._ask("get_default_active_thread_percentage")
            except (OSError, subprocess.SubprocessError):
                return False
            if done.returncode == 0:
                return True
            time.sleep(0.1)
        return False

    def _control(self, command: str) -> str:
        try:
            return self._ask(command).stdout
        except (OSError, subprocess.SubprocessError):
            return ""

    def _ask(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._binary],
            input=command + "\n",
            env={**undisturbed(), **self._variables},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    def _failed(self, reason: str) -> None:
        """Note why MPS is not in force, with the last line of its logs, which are deleted with the run."""
        said = [reason[:200]]
        for name in ("control.log", "server.log"):
            with contextlib.suppress(OSError):
                lines = (self._folder / "log" / name).read_text(errors="replace").strip().splitlines()
                said += [f"{name}: {line[-200:]}" for line in lines[-1:]]
        self.note = f"MPS requested, but it did not start ({'; '.join(said)}); members are time-sliced"
