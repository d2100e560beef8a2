"""Every policy on one trace, rigid, elastic and with tunable batches: the tables of `docs/scheduling.md`.

    python -m benchmarks.policies --data TABLES [--seeds 10] [--policies fifo,srtf,...] [--kinds rigid,elastic,tunable]

TABLES is a folder of imported tables with Gavel's measured pairs, which are truth and belief. Elastic: every
job may use from 1 GPU to 2 or 4 times the number it requests; tunable: it may also choose its batch size
among those measured. Cheap policies run first, and results are written after each.
"""

from __future__ import annotations

from typing import Any

from benchmarks.command_line import add_name, benchmark_parser, names_of, record_name, run_benchmark
from benchmarks.record import record
from scheduling.policies import get_policy
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.simulator.sweep import run_all, summarize

KINDS = ("rigid", "elastic", "tunable")
TRACE, CLUSTER = "synthetic:rate=16,jobs=100", "small-mixed"
POLICIES = (
    "fifo", "exclusive", "sjf", "srtf", "blind", "blind-sjf", "tiresias", "themis", "optimus", "optimus-shortest",
    "pollux", "icefrog-unfrozen", "isacpp", "isacpp-makespan", "gavel-fifo", "gavel-max-sum", "gavel-finish-time",
    "gavel", "sia", "sia-packed",
)  # fmt: skip
COLUMNS = {
    "mean_jct_s": "mean JCT s",
    "p99_jct_s": "p99 s",
    "makespan_s": "makespan s",
    "mean_queue_s": "queue s",
    "utilization_ratio": "GPUs used",
    "restarts": "restarts",
    "mean_decision_s": "decision ms",
}


def cell(body: dict[str, Any], name: str) -> str:
    """A figure and, over several seeds, its standard error."""
    factor, digits = {"mean_decision_s": (1e3, 1), "utilization_ratio": (1.0, 2)}.get(name, (1.0, 0))
    text = f"{factor * body[name]:,.{digits}f}"
    error = body.get("standard_error", {}).get(name)
    return text if error is None or name == "mean_decision_s" else f"{text} ({factor * error:,.{digits}f})"


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", required=True, help="folder of imported tables")
    parser.add_argument("--seeds", type=int, default=10, help="traces of each kind (default: %(default)s)")
    parser.add_argument(
        "--policies", default=",".join(POLICIES), help="comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--kinds",
        type=names_of(KINDS),
        default=list(KINDS),
        help="kinds of jobs, comma-separated (default: all)",
    )
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "policies", "policies", "kinds")
    chosen = arguments.policies.split(",")
    for policy in chosen:  # a run that fails is a row of the table, a name that does not exist is an error
        get_policy(policy)
    figures: dict[str, dict[str, Any]] = {kind: {} for kind in arguments.kinds}
    lines = ["| jobs | policy | " + " | ".join(COLUMNS.values()) + " |\n" + "|---" * (2 + len(COLUMNS)) + "|"]
    for policy in chosen:
        for kind, by_policy in figures.items():
            elastic, tunable = float(kind != "rigid"), float(kind == "tunable")
            spec = ScenarioSpec(
                TRACE, CLUSTER, 1, arguments.data, belief="truth", elastic=elastic, tunable=tunable
            )
            body = summarize(run_all(spec, [policy], seeds=arguments.seeds))[0]
            body.pop("users", None)
            by_policy[policy] = body
            cells = [body["error"]] if "error" in body else [cell(body, name) for name in COLUMNS]
            lines.append(f"| {kind} | {policy} | " + " | ".join(cells) + " |")
            record(stem, {**figures, "seeds": arguments.seeds})
    print("\n".join(lines))


if __name__ == "__main__":
    run_benchmark(__file__, main)
