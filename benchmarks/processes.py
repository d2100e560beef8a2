"""Child processes of a benchmark, the service among them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import httpx
import psutil


def start_service(folder: Path, stack: ExitStack, *options: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Start `cotenant serve` with the default model and wait until it is ready."""
    port = free_port()
    service = start(stack, sys.executable, "-m", "serving.cli.main", "serve", "--port", str(port), "--database",
                    f"sqlite:///{folder}/store.db", *options)  # fmt: skip
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/health/ready", trust_env=False).status_code == 200:
                return url, service
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError("the service did not get ready")


def start(stack: ExitStack, *command: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a child process that ends with `stack`; what it writes on stderr goes to `log`, if given."""
    with log.open("ab") if log else nullcontext() as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processor_s(pid: int) -> float:
    """Processor seconds of a process and of its living descendants."""
    return float(sum(sum(process.cpu_times()[:2]) for process in _family(pid)))


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and of its descendants."""
    return sum(process.memory_info().rss for process in _family(pid))


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]
