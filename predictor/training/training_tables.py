"""The tables that a training run learns from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from datasets import bundled as own_measurements
from datasets.sets import read_sets
from datasets.sources import check_may_learn
from datasets.tables import point_targets
from profiling.errors import InputError


def training_tables(
    data: Path | None, bundled: bool, own_use: bool = False, disturbed: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`colocation` and `solo` of a folder and, if asked, of the bundled measurements.

    Args:
        data: the folder.
        bundled: whether to add the bundled measurements.
        disturbed: use runs that other processes disturbed, too.
        own_use: allow rows whose licence forbids passing on a model; see `datasets.sources.check_may_learn`.

    Raises:
        InputError: there is nothing to train on, or there are such rows and `own_use` is not set.
    """
    parts = []
    if data is not None:
        parts.append(read_sets(data, disturbed))
        check_may_learn({*parts[0][0].source, *parts[0][1].source}, own_use)
        if not len(parts[0][0]):
            raise InputError(
                f"no sets of {data} to train on", expected="measured co-location sets", got="none"
            )
    if bundled:
        shipped = own_measurements.load()
        parts.append((shipped["colocation"], shipped["solo"]))
    twice = set.intersection(*(set(c.set_id) for c, _ in parts)) if len(parts) == 2 else ()
    if twice:
        raise InputError(
            f"{data} and the bundled measurements share sets",
            expected="ids of its own for every set",
            got=f"{len(twice)} ids in both, such as {min(twice)}",
            hint="--no-bundled leaves out the bundled ones",
        )
    rows = sum(len(c) for c, _ in parts)
    if not sum(len(point_targets(c)) for c, _ in parts):
        raise InputError(
            "nothing to train on",
            expected="measured co-location sets",
            got=f"{rows} rows without a ratio that is measured (is_target) and no bound (censored)"
            if rows
            else "none",
            hint="cotenant data import",
        )
    if len(parts) == 1:
        return parts[0]
    return tuple(pd.concat(side, ignore_index=True) for side in zip(*parts, strict=True))  # type: ignore[return-value]


def described(colocation: pd.DataFrame) -> str:
    """Number of sets and their sources, for the name of a run."""
    sources = ", ".join(sorted({str(source) for source in colocation.source}))
    count = colocation.set_id.nunique()
    return f"{count:,} {'set' if count == 1 else 'sets'} of {sources}"
