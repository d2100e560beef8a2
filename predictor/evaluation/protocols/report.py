"""A protocol's results as JSON, Markdown and SVG."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from datasets.splits import save_split
from datasets.targets import get_target
from predictor.evaluation.protocols.runner import Plan, data_fingerprint
from profiling.files import read_json, write_json, write_whole

HEADER = (
    "predictor",
    "MAPE %",
    "95 %",
    "median %",
    "MAE",
    "RMSE",
    "R2",
    "rho",
    "p90",
    "cover",
    "s/fold",
)


def earlier_results(plan: Plan) -> dict[str, Any]:
    """Results of an earlier run over the same rows and folds, for predictors that this run leaves out.

    Results of predictors that have changed since, or no longer exist, are dropped. `run` of the others has the
    command, date and machine with which they were measured. Reports without a fingerprint of their rows are
    compared by the number of rows alone.
    """
    from predictor.evaluation.protocols.registry import contenders

    path = plan.folder / "results.json"
    earlier = read_json(path) if path.is_file() else {}
    rows = _rows_of(plan)
    if isinstance(earlier, dict) and "fingerprint" not in earlier:
        del rows["fingerprint"]
    if not isinstance(earlier, dict) or any(earlier.get(key) != value for key, value in rows.items()):
        return {}
    now = {c.name: c.current_version for c in contenders(None)}
    run = {cell.contender.name for cell in plan.cells}
    made = {key: earlier[key] for key in ("command", "date", "machine") if key in earlier}
    return {
        name: {"run": made, **result}
        for name, result in earlier.get("predictors", {}).items()
        if name not in run and result.get("version", "1") == now.get(name)
    }


def make_report(plan: Plan, results: dict[str, Any], command: str) -> dict[str, Any]:
    """Everything needed to read the figures and to reproduce them."""
    from profiling.measure.environment import provenance

    trial = plan.trial
    return {
        "protocol": trial.protocol.name,
        "about": trial.protocol.about,
        **provenance(command),
        "target": trial.protocol.target,
        "split": trial.protocol.split,
        "with_solo": trial.protocol.with_solo,
        **_rows_of(plan),
        "seeds": sorted({cell.seed for cell in plan.cells}),
        "predictors": results,
    }


def _rows_of(plan: Plan) -> dict[str, Any]:
    """The rows and their split, in figures, with a fingerprint of both."""
    trial = plan.trial
    sides = [[f.name, sorted(f.train_set_ids), sorted(f.test_set_ids)] for f in trial.folds]
    body = json.dumps([data_fingerprint(trial), sides])
    rows = [trial.bundles(fold)[1] for fold in trial.folds]
    return {
        "folds": {
            f.name: {"sets": len(f.test_set_ids), "points": int(b.points.sum())}
            for f, b in zip(trial.folds, rows, strict=True)
        },
        "sets": int(trial.frame["set_id"].nunique()),
        "campaigns": {str(k): int(v) for k, v in trial.frame["campaign"].value_counts().sort_index().items()},
        "fingerprint": hashlib.sha256(body.encode()).hexdigest(),
    }


def write_report(plan: Plan, report: dict[str, Any]) -> list[Path]:
    """Write `results.json`, `results.md`, `split.json` and the plots into the protocol's folder."""
    folder = plan.folder
    return [
        write_json(folder / "results.json", report),
        write_whole(folder / "results.md", markdown(report)),
        save_split(
            folder / "split.json",
            plan.trial.folds,
            kind=plan.trial.protocol.split,
            protocol=report["protocol"],
        ),
        write_whole(folder / "predicted.svg", _scatter(plan, report)),
        write_whole(folder / "by_model.svg", _bars(report)),
    ]


