"""Every evaluation protocol for every registered predictor, and one Markdown table of them all.

    python -m benchmarks.protocols DIR [PREDICTOR,...]     run what is missing, then print the table
    python -m benchmarks.protocols                         print the table of what is stored

DIR is a folder of tables with the campaigns that the protocols name (`cotenant data import`).
"""

from __future__ import annotations

import sys

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


def run(directory: str, predictors: str | None) -> None:
    """Run the protocols one after another; a stopped run goes on where it was."""
    from predictor.protocols.catalogue import PROTOCOLS
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
    from predictor.protocols.catalogue import PROTOCOLS

    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for name in PROTOCOLS:
        path = FOLDER / name / "results.json"
        if not path.is_file():
            continue
        report = read_json(path)
        scale = 2.0**-30 if report["target"] == "set_memory_bytes" else 1.0
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


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print(table())


if __name__ == "__main__":
    main()
