"""Write a benchmark's figures with date, machine and command."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from profiling.files import read_json, write_json

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores, memory and versions, on which figures depend."""
    import psutil

    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def loop_ms() -> float:
    """Processor time of a fixed loop, as a measure of the machine's current speed under other load."""
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number & 7
    return 1000 * (time.process_time() - started)


def stored_figures(name: str) -> dict[str, Any]:
    """The figures of `benchmarks/results/NAME.json`, none if there is no such file; raises `InputError` if it is
    not JSON."""
    path = RESULTS / f"{name}.json"
    return dict(read_json(path)["figures"]) if path.exists() else {}


def record(name: str, figures: dict[str, Any]) -> Path:
    """Write `figures` to `benchmarks/results/NAME.json` with date, machine and command, and print where."""
    # Local paths mean nothing to a reader; the last part shows which data was used.
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    module = getattr(sys.modules["__main__"].__spec__, "name", f"benchmarks.{name}")
    command = " ".join(["python", "-m", module, *words])
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    path = write_json(
        RESULTS / f"{name}.json",
        {"date": today, "machine": machine(), "command": command, "figures": figures},
    )
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path
