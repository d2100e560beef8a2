"""The MPS control daemon for the length of one run, in folders of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


class MpsDaemon:
    """Starts `nvidia-cuda-mps-control -d` when it can be started.

    Attributes:
        environment: variables for the clients; empty where MPS is not in force.
        note: why it is not.
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.note = ""

    def __enter__(self) -> MpsDaemon:
        binary = shutil.which("nvidia-cuda-mps-control")
        if binary is None:
            self.note = (
                "MPS asked for, but nvidia-cuda-mps-control is not installed; members share by time slices"
            )
            return self
        self._binary = binary
        self._folder = Path(tempfile.mkdtemp(prefix="cotenant-mps-"))
        self._variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }
        for path in self._variables.values():
            Path(path).mkdir()
        try:
            answer = subprocess.run(
                [binary, "-d"],
                env={**os.environ, **self._variables},
                capture_output=True,
                text=True,
                timeout=20,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._failed(str(error))
            return self
        if answer.returncode != 0 or not self._answers():
            self._failed((answer.stderr or answer.stdout).strip() or f"exit status {answer.returncode}")
            return self
        self.environment = dict(self._variables)
        return self

    def __exit__(self, *_: object) -> None:
        if self.environment:
            self._control("quit")
            # the daemon lets go of its pipes a moment after it answers
            time.sleep(0.2)
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)

    def servers(self) -> list[int]:
        """Process ids of running MPS servers: proof that clients went through MPS."""
        answer = self._control("get_server_list") if self.environment else ""
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
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    def _failed(self, reason: str) -> None:
        self.note = f"MPS asked for, but it did not start ({reason[:200]}); members share by time slices"
