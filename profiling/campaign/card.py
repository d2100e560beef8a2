"""Generates the data card from the records: what was measured, where, when, and how reliable it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from profiling.measure.statistics import MAD_SCALE, median_absolute_deviation
from profiling.measure.tables import LICENCE

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = (
    "Columns are those of docs/data.md; `measurements.parquet` has all results of every member of every run, including "
    "failed ones. A step time is the median over the repeats, a ratio the median of the ratios "
    "within each repeat. Inputs are random tensors of the right shape, so reading files is not included. Freezing "
    "rows with the note `cached-activations` took the output of the prefix from host memory."
)
_CPU = (
    "On the CPU all members are pinned to one core, with one thread each, and share that core. Memory is the peak "
    "of the process's resident set, including shared library pages (about 0.3 GB). Rows from different machines are not "
    "comparable, because all results depend on the core's speed and caches."
)


def data_card(
    name: str,
    records: Sequence[dict[str, Any]],
    environments: Sequence[dict[str, Any]],
    frames: dict[str, pd.DataFrame],
) -> str:
    """The card of campaign `name` as Markdown."""
    days = sorted({r["started_at"][:10] for r in records})
    parts = [
        f"# {name}",
        "Measurements of training jobs alone, together and with a frozen prefix, made by `cotenant campaign run` "
        "(docs/measuring.md says how) and exported by `cotenant campaign export`. Licence: " + LICENCE + ".",
        "## Where and when",
        f"Measured from {days[0]} to {days[-1]}, {sum(r['wall_s'] for r in records) / 60:.0f} minutes in all.",
        _machines(environments),
        "## What",
        _tables(frames),
        _runs(records),
        "## Spread",
        _spread(records),
        "## Columns",
        _COLUMNS,
        *((_CPU,) if any(r["request"]["device"] == "cpu" for r in records) else ()),
    ]
    return "\n\n".join(parts) + "\n"


def _machines(environments: Sequence[dict[str, Any]]) -> str:
    lines = []
    for e in environments:
        what = e.get("gpu") or f"one core of {e.get('processor')} ({e.get('cores')} cores)"
        driver = f", driver {e['driver']}" if e.get("driver") else ""
        lines.append(
            f"* {what}, {e.get('memory_bytes', 0) / 2**30:.0f} GiB of host memory, {e.get('system')}{driver}, "
            f"Python {e.get('python')}, torch {e.get('torch')} (fingerprint {e.get('fingerprint')})"
        )
    return "\n".join(lines)


def _tables(frames: dict[str, pd.DataFrame]) -> str:
    lines = ["| table | rows |", "|---|---|"]
    lines += [f"| {table} | {len(frame)} |" for table, frame in frames.items()]
    return "\n".join(lines)


def _runs(records: Sequence[dict[str, Any]]) -> str:
    kinds = Counter(r["request"]["kind"] for r in records)
    sizes = Counter(len(r["members"]) for r in records if r["request"]["kind"] == "colocation")
    modes = sorted({r["sharing"] for r in records})
    hosts = sorted({r["host_input"] for r in records})
    failed = [m for r in records for m in r["members"] if m["outcome"] != "ok"]
    text = "Runs: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) + ". "
    if sizes:
        text += "Sets by members: " + ", ".join(f"{c} of {n}" for n, c in sorted(sizes.items())) + ". "
    text += f"Sharing in force: {', '.join(modes)}. Host input: {', '.join(hosts)}. "
    text += f"Repeats of every window: {max((len(r.get('repeats', [])) for r in records), default=0)}. "
    names = sorted({m["architecture"] for r in records for m in r["members"]})
    text += f"Models ({len(names)}): {', '.join(names)}. "
    if failed:
        outcomes = Counter(m["outcome"] for m in failed)
        text += "Members that failed: " + ", ".join(f"{c} {o}" for o, c in outcomes.items()) + "."
    return text.strip()


def _spread(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "Spread of a figure is 1.4826 x median absolute deviation / median over the repeats.",
        "",
        "| figure | n | median % | 90th percentile % | stable |",
        "|---|---|---|---|---|",
    ]
    for title, spread, verdict in (
        ("step time alone", "solo_spread_ratio", "solo_verdict"),
        ("throughput ratio", "spread_ratio", "verdict"),
    ):
        members = [m for r in records for m in r["members"] if m.get(spread) is not None]
        if not members:
            continue
        values = [100 * m[spread] for m in members]
        p90 = quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
        stable = sum(m[verdict] == "stable" for m in members)
        lines.append(
            f"| {title} | {len(values)} | {median(values):.1f} | {p90:.1f} | {stable} of {len(values)} |"
        )
    between = _between_runs(records)
    if between:
        lines += ["", between]
    return "\n".join(lines)


def _between_runs(records: Sequence[dict[str, Any]]) -> str:
    """A sentence on how much solo step times differ between runs, which repeats within a run cannot show."""
    times: dict[tuple[str, str], list[float]] = {}
    for r in records:
        for m in r["members"]:
            if r["request"]["kind"] in ("solo", "colocation") and m.get("solo_step_time_s"):
                times.setdefault((r["device"], m["workload"]), []).append(m["solo_step_time_s"])
    spreads = [
        100 * median_absolute_deviation(vs) * MAD_SCALE / median(vs) for vs in times.values() if len(vs) >= 3
    ]
    if not spreads:
        return ""
    return (
        f"The time of the same job alone, measured again within {len(spreads)} jobs' different sets, differs between "
        f"runs by {median(spreads):.1f} % (median over jobs; worst {max(spreads):.1f} %)."
    )
