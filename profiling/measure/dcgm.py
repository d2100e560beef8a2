"""DCGM profiling counters over the windows of a measurement, from `dcgmi dmon`.

The command is used instead of DCGM's Python bindings, which are tied to one DCGM release and one Python version, are
not on the import path, and are missing from many machines that have the command.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence

# Profiling fields of dcgm_fields.h, named like NVML's GPM counters where they measure the same.
FIELDS = {
    1001: "graphics_active_ratio",
    1002: "sm_active_ratio",
    1003: "sm_occupancy_ratio",
    1004: "tensor_active_ratio",
    1005: "memory_bandwidth_active_ratio",
    1006: "fp64_active_ratio",
    1007: "fp32_active_ratio",
    1008: "fp16_active_ratio",
    1009: "pcie_send_bytes_per_s",
    1010: "pcie_receive_bytes_per_s",
    1011: "nvlink_send_bytes_per_s",
    1012: "nvlink_receive_bytes_per_s",
}
# DCGM refuses to watch any field if the GPU lacks one of them (NVLink, FP64), so smaller sets are tried next.
_CHOICES = (tuple(FIELDS), (1002, 1003, 1004, 1005, 1009, 1010), (1002, 1005))
# The least that DCGM's profiling module takes.
_INTERVAL_S = 0.1


class DcgmCounters:
    """Reads `dcgmi dmon` in a thread, started with the first window.

    Args:
        gpu: DCGM's index of the GPU, which is also NVML's.

    Attributes:
        note: why there are no counters; empty unless that is known.
    """

    def __init__(self, gpu: int = 0) -> None:
        self.gpu = gpu
        self._binary = shutil.which("dcgmi")
        self.note = "" if self._binary else "no DCGM counters: dcgmi is not installed"
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._closed = False

    def begin(self) -> None:
        if self._binary and self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        with self._lock:
            self._samples.clear()
        self._began = time.monotonic()

    def end(self) -> dict[str, float]:
        """Mean of every counter over the samples that lie entirely within the window; empty if there are none."""
        with self._lock:
            # A sample is the mean over an interval that ended up to one interval ago: dcgmi prints the latest that the host
            # engine has, which samples at its own times.
            rows = [values for when, values in self._samples if when - 2 * _INTERVAL_S >= self._began]
        names = {name for row in rows for name in row}
        return {
            name: sum(row[name] for row in rows if name in row) / sum(name in row for row in rows)
            for name in sorted(names)
        }

    def close(self) -> None:
        self._closed = True
        process = self._process
        if process is not None:
            process.terminate()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    # -- one thread ------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        last = ""
        for fields in _CHOICES:
            last, rows = self._read(fields)
            if rows or self._closed:
                return
        self.note = f"no DCGM counters: {last[:200] or 'dcgmi ended without a message'}"

    def _read(self, fields: Sequence[int]) -> tuple[str, int]:
        """Read one `dcgmi dmon` until it ends. Returns its last line that is not a sample, and the number of samples."""
        command = [
            *(str(self._binary), "dmon", "-i", str(self.gpu)),
            *("-e", ",".join(map(str, fields)), "-d", f"{1e3 * _INTERVAL_S:.0f}"),
        ]
        names, last, rows = [FIELDS[f] for f in fields], "", 0
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            return str(error), 0
        self._process = process
        if self._closed:
            process.terminate()
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                values = parse_row(line, names)
                if values is None:
                    last = line.strip() or last
                    continue
                rows += 1
                if rows > 1:  # the first sample precedes the watch
                    with self._lock:
                        self._samples.append((time.monotonic(), values))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2.0)
        return last, rows


def parse_row(line: str, names: Sequence[str]) -> dict[str, float] | None:
    """Counters by name from a line `GPU 0     0.981   N/A ...`, without those that are N/A; None for other lines."""
    words = line.split()
    if len(words) != len(names) + 2 or not words[0].startswith("GPU") or not words[1].isdigit():
        return None
    ratios: dict[str, float] = {}
    for name, word in zip(names, words[2:], strict=True):
        with contextlib.suppress(ValueError):  # N/A
            value = float(word)
            if math.isfinite(value):
                ratios[name] = value
    return ratios
