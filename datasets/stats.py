"""Statistics of a folder of tables, as numbers and as a plot."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from datasets.tables import point_targets

if TYPE_CHECKING:
    import pandas as pd

# Width of the histogram's bins.
_BIN = 0.025


def describe(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Rows by table and campaign, and number, members, architectures and ratios of the co-location sets."""
    campaigns: list[dict[str, Any]] = []
    colocation = tables["colocation"]
    for campaign, rows in colocation.groupby("campaign"):
        points = point_targets(rows)
        ratio = points["throughput_ratio"]
        campaigns.append(
            {
                "campaign": str(campaign),
                "source": str(rows["source"].iloc[0]),
                "licence": str(rows["licence"].iloc[0]),
                "devices": sorted(set(rows["device"])),
                "sharing": sorted(set(rows["sharing"])),
                "sets": int(rows["set_id"].nunique()),
                "members": len(rows),
                "points": len(points),
                "censored": int(rows["censored"].sum()),
                "partners_only": int((~rows["is_target"]).sum()),
                "architectures": int(rows["architecture"].nunique()),
                "ratio_mean": float(ratio.mean()) if len(points) else None,
                "ratio_p5": float(ratio.quantile(0.05)) if len(points) else None,
                "ratio_p95": float(ratio.quantile(0.95)) if len(points) else None,
            }
        )
    return {
        "tables": {
            name: {
                "rows": len(frame),
                "campaigns": {
                    str(k): int(v) for k, v in frame["campaign"].value_counts().sort_index().items()
                },
            }
            for name, frame in tables.items()
            if len(frame)
        },
        "colocation": campaigns,
    }


def plot(tables: dict[str, pd.DataFrame]) -> str:
    """SVG: distribution of the throughput ratio by campaign, and its mean per pair of architectures."""
    import numpy as np
    from matplotlib.figure import Figure

    points = point_targets(tables["colocation"])
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    largest = max(points["throughput_ratio"].max(), 1.4) if len(points) else 1.4
    for campaign, rows in points.groupby("campaign"):
        left.hist(
            rows["throughput_ratio"],
            bins=np.arange(0, largest + _BIN, _BIN),
            histtype="step",
            label=f"{campaign} ({len(rows)})",
        )
    left.set_xlabel("co-located / solo throughput")
    left.set_ylabel("members")
    if len(points):
        left.legend(fontsize=7, frameon=False)
    everyone = tables["colocation"]
    beside = points[["set_id", "member", "architecture", "throughput_ratio"]].merge(
        everyone[["set_id", "member", "architecture"]], on="set_id", suffixes=("", "_partner")
    )
    beside = beside[beside["member"] != beside["member_partner"]]
    grid = beside.pivot_table(index="architecture", columns="architecture_partner", values="throughput_ratio")
    if grid.size:
        image = right.imshow(grid.to_numpy(dtype=float), vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        right.set_xticks(range(len(grid.columns)), list(grid.columns), rotation=45, ha="right", fontsize=6)
        right.set_yticks(range(len(grid.index)), list(grid.index), fontsize=6)
        right.set_title("mean ratio of row beside column", fontsize=8)
        figure.colorbar(image, ax=right, shrink=0.8)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
