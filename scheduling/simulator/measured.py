"""Imported tables as the ground truth of a cluster, from one campaign of one source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.devices import get_device, has_mig, mig_layout
from profiling.errors import InputError, UnknownNameError
from profiling.names import one_of
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import TablePredictor

if TYPE_CHECKING:
    import pandas as pd


def measured_truth(
    data: Path, devices: Sequence[str], source: str | None = None
) -> TablePredictor | SliceTable:
    """Measurements in `data` on `devices` from `source`; if None, from the only source with a workload on all
    of them.

    Runs that other processes disturbed are left out, with a warning. Of several campaigns, the last by name that did
    so, because solo and co-located step times must match. A source
    that measured no sets on whole cards, but single jobs on their MIG slices, gives a `SliceTable`, in which the
    largest slice may stand for the card.

    Raises:
        UnknownNameError: `source` has no solo step times.
        InputError: no source has a workload on every device, or several do and none was chosen.
    """
    from datasets.sets import without_disturbed
    from datasets.tables import empty_table, read_table

    solo, slices = read_table(data, "solo"), _slices(devices)
    alone_only = bool(slices) and not (data / "colocation.parquet").exists()
    together = empty_table("colocation") if alone_only else read_table(data, "colocation")
    solo, together = without_disturbed(solo, "solo runs"), without_disturbed(together, "sets")
    known = sorted(set(solo.source))
    if source is not None and source not in known:
        raise UnknownNameError(
            f"{data} has no solo step times from that source", expected=one_of(source, known), got=source
        )
    covering = [name for name in known if _covers(solo[solo.source == name], devices)]
    if source is None and len(covering) > 1:
        raise InputError(
            f"several sources in {data} have step times for every GPU type of the cluster",
            expected="one of them, with --source", got=", ".join(covering),
        )  # fmt: skip
    chosen = covering[0] if source is None and covering else source
    if chosen not in covering:
        own = solo if chosen is None else solo[solo.source == chosen]
        raise InputError(
            f"no workload was measured on every GPU type of the "
            f"cluster{f' by source {chosen}' if chosen else ''}",
            expected=", ".join(devices),
            got=_types(own, known if chosen is None else [chosen]),
            hint=f"use --source {' or '.join(covering)}" if covering else None,
        )
    solo, together = solo[solo.source == chosen], together[together.source == chosen]
    campaigns = sorted(set(together.campaign) or set(solo.campaign))
    if len(campaigns) > 1:
        whole = [name for name in campaigns if _covers(solo[solo.campaign == name], devices)]
        last = (whole or campaigns)[-1]
        solo, together = solo[solo.campaign == last], together[together.campaign == last]
    sliced = solo.device.isin(slices).any() and not together.device.isin(devices).any()
    names = [*devices, *slices] if sliced else devices
    table = TablePredictor.from_frames(
        solo[solo.device.isin(names)],
        together[together.device.isin(names)],
        {d: get_device(d).memory_bytes for d in names},
    )
    return SliceTable.of(table) if sliced else table


def _slices(devices: Sequence[str]) -> list[str]:
    """Every MIG slice of the cards; none if one of `devices` cannot be partitioned."""
    if not all(has_mig(device) for device in devices):
        return []
    return [name for device in devices for name in mig_layout(device).devices]


def _covers(solo: pd.DataFrame, devices: Sequence[str]) -> bool:
    """Whether a workload was measured alone on each of `devices`, or on the slice that is the whole card."""
    alone = solo[(solo.gpus.fillna(1) == 1) & (solo.step_time_s > 0)]
    names = [[d, mig_layout(d).device(mig_layout(d).profiles[-1])] if has_mig(d) else [d] for d in devices]
    return bool(set.intersection(*(set(alone.workload[alone.device.isin(n)]) for n in names)))


def _types(solo: pd.DataFrame, sources: Iterable[str]) -> str:
    """Device types by source: `gavel (k80, p100, v100)`."""
    return "; ".join(f"{s} ({', '.join(sorted(set(solo.device[solo.source == s])))})" for s in sources)
