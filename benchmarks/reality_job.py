"""One job of `benchmarks.reality`: trains a zoo model on one core and records its times and its processor time.

python -m benchmarks.reality_job SPEC STEPS CORE RESULT.json
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.command_line import run_benchmark
from profiling.files import write_json


def main() -> None:
    spec, steps, core, result = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    started_s = time.time()
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from profiling.measure.job import build_job
    from profiling.workload import Workload

    torch.set_num_threads(1)
    job = build_job(Workload.parse(spec), "cpu")
    job.step()
    ready_s, ready_cpu_s = time.time(), sum(os.times()[:2])
    for _ in range(steps):
        job.step()
    ended_s = time.time()
    body = {
        "started_s": started_s,
        "ready_s": ready_s,
        "ended_s": ended_s,
        "core": core,
        "ready_cpu_s": ready_cpu_s,
        "cpu_s": sum(os.times()[:2]),
    }
    write_json(result, body)


if __name__ == "__main__":
    run_benchmark(__file__, main)
