"""An HTML report on a folder of measurements.

It shows what was measured, how reliably, and how the predictor compares.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.tables import read_parquet
from predictor.campaigns import figures
from profiling.campaign.slices import read_results, slice_files
from profiling.errors import CotenantError, InputError
from profiling.files import write_whole
from profiling.spelling import short_hashes
from profiling.workload import REGISTERED, ColocationSet, Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.predictor import Predictor

Frames = dict[str, "pd.DataFrame"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 13px; } th { text-align: left; border-bottom: 1px solid #888; }
th, td { padding: 3px 10px 3px 0; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
tr:nth-child(even) td { background: #f5f6f8; } svg { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
.note { color: #57606a; }
"""


def write_report(folder: Path, output: Path, predictor: str | None = "default") -> Path:
    """Write the page to `output`, and return its path.

    Args:
        folder: tables (`*.parquet`) or slices of a campaign, unfinished ones included.
        output: the HTML file.
        predictor: compared with the measured sets; None omits the section.

    Raises:
        InputError: the folder holds neither.
        UnknownNameError: no such predictor.
    """
    frames = load_frames(folder)
    parts = [_summary(frames), _solo(frames), *_heat_maps(frames), _spread(frames), _freezing(frames)]
    if predictor is not None:
        parts.append(_predicted(frames, predictor))
    title = f"Measurements: {escape(folder.name)}"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )
    return write_whole(output, page)


def load_frames(folder: Path) -> Frames:
    """Table name -> rows, from the tables of a folder or those that its slices make.

    Raises:
        InputError: the folder holds neither, or a file that is not Parquet.
    """
    if slice_files(folder):
        from profiling.measure.tables import tables

        return tables(list(read_results([folder]).records.values()), folder.name)
    names = ("solo", "colocation", "freezing", "measurements")
    parts = {n: read_parquet(folder / f"{n}.parquet") for n in names if (folder / f"{n}.parquet").is_file()}
    if not parts:
        raise InputError(
            f"no measurements in {folder}",
            expected="tables (*.parquet) or slices (slice-*.jsonl)",
            hint="measure with `cotenant profile` or `cotenant campaign run`",
        )
    return parts


def _summary(frames: Frames) -> str:
    counts = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{len(frame)}</td></tr>" for name, frame in frames.items()
    )
    some = next(iter(frames.values()))
    campaigns = ", ".join(sorted(set(some["campaign"].astype(str))))
    text = f"<p>Campaign: {escape(campaigns)}.</p><table><tr><th>table<th>rows</tr>{counts}</table>"
    if "measurements" in frames:
        m = frames["measurements"]
        if len(m):
            started = m["started_at"].astype(str)
            text += f"<p class=note>Measured from {escape(started.min())} to {escape(started.max())}.</p>"
        failed = m[m["outcome"] != "ok"]
        for row in failed.to_dict("records"):
            what = f"{row['workload']} ({row['kind']}): {row['outcome']}: {row['message']}"
            text += f"<p class=note>{escape(what)}</p>"
    return text


def _table(headings: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(h)}" for h in headings)
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if i < 2 else ' class=n'}>{escape(c)}</td>" for i, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _number(value: object, scale: float = 1.0, digits: int = 2) -> str:
    number = float(value) if isinstance(value, int | float) else float("nan")
    return "" if number != number else f"{number * scale:,.{digits}f}"


def shown(row: Mapping[Hashable, Any]) -> str:
    """The job of a row, with the name that its owner gave to a captured graph."""
    job = Workload.parse(row["workload"])
    named = replace(job, model=row["architecture"]) if job.model.startswith(REGISTERED) else job
    return short_hashes(str(named))


def _solo(frames: Frames) -> str:
    if "solo" not in frames or not len(frames["solo"]):
        return ""
    rows = [
        [
            str(r["device"]),
            shown(r),
            _number(r["step_time_s"], 1e3, 3),
            _number(r["samples_per_s"], 1, 1),
            _number(r["memory_bytes"], 1e-6, 0),
            _number(r["utilization_ratio"], 100, 0),
            _number(r["memory_bandwidth_ratio"], 100, 0),
        ]
        for r in frames["solo"].sort_values(["device", "workload"]).to_dict("records")
    ]
    headings = ["device", "job", "step ms", "samples/s", "memory MB", "utilisation %", "memory bandwidth %"]
    return "<h2>Alone</h2>" + _table(headings, rows)


def _with_measured_ratios(colocation: pd.DataFrame) -> pd.DataFrame:
    """The rows, without ratios that are hard-coded or bounds."""
    point = colocation["is_target"] & ~colocation["censored"]
    return colocation.assign(throughput_ratio=colocation["throughput_ratio"].where(point))


def pair_slowdowns(colocation: pd.DataFrame) -> pd.DataFrame:
    """Rows (device, sharing, job, neighbour, slowdown) of all measured pairs."""
    import pandas as pd

    rows = []
    colocation = _with_measured_ratios(colocation)
    for _, members in colocation.groupby("set_id"):
        if len(members) == 2:
            a, b = members.to_dict("records")
            rows += [
                {
                    "device": x["device"],
                    "sharing": x["sharing"],
                    "job": shown(x),
                    "neighbour": shown(y),
                    "slowdown": 1.0 / x["throughput_ratio"],
                }
                for x, y in ((a, b), (b, a))
                if x["throughput_ratio"] > 0
            ]
    return pd.DataFrame(rows)