def table(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows under `HEADER`, lowest MAPE first.

    They give MAPE with its 95 % bootstrap interval, the median absolute percentage error, errors in the
    target's unit, R2, Spearman's rho, `p90` (the 90 % quantile of the error), `cover` (the share inside the
    90 % intervals) and seconds per fold. A predictor that answered only some rows states how many.
    """
    scale = get_target(report["target"]).scale
    scored = []
    for name, result in report["predictors"].items():
        if "not_applicable" in result:
            continue
        m, interval = result["metrics"], result["intervals"]["mape_percent"]
        errors = (m["mae"], m["rmse"])
        part = f" ({m['n']} of {m['n'] + result['unanswered']})" if result.get("unanswered") else ""
        row = (
            name + part,
            _figure(m["mape_percent"], 1),
            "-" if interval[0] is None else f"{interval[0]:.1f}-{interval[1]:.1f}",
            _figure(m.get("median_ape_percent"), 1),
            *(_figure(error, 3, scale) for error in errors),
            _figure(m["r2"], 2),
            _figure(m["spearman"], 2),
            _figure(m["error_quantiles"]["p90"], 3, scale),
            _figure(m.get("coverage_90"), 2),
            f"{result['seconds_per_fold']:.1f}",
        )
        scored.append((m["mape_percent"] if m["mape_percent"] is not None else float("inf"), row))
    return [row for _, row in sorted(scored, key=lambda item: item[0])]


def absent(report: dict[str, Any]) -> list[str]:
    """Contenders that could not take part, and why."""
    return [
        f"{name}: not applicable, {result['not_applicable']}"
        for name, result in report["predictors"].items()
        if "not_applicable" in result
    ]


def _breakdowns(scored: dict[str, Any]) -> list[str]:
    """What the results are broken down by (`model`, `family`, ...); the first is used for the bar chart."""
    names = dict.fromkeys(
        key.removeprefix("by_") for result in scored.values() for key in result if key.startswith("by_")
    )
    return [what for what in names if what != "seed"]


def _values(scored: dict[str, Any], what: str) -> list[str]:
    return sorted({value for result in scored.values() for value in result.get(f"by_{what}", {})})


def _figure(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def markdown(report: dict[str, Any]) -> str:
    """The tables as a Markdown page."""
    points = sum(fold["points"] for fold in report["folds"].values())
    lines = [
        f"# {report['protocol']}",
        "",
        (
            f"{report['about'][0].upper()}{report['about'][1:]}. Target `{report['target']}`, split {report['split']}, {len(report['folds'])} folds, "
            f"{len(report['seeds'])} seed(s), {report['sets']} sets, {points} points; MAE, RMSE and p90 in {get_target(report['target']).unit}."
        ),
        "",
        _origin(report),
        *_kept(report["predictors"]),
        "",
        *_grid(HEADER, table(report)),
    ]
    if absent(report):
        lines += ["", *(f"* {line}" for line in absent(report))]
    scored = {k: v for k, v in report["predictors"].items() if "metrics" in v}
    lines += _bounds(scored)
    for what in _breakdowns(scored):
        title = f"MAPE % by {'held-out model' if (what, report['split']) == ('model', 'by-model') else what}"
        rows = [
            (
                value,
                str(max(r.get(f"by_{what}", {}).get(value, {}).get("n", 0) for r in scored.values())),
                *(
                    _figure(r.get(f"by_{what}", {}).get(value, {}).get("mape_percent"), 1)
                    for r in scored.values()
                ),
            )
            for value in _values(scored, what)
        ]
        lines += ["", f"## {title}", "", *_grid((what, "n", *scored), rows)]
    return "\n".join(lines) + "\n"


def _origin(run: dict[str, Any]) -> str:
    """With what command, when and where figures were measured."""
    return f"`{run['command']}`, {run['date']}, {run['machine'].get('processor', 'unknown processor')}"


def _kept(predictors: dict[str, Any]) -> list[str]:
    """Predictors whose results are those of an earlier run, by run."""
    by_run: dict[str, list[str]] = {}
    for name, result in predictors.items():
        if result.get("run"):
            by_run.setdefault(_origin(result["run"]), []).append(
                f"{name} ({len(result.get('by_seed', {}))} seed(s))"
            )
    lines = [f"* {', '.join(names)}: {origin}" for origin, names in by_run.items()]
    return ["", "Kept from earlier runs:", "", *lines] if lines else []


def _bounds(scored: dict[str, Any]) -> list[str]:
    """Rows with only a known bound: how many predictions are on its wrong side."""
    sides = ("at_least", "at_most")
    rows = [
        (
            name,
            *(
                f"{100 * (1 - side['kept_ratio']):.1f} ({side['n']})" if side else "-"
                for side in (result["bounds"].get(side) for side in sides)
            ),
        )
        for name, result in scored.items()
        if "bounds" in result
    ]
    header = ("predictor", "% below a lower bound (n)", "% above an upper bound (n)")
    return ["", "## Rows with bounds", "", *_grid(header, rows)] if rows else []


def _grid(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _scatter(plan: Plan, report: dict[str, Any]) -> str:
    """Predicted against measured, one panel per predictor of this run."""
    from matplotlib.figure import Figure

    run = {cell.contender.name for cell in plan.cells}
    names = [n for n, result in report["predictors"].items() if "metrics" in result and n in run]
    sides = {fold.name: plan.trial.bundles(fold)[1] for fold in plan.trial.folds}
    figure = Figure(figsize=(2.6 * max(1, len(names)), 2.8), layout="constrained")
    panels = figure.subplots(1, max(1, len(names)), squeeze=False, sharex=True, sharey=True)[0]
    for panel, name in zip(panels, names, strict=False):
        measured, predicted = [], []
        for cell in plan.cells:
            if cell.contender.name == name:
                side = sides[cell.fold.name]
                stored = np.array(read_json(plan.folder / cell.file)["predicted"], dtype=np.float64)
                measured.append(side.y[side.points])
                predicted.append(stored[side.points])
        x, y = np.concatenate(measured), np.concatenate(predicted)
        panel.scatter(x, y, s=3, alpha=0.35, linewidths=0, rasterized=True)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        panel.plot(ends, ends, color="0.4", linewidth=0.8)
        if get_target(report["target"]).logarithmic:
            panel.set_xscale("log")
            panel.set_yscale("log")
        panel.set_title(
            f"{name}\nMAPE {report['predictors'][name]['metrics']['mape_percent']:.1f} %", fontsize=8
        )
        panel.set_xlabel("measured", fontsize=8)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel(f"predicted {report['target']}", fontsize=8)
    return _svg(figure)


def _bars(report: dict[str, Any]) -> str:
    """MAPE by model, one group of bars per model."""
    from matplotlib.figure import Figure

    scored = {k: v for k, v in report["predictors"].items() if "metrics" in v}
    what = next(iter(_breakdowns(scored)), "model")
    models = _values(scored, what)
    figure = Figure(figsize=(max(5.0, 0.9 * len(models) + 2), 3.2), layout="constrained")
    panel = figure.subplots()
    width = 0.8 / max(1, len(scored))
    for position, (name, result) in enumerate(scored.items()):
        heights = [result.get(f"by_{what}", {}).get(m, {}).get("mape_percent") or 0.0 for m in models]
        panel.bar(np.arange(len(models)) + position * width, heights, width, label=name)
    panel.set_xticks(np.arange(len(models)) + 0.4 - width / 2, models, rotation=30, ha="right", fontsize=7)
    panel.set_ylabel("MAPE %", fontsize=8)
    panel.tick_params(axis="y", labelsize=7)
    if scored:
        panel.legend(fontsize=7, frameon=False)
    return _svg(figure)


def _svg(figure: Any) -> str:
    """SVG text without a date, so that equal results give identical files."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
