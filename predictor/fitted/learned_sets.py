"""Which sets of a table a predictor has learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.fitted.fitted import Fitted
from predictor.types import Bools
from profiling.errors import InputError
from profiling.workload import REGISTERED, Workload

if TYPE_CHECKING:
    import pandas as pd


def learned_rows(fitted: Fitted, colocation: pd.DataFrame) -> Bools:
    """[n] whether each row's set is one that the predictor learned from.

    Sets are known by their id, which is unique in their own tables only. A predictor records no more of each set, but
    the sources, campaigns, architectures and devices of all, so another set with the same id is noticed if one of its
    is not among these. The hash of a graph is no name to compare, here or in training: an architecture gets a better one,
    if there is any (`datasets.sets.read_sets`).

    Raises:
        InputError: there is such a set.
    """
    manifest = fitted.manifest
    learned: Bools = colocation.set_id.astype(str).isin(set(manifest.set_ids)).to_numpy(dtype=bool)
    recorded = {
        "source": manifest.sources,
        "campaign": fitted.model.campaigns,
        "architecture": manifest.architectures,
        "device": manifest.coverage.devices,
    }
    rows = colocation[learned]
    for column, values in recorded.items():
        found = rows[column].astype(str)
        same = found.isin(set(values)) | found.str.startswith(REGISTERED)
        if column == "architecture":
            graphs = {name for name in values if name.startswith(REGISTERED)}
            same |= rows["workload"].map(lambda spec: Workload.parse(spec).model).isin(graphs)
        other = rows[~same]
        if values and len(other):
            first = other.iloc[0]
            raise InputError(
                "sets have ids of others that the predictor was trained on",
                expected="ids of its own for every set",
                got=f"{other.set_id.nunique()} of the {rows.set_id.nunique()} known ids with another {column}, such as "
                f"{first.set_id} with {first[column]}",
                hint="rename them, for instance with the campaign in front",
            )
    return learned
