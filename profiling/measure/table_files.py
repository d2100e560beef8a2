"""Writes the tables of a campaign into a folder that may hold others."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError
from profiling.files import read_json, write_json, write_together
from profiling.measure.tables import SOURCE, TABLES, tables

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_RECORDS, _FORMAT = "measurements.json", "cotenant-measurements"
# What tells a run from another: the same plan may have been carried out on several devices.
_RUN = ["run_id", "device"]
# `datasets.schema.KEYS` of these tables, less the column that measurements lack; a test compares them.
_KEYS = {
    "workloads": ["workload", "campaign"],
    "solo": ["device", "workload", "gpus", "campaign"],
    "colocation": ["set_id", "member"],
    "graphs": ["architecture", "device", "batch_size", "workload", "node", "campaign"],
}


def stored_records(directory: Path | str, campaign: str) -> list[dict[str, Any]]:
    """Records of earlier runs in `directory`; empty if there are none.

    Raises:
        InputError: they belong to another campaign, or cannot be read.
    """
    path = Path(directory) / _RECORDS
    if not path.exists():
        return []
    stored = read_json(path)
    found = stored.get("campaign") if isinstance(stored, dict) and stored.get("format") == _FORMAT else None
    if found != campaign:
        raise InputError(
            f"{directory} holds other measurements", expected=f"{_FORMAT} of {campaign}", got=found or "another file",
            hint="use a separate folder for each machine and software version",
        )  # fmt: skip
    return list(stored["records"])


def write_tables(
    directory: Path | str, records: Sequence[dict[str, Any]], campaign: str, environment: dict[str, Any]
) -> dict[str, int]:
    """Write every table as Parquet (see `write_frames`) and the records as `measurements.json`. Returns row counts."""
    frames = tables(records, campaign)
    # First: it is what later runs make the tables from.
    write_json(
        Path(directory) / _RECORDS,
        {
            "format": _FORMAT,
            "campaign": campaign,
            "environment": environment,
            "records": records,
        },
    )
    return write_frames(Path(directory), frames, campaign)


def write_frames(directory: Path, frames: dict[str, pd.DataFrame], campaign: str) -> dict[str, int]:
    """Write each frame as `NAME.parquet`, all or none of them, in place of all earlier rows of this campaign.

    Rows of other sources and campaigns stay, with a warning that names them. Another warning counts the earlier runs of
    this campaign that are not among the new ones.

    Returns:
        Row counts of the frames.

    Raises:
        InputError: a file of one of these names is no table of measurements, has columns of other types, or the same runs
            under another source.
    """
    files: dict[Path, bytes | str | None] = {}
    others: set[str] = set()
    gone: set[tuple[Any, ...]] = set()
    # Also tables in which the campaign has no rows any more.
    for name in dict.fromkeys((*frames, *TABLES)):
        frame, path = frames.get(name), directory / f"{name}.parquet"
        kept, own = _apart(path, campaign) if path.exists() else (None, None)
        if frame is None and not (own is not None and own.num_rows):
            continue
        if name == "measurements" and frame is not None and own is not None:
            gone = _runs(own.to_pandas()) - _runs(frame)
        if kept is not None and kept.num_rows:
            others |= set(kept["campaign"].to_pylist())
            if frame is not None:
                _check_keys(path, kept, frame)
        files[path] = _merged(path, kept, frame)
    write_together(files)
    if others:
        warnings.warn(
            f"{directory} keeps its rows of other campaigns: {', '.join(sorted(map(str, others)))}",
            stacklevel=2,
        )
    if gone:
        warnings.warn(
            f"{directory} had {len(gone)} other run{'s' * (len(gone) > 1)} of campaign {campaign}, which these replace; to "
            "have both, export their folders together, or under names of their own",
            stacklevel=2,
        )
    return {name: len(frame) for name, frame in frames.items()}


def _check_keys(path: Path, kept: pa.Table, frame: pd.DataFrame) -> None:
    """Raise `InputError` if a row has the key of one that stays: no command would read the table."""
    key = [column for column in _KEYS.get(path.stem, ()) if column in kept.column_names]
    if not key:
        return
    columns = [kept[column].to_pylist() for column in key]
    there = set(zip(*columns, strict=True))
    again = [row for row in frame[key].itertuples(index=False, name=None) if row in there]
    if again:
        raise InputError(
            f"{path} has {len(again)} of these rows under another source",
            expected="each " + "+".join(key) + " once",
            got="/".join(map(str, again[0])),
            hint="choose another folder or campaign name",
        )


def _runs(measurements: pd.DataFrame) -> set[tuple[Any, ...]]:
    if not {*_RUN} <= {*measurements.columns}:
        return set()
    return set(measurements[_RUN].itertuples(index=False, name=None))


def _merged(path: Path, kept: pa.Table | None, frame: pd.DataFrame | None) -> bytes | None:
    """The file of the rows of others and of the campaign; None without any."""
    import pyarrow as pa
    from pyarrow import parquet

    buffer = io.BytesIO()
    if kept is None or not kept.num_rows:
        if frame is None:
            return None
        frame.to_parquet(buffer, engine="pyarrow", compression="zstd", index=False)
        return buffer.getvalue()
    parts = [kept] if frame is None else [kept, pa.Table.from_pandas(frame, preserve_index=False)]
    try:
        rows = pa.concat_tables([t.replace_schema_metadata() for t in parts], promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(
            f"the columns of {path} have other types", expected="those of a table of measurements",
            got=str(error)[:160], hint="choose another folder",
        ) from None  # fmt: skip
    parquet.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def _apart(path: Path, campaign: str) -> tuple[pa.Table, pa.Table]:
    """Rows of a table that are not measurements of `campaign`, and those that are."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        for index, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):  # a category of pandas
                plain = table.column(index).cast(field.type.value_type)
                table = table.set_column(index, field.name, plain)
        own = pc.equal(table["campaign"], campaign)
        if "source" in table.column_names:
            own = pc.and_(own, pc.equal(table["source"], SOURCE))
    except (pa.ArrowException, KeyError) as error:
        raise InputError(
            f"{path} is no table of measurements", expected="one with a column campaign", got=str(error)[:80],
            hint="choose another folder",
        ) from None  # fmt: skip
    own = pc.fill_null(own, False)
    return table.filter(pc.invert(own)), table.filter(own)
