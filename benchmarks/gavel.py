"""Gavel as Sia's artifact runs it (`gavel-sia`), compared with that simulator's published figures.

    python -m benchmarks.gavel --data sia

`--data` is the `sia` folder (with `traces` and `workloads`) of an upstream clone. 160 rigid jobs on 64 GPUs.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.scenario_spec import ScenarioSpec

# workload: mean, 99th percentile and largest completion time in seconds of the public simulator
PUBLISHED = {
    "philly/workload-1": (6016.5, 97579.0, 126143.0),
    "saturn/workload-1": (6474.2, 78344.0, 80072.0),
}
FIGURES = ("mean_jct_s", "p99_jct_s", "max_jct_s")


def reproduce(data: Path, workload: str) -> dict[str, Any]:
    """Run one workload; return our figures, the published ones and their differences."""
    spec = ScenarioSpec(f"sia:{data / 'workloads' / workload}.csv", "sia-64", kind="rigid")
    start = perf_counter()
    body = build_scenario(spec).run("gavel-sia").to_json()
    row: dict[str, Any] = {
        "workload": workload,
        "run_s": perf_counter() - start,
        "restarts": body["restarts"],
    }
    for name, published in zip(FIGURES, PUBLISHED[workload], strict=True):
        off = 100 * (body[name] / published - 1)
        row |= {name: body[name], f"published_{name}": published, f"{name}_off_percent": off}
    print(
        workload,
        ", ".join(f"{n} {row[n]:,.0f} ({row[f'{n}_off_percent']:+.1f} %)" for n in FIGURES),
        flush=True,
    )
    return row


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with traces and workloads")
    rows = []
    data = parser.parse_args().data
    for workload in PUBLISHED:
        rows.append(reproduce(data, workload))
        record("gavel", {"reproduction": rows})


if __name__ == "__main__":
    run_benchmark(__file__, main)
