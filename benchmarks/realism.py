"""Effect of each realistic disturbance on the policies: one at a time, and all together.

    python -m benchmarks.realism --data TABLES [--policies fifo,srtf,...] [--seeds 3] [--jobs 300]

TABLES is a folder of imported tables with Gavel's pairs, which are truth and belief. Changes are relative to
the same policy on an ideal cluster with the same seeds. Every job may be resized, so scaling affects policies
that resize.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from profiling.files import write_whole
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.realism import OPTIONS, PARTS
from scheduling.simulator.scenario_spec import ScenarioSpec

CLUSTER = """nodes:
  - {name: v100, count: 4, gpus: [{device: v100, count: 4}]}
  - {name: p100, count: 3, gpus: [{device: p100, count: 4}]}
  - {name: k80, count: 3, gpus: [{device: k80, count: 4}]}
"""
POLICIES = "fifo,sjf,srtf,blind-sjf,tiresias,themis,optimus,pollux,gavel,sia,isacpp"
FIGURES = ("mean_jct_s", "p99_jct_s", "makespan_s")
COUNTS = ("restarts", "node_failures", "lost_gpu_hours", "ended_early")


def changes(ideal: list[dict[str, Any]], real: list[dict[str, Any]]) -> dict[str, Any]:
    """Change by figure in per cent, with standard errors over the seeds; means of the counts."""
    body: dict[str, Any] = {name: float(np.mean([r[name] for r in real])) for name in (*FIGURES, *COUNTS)}
    for name in FIGURES:
        change = np.array([100.0 * (r[name] / i[name] - 1.0) for i, r in zip(ideal, real, strict=True)])
        error = float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else None
        body[f"{name}_change_percent"], body[f"{name}_standard_error"] = float(change.mean()), error
    return body


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", required=True, help="folder of imported tables")
    parser.add_argument("--policies", default=POLICIES, help="comma-separated (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="traces (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=300, help="jobs per trace (default: %(default)s)")
    parser.add_argument(
        "--load",
        type=float,
        default=0.9,
        help="requested share of the cluster's GPU time (default: %(default)s)",
    )
    parser.add_argument(
        "--parts",
        help=f"comma-separated, of {', '.join(PARTS | OPTIONS)}, all (default: all but the options)",
    )
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "realism", "policies", "parts", "load")
    folder = tempfile.TemporaryDirectory()
    cluster = write_whole(Path(folder.name) / "cluster.yaml", CLUSTER)
    trace = f"synthetic:rate=20,jobs={arguments.jobs},gangs=0.2"
    chosen = arguments.parts.split(",") if arguments.parts else [*PARTS, "all"]
    parts: dict[str, tuple[str, ...]] = {"ideal": (), **{name: (name,) for name in chosen}}
    policies = arguments.policies.split(",")
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(arguments.seeds):  # complete seeds, so that an early stop still has all parts
        for name, realism in parts.items():
            spec = ScenarioSpec(
                trace, str(cluster), seed, arguments.data, belief="truth", load=arguments.load, elastic=1.0,
                realism=realism,
            )  # fmt: skip
            scenario = build_scenario(spec)
            for policy in policies:
                runs.setdefault((policy, name), []).append(scenario.run(policy).to_json())
        figures: dict[str, Any] = {"seeds": seed + 1, "jobs": arguments.jobs, "load": arguments.load}
        for policy, name in runs:
            figures[f"{policy}: {name}"] = changes(runs[policy, "ideal"], runs[policy, name])
        record(stem, figures)
    print(markdown(figures, policies, list(parts)))


def markdown(figures: dict[str, Any], policies: Sequence[str], parts: Sequence[str]) -> str:
    """The table of `docs/scheduling.md`: per policy, the change of the mean completion time by part."""
    lines = [f"| policy | {' | '.join(parts)} |", "|---" * (1 + len(parts)) + "|"]
    for policy in policies:
        cells = []
        for part in parts:
            body = figures[f"{policy}: {part}"]
            if part == "ideal":
                cells.append(", ".join(f"{body[f]:,.0f}" for f in FIGURES))
            else:
                error = body["mean_jct_s_standard_error"]
                told = ", ".join(f"{body[f'{f}_change_percent']:+.0f}" for f in FIGURES)
                cells.append(told if error is None else f"{told} ({error:.0f})")
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_benchmark(__file__, main)
