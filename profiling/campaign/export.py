"""Exports slices as tables, operator graphs and a data card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiling.campaign.card import data_card
from profiling.campaign.slices import has_failed, read_results
from profiling.errors import InputError
from profiling.files import only_writer, write_whole
from profiling.measure.operators import export_operators
from profiling.measure.table_files import write_frames
from profiling.measure.tables import tables


def export_campaign(folders: Sequence[Path], output: Path, name: str) -> dict[str, int]:
    """Write the tables (see `profiling.measure.tables`), `graphs/` with operator times and `CARD.md`, the data card.

    Where `CARD.md` is the card of another campaign, this one's is `CARD-NAME.md`.

    Returns:
        Rows of each table.

    Raises:
        InputError: the folders have no finished runs, or the same run on several devices.
    """
    _check_one_device(folders)
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
    write_whole(_card_path(output, name), data_card(name, records, environments, frames))
    return counts


def _check_one_device(folders: Sequence[Path]) -> None:
    """Raise `InputError` if folders have the same run on several devices, of which only one would be exported."""
    devices: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for run, record in read_results([folder]).records.items():
            if not has_failed(record):
                devices.setdefault(run, {}).setdefault(record["device"], folder)
    several = [found for found in devices.values() if len(found) > 1]
    if several:
        raise InputError(
            f"{len(several)} run{'s' * (len(several) > 1)} of these folders ran on several devices",
            expected="each run on one",
            got=", ".join(f"{device} in {folder}" for device, folder in several[0].items()),
            hint="export each folder under a campaign name of its own",
        )


def _card_path(output: Path, name: str) -> Path:
    path = output / "CARD.md"
    with suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8", errors="replace").partition("\n")[0] != f"# {name}":
            return output / f"CARD-{re.sub(r'[^A-Za-z0-9.=-]+', '-', name)}.md"
    return path
