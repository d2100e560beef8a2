"""Every evaluation protocol with every registered predictor, and Markdown tables of targets and full results.

    python -m benchmarks.protocols DIR [PREDICTOR,...]     run what is missing, then print the tables
    python -m benchmarks.protocols                         print the tables of the stored results

DIR is a folder of tables with the campaigns that the protocols use (`cotenant data import`).
"""

from __future__ import annotations

import sys

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import RESULTS
from profiling.files import read_json

HEADER = (
    "protocol",
    "n",
    "predictor",
    "MAPE % (95 %)",
    "MAE",
    "RMSE",
    "R2",
    "Spearman",
    "p90 error",
    "coverage",
)
FOLDER = RESULTS / "protocols"
NETWORKS = ("e-ggat", "gcn", "gat", "shipped")
# Protocol -> (our predictor, its targets). Utilisation in percentage points, the others as mean error in per
# cent.
TARGETS: dict[str, tuple[str, dict[str, float]]] = {
    "lucid-by-pair": ("e-ggat", {"mape_percent": 3.7}),
    "lucid-by-model": ("e-ggat", {"mape_percent": 5.0, "r2": 0.7}),
    "lucid-by-model-graph-only": ("e-ggat", {"mape_percent": 7.0, "r2": 0.5}),
    "gavel2020-by-model": ("e-ggat", {"mape_percent": 12.0}),
    "gavel2019-by-model": ("e-ggat", {"mape_percent": 12.0}),
    "gavel-by-device": ("e-ggat", {"mape_percent": 15.0, "r2": 0.5}),
    "lucid-memory-by-model": ("e-ggat", {"mape_percent": 1.9}),
    "lucid-utilization-by-model": ("e-ggat", {"mae": 0.044}),
    "solo-by-model": ("e-ggat", {"mape_percent": 20.0}),
    "lucid-zero-shot": ("shipped", {"mape_percent": 8.0, "spearman": 0.7}),
}
FIGURES = {"mape_percent": "{:.1f} %", "r2": "R2 {:.2f}", "spearman": "Spearman {:.2f}", "mae": "{:.3f}"}


def run(directory: str, predictors: str | None) -> None:
    """Run the protocols one after another; an interrupted run resumes."""
    from predictor.evaluation.protocols.catalogue import PROTOCOLS
    from serving.cli.main import main as command

    for name in PROTOCOLS:
        arguments = ["benchmark", "run", name, "--data", directory, "--out", str(FOLDER)]
        try:
            command(arguments + (["--predictors", predictors] if predictors else []))
        except SystemExit as ended:
            if ended.code:
                print(f"{name}: exit code {ended.code}", file=sys.stderr)


def table() -> str:
    """All stored protocols as one Markdown table, in the catalogue's order."""
    from datasets.targets import get_target
    from predictor.evaluation.protocols.catalogue import PROTOCOLS

    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for name in PROTOCOLS:
        path = FOLDER / name / "results.json"
        if not path.is_file():
            continue
        report = read_json(path)
        scale = get_target(report["target"]).scale
        scored = {k: v for k, v in report["predictors"].items() if "metrics" in v}
        for predictor, result in sorted(scored.items(), key=lambda item: item[1]["metrics"]["mape_percent"]):
            m, (low, high) = result["metrics"], result["intervals"]["mape_percent"]
            cells = (
                name,
                str(m["n"]),
                predictor,
                f"{m['mape_percent']:.1f} ({low:.1f} to {high:.1f})",
                *(f"{m[key] * scale:.3f}" for key in ("mae", "rmse")),
                f"{m['r2']:.2f}",
                "-" if m["spearman"] is None else f"{m['spearman']:.2f}",
                f"{m['error_quantiles']['p90'] * scale:.3f}",
                "-" if m.get("coverage_90") is None else f"{m['coverage_90']:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def targets() -> str:
    """Targets, the best baseline and ours, as a Markdown table."""
    lines = ["| protocol | target | best baseline | ours | met |", "|---|---|---|---|---|"]
    for name, (ours, wanted) in TARGETS.items():
        path = FOLDER / name / "results.json"
        scored = (
            {k: v["metrics"] for k, v in read_json(path)["predictors"].items() if "metrics" in v}
            if path.is_file()
            else {}
        )
        if ours not in scored:
            continue
        first = next(iter(wanted))
        baselines = {k: v for k, v in scored.items() if k not in NETWORKS}
        best = min(baselines, key=lambda k: baselines[k][first], default="")
        cells = [
            name,
            _figures(wanted, wanted),
            f"{best} {_figures(baselines[best], wanted)}" if best else "-",
            f"{ours} {_figures(scored[ours], wanted)}",
            "yes" if all(_reaches(scored[ours][k], k, v) for k, v in wanted.items()) else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures(values: dict[str, float], which: dict[str, float]) -> str:
    return ", ".join(FIGURES[k].format(values[k]) if values[k] is not None else "-" for k in which)


def _reaches(value: float, key: str, wanted: float) -> bool:
    return value >= wanted if key in ("r2", "spearman") else value <= wanted


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", nargs="?", metavar="DIR", help="run missing protocols on these tables")
    parser.add_argument("predictors", nargs="?", metavar="PREDICTOR,...", help="only these")
    options = parser.parse_args()
    if options.tables:
        run(options.tables, options.predictors)
    print(targets(), table(), sep="\n\n")


if __name__ == "__main__":
    run_benchmark(__file__, main)
