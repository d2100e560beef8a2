"""Exports slices as tables, operator graphs and a data card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.campaign.card import data_card
from profiling.campaign.slices import read_results
from profiling.errors import InputError
from profiling.files import only_writer, write_whole
from profiling.measure.operators import export_operators
from profiling.measure.tables import tables, write_frames


def export_campaign(folders: Sequence[Path], output: Path, name: str) -> dict[str, int]:
    """Write the tables (see `profiling.measure.tables`), `graphs/` with operator times and `CARD.md`, the data card.

    Returns:
        Rows of each table.

    Raises:
        InputError: the folders have no finished runs.
    """
    results = read_results(folders)
    if not results.records:
        raise InputError(
            "no finished run to export",
            expected="folders with slice-*.jsonl",
            got=", ".join(map(str, folders)),
            hint="run the campaign first",
        )
    records: list[dict[str, Any]] = sorted(results.records.values(), key=lambda r: (r["started_at"], r["id"]))
    for record in records:
        if record["request"]["kind"] == "operators":
            export_operators(record, output / "graphs")
    frames = tables(records, name)
    with only_writer(output):
        counts = write_frames(output, frames, name)
    # A campaign may have begun where nothing was measured, such as on a machine without the GPU.
    used = {record.get("environment") for record in records}
    environments = [e for fingerprint, e in results.environments.items() if fingerprint in used]
    write_whole(output / "CARD.md", data_card(name, records, environments, frames))
    return counts
