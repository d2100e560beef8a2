"""Columns derived from others, so that the two cannot disagree.

They are a job's options, from its SPEC, and a set's processes, from its members.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from datasets.fields import DTYPES, JOB_OPTIONS, Field
from profiling.errors import InputError
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

# User-defined names are allowed for these.
_ONLY_FILLED = ("architecture",)


@lru_cache(maxsize=1 << 16)
def columns_of(spec: str) -> Mapping[str, Any]:
    """The contents of a SPEC by column; empty for an invalid SPEC.

    Read-only, because every caller gets the same mapping.
    """
    try:
        workload = Workload.parse(spec)
    except InputError:
        return MappingProxyType({})
    options = {field.name: getattr(workload, field.name) for field in JOB_OPTIONS}
    return MappingProxyType({"architecture": workload.model, "batch_size": workload.batch_size, **options})


def fill_derived(fields: tuple[Field, ...], data: dict[str, pd.Series]) -> list[tuple[int, str, Any, Any]]:
    """Fill the empty cells of derived columns in place, and convert them to their types.

    Args:
        fields: the table's columns.
        data: columns by name; `workload` and `set_id` are typed, derived ones may contain objects.

    Returns:
        (row from 0, column, derived value, given value) of cells that disagree.
    """
    import pandas as pd

    faults: list[tuple[int, str, Any, Any]] = []
    said: dict[str, Any] = {}
    if "workload" in data:
        codes, specs = pd.factorize(data["workload"])
        by_spec = [columns_of(str(spec)) for spec in specs]
        for field in fields:
            if field.derived and field.name != "processes":
                values = pd.Series([known.get(field.name) for known in by_spec] + [None], dtype=object)
                said[field.name] = values.iloc[codes].reset_index(drop=True)
    if {"processes", "set_id", "member"} <= set(data):
        members = data["member"].groupby(data["set_id"]).transform("nunique")
        said["processes"] = members.astype(object)
    for field in fields:
        if not field.derived or field.name not in data:
            continue
        column, follows = data[field.name], said.get(field.name)
        missing = column.isna()
        given = column.astype(object).where(~missing, None)
        if follows is not None and field.name not in _ONLY_FILLED:
            differs = ~missing & follows.notna() & _disagree(field, given, follows)
            faults += [(int(row), field.name, follows[row], given[row]) for row in differs.index[differs]]
        if column.dtype == DTYPES[field.kind] and not missing.any():
            continue
        filled = given if follows is None else given.where(~missing, follows)
        filled = filled.where(filled.notna(), None)
        if field.kind == "flag":
            filled = filled.map(bool)
        data[field.name] = pd.Series(filled, dtype=DTYPES[field.kind])
    return faults


def _disagree(field: Field, given: pd.Series, follows: pd.Series) -> pd.Series:
    import pandas as pd

    if field.kind not in ("integer", "number"):
        return given != follows
    gap = pd.to_numeric(follows, errors="coerce") - pd.to_numeric(given, errors="coerce")
    # Other processes may run beside the members of a set, but there are no fewer than the members.
    return gap > 0 if field.name == "processes" else gap.abs() > 1e-9