def _heat_maps(frames: Frames) -> list[str]:
    if "colocation" not in frames:
        return []
    pairs = pair_slowdowns(frames["colocation"])
    if not len(pairs):
        return []
    parts = ["<h2>Together: slowdown of pairs</h2><p>Step time together / step time alone.</p>"]
    for i, ((device, sharing), some) in enumerate(pairs.groupby(["device", "sharing"])):
        parts.append(f"<h3>{escape(str(device))}, {escape(str(sharing))}</h3>")
        parts.append(f'<div class="scroll">{figures.heat_map(some, f"heat{i}")}</div>')
    return parts


def _spread(frames: Frames) -> str:
    if "measurements" not in frames or not len(frames["measurements"]):
        return ""
    m = frames["measurements"]
    verdicts = m["verdict"].fillna(m["solo_verdict"]).value_counts()
    text = ", ".join(f"{escape(str(name))}: {count}" for name, count in verdicts.items())
    return f"<h2>Spread</h2><p>Verdicts: {text}.</p>" + figures.spread(m)


def _freezing(frames: Frames) -> str:
    if "freezing" not in frames or not len(frames["freezing"]):
        return ""
    frame = frames["freezing"]
    based = set(frame.loc[frame["frozen_prefix"] == 0, "architecture"])
    missing = sorted(set(frame["architecture"]) - based)
    if not based:
        return (
            f"<h2>Frozen prefix</h2><p class=note>No unfrozen run to compare with: "
            f"{escape(short_hashes(', '.join(missing)))}.</p>"
        )
    text = "<h2>Frozen prefix</h2>" + figures.freezing(
        frame, "step_time_s", "step time / step time unfrozen", "freezing-time"
    )
    if frame["memory_bytes"].notna().any():
        text += figures.freezing(frame, "memory_bytes", "memory / memory unfrozen", "freezing-memory")
    return text


def compare(colocation: pd.DataFrame, predictor: Predictor) -> pd.DataFrame:
    """Rows (device, job, set, measured, predicted, lower, upper) of every measured member of every set.

    Raises:
        CotenantError: the predictor does not know a device or model.
    """
    import pandas as pd

    sets, measured, names = [], [], []
    for _, members in _with_measured_ratios(colocation).groupby("set_id", sort=False):
        ordered = members.sort_values("member")
        workloads = tuple(Workload.parse(spec) for spec in ordered["workload"])
        sets.append(ColocationSet(str(ordered["device"].iloc[0]), workloads, str(ordered["sharing"].iloc[0])))
        measured.append([float(v) for v in ordered["throughput_ratio"]])
        names.append([shown(row) for row in ordered.to_dict("records")])
    rows = []
    predictions = predictor.predict_many(sets)
    for asked, jobs, ratios, prediction in zip(sets, names, measured, predictions, strict=True):
        for job, ratio, member in zip(jobs, ratios, prediction.members, strict=True):
            if math.isnan(ratio):
                continue
            q = member.throughput_ratio
            rows.append(
                {
                    "device": asked.device,
                    "job": job,
                    "set": " + ".join(jobs),
                    "measured": ratio,
                    "predicted": q.value,
                    "lower": q.lower,
                    "upper": q.upper,
                }
            )
    return pd.DataFrame(rows)


def _predicted(frames: Frames, predictor: str) -> str:
    if "colocation" not in frames or not len(frames["colocation"]):
        return ""
    heading = f"<h2>Predicted against measured ({escape(predictor)})</h2>"
    from predictor import load_predictor

    loaded = load_predictor(predictor)
    try:
        frame = compare(frames["colocation"], loaded)
    except CotenantError as error:
        return f"{heading}<p class=note>No comparison: {escape(str(error))}</p>"
    if not len(frame):
        return f"{heading}<p class=note>No comparison: no member has a measured throughput ratio.</p>"
    error_percent = (frame["predicted"] / frame["measured"] - 1).abs() * 100
    covered = ((frame["measured"] >= frame["lower"]) & (frame["measured"] <= frame["upper"])).mean()
    worst = frame.assign(error=error_percent).sort_values("error", ascending=False)
    rows = [
        [
            r["job"],
            r["set"],
            _number(r["measured"], 1, 3),
            _number(r["predicted"], 1, 3),
            f"{r['lower']:.3f} to {r['upper']:.3f}",
            _number(r["error"], 1, 1),
        ]
        for r in worst.to_dict("records")
    ]
    return (
        f"{heading}<p>{len(frame)} members: mean absolute error {error_percent.mean():.1f} %, median "
        f"{error_percent.median():.1f} %; {covered:.0%} within the 90 % interval. If the predictor learned "
        f"from these rows, the error is too optimistic.</p>"
        + figures.predicted(frame)
        + _table(["job", "set", "measured", "predicted", "90 % interval", "error %"], rows)
    )
