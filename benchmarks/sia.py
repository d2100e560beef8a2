"""Sia compared with the figures of its public simulator, and its integer program at 2,048 GPUs.

    python -m benchmarks.sia --data sia [--only philly/workload-1] [--ilp]

`--data` is the `sia` folder (with `traces` and `workloads`) of an upstream clone.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import RESULTS, record
from profiling.files import read_json
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


def reproduce(data: Path, only: str | None) -> list[dict[str, Any]]:
    """Run the published workloads with calibration factors by model, as applied by the public simulator."""
    rows = []
    for name, (cluster, mean, p99, largest) in PUBLISHED.items():
        if only is not None and only != name:
            continue
        spec = ScenarioSpec(f"sia:{data / 'workloads' / name.split()[0]}.csv", cluster)
        start = perf_counter()
        body = build_scenario(spec).run("sia").to_json()
        took = perf_counter() - start
        row = {
            "workload": name,
            "mean_jct_s": body["mean_jct_s"],
            "p99_jct_s": body["p99_jct_s"],
            "max_jct_s": body["max_jct_s"],
            "makespan_s": body["makespan_s"],
            "published_mean_jct_s": mean,
            "published_p99_jct_s": p99,
            "published_max_jct_s": largest,
            "mean_off_percent": 100 * (body["mean_jct_s"] / mean - 1),
            "p99_off_percent": 100 * (body["p99_jct_s"] / p99 - 1),
            "max_off_percent": 100 * (body["max_jct_s"] / largest - 1),
            "run_s": took,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "mean_decision_s": body["mean_decision_s"],
        }
        rows.append(row)
        print(
            f"{name:28s} mean {body['mean_jct_s']:7.0f} ({row['mean_off_percent']:+5.1f} %)  "
            f"p99 {body['p99_jct_s']:6.0f} ({row['p99_off_percent']:+5.1f} %)  "
            f"largest {body['max_jct_s']:6.0f} ({row['max_off_percent']:+5.1f} %)  makespan {body['makespan_s']:6.0f}  {took:.0f} s",
            flush=True,
        )
    return rows


def program(repeats: int = 5) -> dict[str, Any]:
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
        for _ in range(repeats):
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
    parser.add_argument("--ilp", action="store_true", help="only the integer program")
    arguments = parser.parse_args()
    last = RESULTS / "sia.json"
    figures: dict[str, Any] = read_json(last)["figures"] if last.exists() else {}
    if arguments.only is None:
        figures["program"] = program()
    if not arguments.ilp and arguments.data is not None:
        rows = {row["workload"]: row for row in figures.get("reproduction", ())}
        rows |= {row["workload"]: row for row in reproduce(arguments.data, arguments.only)}
        figures["reproduction"] = [rows[name] for name in PUBLISHED if name in rows]
    record("sia", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
