"""Sia compared with the figures of its public simulator, and its integer program at 2,048 GPUs.

    python -m benchmarks.sia --data sia [--only philly/workload-1] [--shifts 10] [--ilp]

`--data` is the `sia` folder (with `traces` and `workloads`) of an upstream clone.
"""

from __future__ import annotations

import datetime
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import kept_rows, record_part
from profiling.ending import end_with_parent
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.scenario_spec import ScenarioSpec

# workload: (cluster, mean, 99th percentile, largest completion time in seconds of the public simulator)
PUBLISHED = {
    "philly/workload-1": ("sia-64", 1949.8, 28107.0, 39658.0),
    "saturn/workload-1": ("sia-64", 2091.1, 26746.0, 37910.0),
    "saturn/workload-2": ("sia-64", 2575.2, 31670.0, 35438.0),
    "saturn/workload-3": ("sia-64", 2671.5, 33523.0, 47279.0),
    "philly/workload-1 on 64 T4": ("sia-64-homogeneous", 6043.6, 57338.0, 67146.0),
}


FIGURES = ("mean_jct_s", "p99_jct_s", "max_jct_s", "makespan_s", "mean_decision_s")


def run_shifted(data: Path, name: str, shift_s: float) -> dict[str, float]:
    """Figures of a workload under the published settings, all jobs submitted `shift_s` later.

    Later by a second or by twelve, decisions fall otherwise, and the longest jobs end up to a fifth earlier or later.
    """
    # The public simulator rounds values to two decimals, and has no cost of moving a job in its objective.
    spec = ScenarioSpec(
        f"sia:{data / 'workloads' / name.split()[0]}.csv", PUBLISHED[name][0], upstream_rounds=True
    )
    scenario = build_scenario(spec)
    scenario.jobs = [replace(job, submit_s=job.submit_s + shift_s) for job in scenario.jobs]
    body = scenario.run("sia").to_json()
    return {figure: body[figure] for figure in FIGURES}


def reproduce(data: Path, only: str | None, shifts: int) -> list[dict[str, Any]]:
    """Run the published workloads with calibration factors by model, as applied by the public simulator.

    Figures are means over `shifts` runs; of completion times, `_range` has the lowest and highest.
    """
    rows = []
    with ProcessPoolExecutor(initializer=end_with_parent) as pool:
        for name, (_, *published) in PUBLISHED.items():
            if only is not None and only != name:
                continue
            start = perf_counter()
            runs = list(pool.map(partial(run_shifted, data, name), range(shifts)))
            figures = {figure: [run[figure] for run in runs] for figure in FIGURES}
            row: dict[str, Any] = {"workload": name, "shifts": shifts}
            row |= {figure: float(np.mean(values)) for figure, values in figures.items()}
            said = [f"{name:28s}"]
            for figure, value in zip(FIGURES, published, strict=False):
                key, low, high = figure.removesuffix("_jct_s"), min(figures[figure]), max(figures[figure])
                row[f"{figure}_range"] = [low, high]
                row[f"published_{figure}"] = value
                row[f"{key}_off_percent"] = 100 * (row[figure] / value - 1)
                said.append(
                    f"{key} {row[figure]:,.0f} ({row[f'{key}_off_percent']:+.1f} %; {low:,.0f} to {high:,.0f})"
                )
            rows.append(row | {"run_s": perf_counter() - start, "date": datetime.date.today().isoformat()})
            print("  ".join(said), flush=True)
    return rows


def program() -> dict[str, Any]:
    """One round at 2,048 GPUs (32 times the 64-GPU cluster): both formulations, to a gap of 1e-7.

    The jobs are like those of `scale_32x`, where every job of a 64-GPU workload occurs 32 times: goodput rows
    of a concave speedup, most jobs with a current allocation. `alike`: copies have equal rows; `apart`: 5 %
    noise on each goodput, so that no two rows are equal.
    """
    from scheduling.sia.configurations import configurations
    from scheduling.sia.ilp import solve, solve_full, total_worth
    from scheduling.sia.objective import SiaConfig, utilities

    table = configurations([192, 96, 64], [4, 8, 8])
    gpus = np.array([c.gpus for c in table])
    kinds = np.array([c.kind for c in table])
    capacity = np.array([768, 768, 512])
    figures: dict[str, Any] = {"configurations": len(table), "gpus": int(capacity.sum())}
    for name, noise in (("alike", 0.0), ("apart", 0.05)):
        rng = np.random.default_rng(7)
        base, copies = 20, 32
        speed = rng.uniform(1.0, 3.0, (base, 3)) * np.array([1.0, 1.4, 3.0])
        exponent = rng.uniform(0.5, 0.95, base)
        most = 2 ** rng.integers(0, 7, base)
        goodput = speed[:, kinds] * gpus[None, :] ** exponent[:, None]
        goodput = np.where(gpus[None, :] <= most[:, None], goodput, np.nan)
        present = np.array([rng.choice(np.flatnonzero(np.isfinite(row))) for row in goodput])
        present[rng.random(base) < 0.2] = -1
        goodput, present = np.repeat(goodput, copies, axis=0), np.repeat(present, copies)
        goodput = goodput * rng.normal(1.0, noise, goodput.shape) if noise else goodput
        factor = np.repeat(rng.uniform(0.6, 1.0, base), copies)
        worth = utilities(goodput, np.ones(len(goodput)), factor, present, SiaConfig())
        ours_s, full_s = [], []
        for _ in range(5):
            start = perf_counter()
            ours = solve(worth, gpus, kinds, capacity, gap=1e-7)
            ours_s.append(perf_counter() - start)
            start = perf_counter()
            full = solve_full(worth, gpus, kinds, capacity, gap=1e-7)
            full_s.append(perf_counter() - start)
        a, b = total_worth(worth, ours), total_worth(worth, full)
        figures[name] = {
            "jobs": len(worth),
            "objective": a,
            "full_matrix_objective": b,
            "relative_difference": abs(a - b) / abs(b),
            "solve_s": float(np.median(ours_s)),
            "full_matrix_s": float(np.median(full_s)),
        }
        print(name, figures[name], flush=True)
    return figures


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, help="folder with traces and workloads")
    parser.add_argument("--only", choices=PUBLISHED, help="only this workload; the others keep their figures")
    parser.add_argument(
        "--shifts", type=int, default=10, help="runs, each submitted a second later (default: %(default)s)"
    )
    parser.add_argument("--ilp", action="store_true", help="only the integer program")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    if arguments.only is None:
        figures["program"] = program()
    if not arguments.ilp and arguments.data is not None:
        rows = {row["workload"]: row for row in kept_rows("sia", "reproduction")}
        rows |= {row["workload"]: row for row in reproduce(arguments.data, arguments.only, arguments.shifts)}
        figures["reproduction"] = [rows[name] for name in PUBLISHED if name in rows]
    record_part("sia", figures, renamed={"programme": "program"})


if __name__ == "__main__":
    run_benchmark(__file__, main)
