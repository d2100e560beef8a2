"""Effect of `predictor.answering.threads.keep_freed_memory` on large calls, in separate processes.

    python -m benchmarks.kept_memory [--rounds 6]

Rounds alternate which goes first. Seconds are the minimum over a process's repeats, then the median over
rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.predict import all_pairs
from benchmarks.record import record

WAYS = ("kept", "returned")
REPEATS = 12


def _least(call: Callable[[], object]) -> tuple[float, float]:
    """Minimum wall time and minimum processor time of one call, after a warm-up."""
    call()
    wall, cpu = [], []
    for _ in range(REPEATS):
        started, used = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return min(wall), min(cpu)


def measure(way: str) -> dict[str, float]:
    """Seconds for 100,000 pairs and for 20,000 sets of four, in this process."""
    import torch

    from predictor import load_predictor
    from predictor.answering import threads

    torch.set_num_threads(1)
    if way == "returned":
        threads.keep_freed_memory = lambda: None
    predictor = load_predictor("default")
    rows = predictor.rows(all_pairs())
    pairs = rows[np.random.default_rng(0).integers(0, len(rows), 100_000)]
    fours = np.repeat(rows[:20], 1000, 0)[:, [0, 1, 0, 1]]
    figures = {}
    for name, asked in (("pairs_100000", pairs), ("sets_of_4_20000", fours)):
        figures[f"{name}_s"], figures[f"{name}_cpu_s"] = _least(
            partial(predictor.predict_rows, asked, "time-slice")
        )
    return figures


def main() -> None:
    """Print and record both, and how much longer calls take without it."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--rounds", type=int, default=6, help="rounds, each in new processes (default: %(default)s)"
    )
    parser.add_argument("--way", choices=WAYS, help="measure only this one, in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way)))
        return
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            command = [sys.executable, "-m", "benchmarks.kept_memory", "--way", way]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            measured[way].append(json.loads(answer.stdout.splitlines()[-1]))
    figures: dict[str, float] = {"rounds": options.rounds}
    for name in measured["kept"][0]:
        kept, returned = (float(np.median([m[name] for m in measured[way]])) for way in WAYS)
        figures |= {f"{name[:-2]}_kept_s": kept, f"{name[:-2]}_returned_s": returned}
        figures[f"{name[:-2]}_longer_percent"] = 100 * (returned / kept - 1)
    for name, value in figures.items():
        print(f"{name:36} {value:,.5g}")
    record("kept_memory", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
