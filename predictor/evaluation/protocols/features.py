"""Published figures of a job's network: multiply-adds, activations, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle

if TYPE_CHECKING:
    import pandas as pd

# Column of the `workloads` table -> name used here.
PER_SAMPLE = {
    "macs_per_sample": "macs",
    "activations_per_sample": "activations",
    "pooled_activations_per_sample": "pooled",
    "layer_count": "layers",
    "parameter_count": "parameters",
}
# Figures per sample of the batch; the others are per network.
SCALES_WITH_BATCH = ("macs", "activations", "pooled")

Tables = Mapping[str, "pd.DataFrame"]


def published(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Figures of the `workloads` table for some rows' jobs.

    They are those of the same workload or, failing that, of the network by its bare name.

    Returns:
        a column for each of `PER_SAMPLE`'s values, in the order of `rows`; NaN if not stated.
    """
    import pandas as pd

    names = list(PER_SAMPLE.values())
    workloads = tables["workloads"].rename(columns=PER_SAMPLE)
    workloads = workloads[["workload", "campaign", "architecture", "image_size", *names]].astype(
        dict.fromkeys(names, "float64")
    )
    own = workloads.drop_duplicates(["workload", "campaign"])
    merged = rows[["workload", "campaign"]].merge(own, on=["workload", "campaign"], how="left")[names]
    missing = merged.isna().all(axis=1)
    if missing.any():
        # A network's default image size is taken to be the smallest at which it was run.
        by_name = workloads[workloads["activations"].notna()].assign(bare=_bare(workloads["architecture"]))
        by_name = by_name.sort_values("image_size", kind="stable").drop_duplicates("bare").set_index("bare")
        others = by_name.reindex(_bare(rows["architecture"]).to_numpy())[names].reset_index(drop=True)
        merged = merged.where(~missing, others)
    return pd.DataFrame(merged).set_axis(rows.index)


def _bare(names: pd.Series) -> pd.Series:
    return names.str.rpartition("/")[2].str.partition(".")[0]


def per_step(bundle: Bundle) -> pd.DataFrame:
    """[n rows of `bundle`] the figures of `published`, scaled to the whole batch."""
    totals = published(bundle.rows, bundle.known)
    batch = bundle.rows["batch_size"].to_numpy(dtype=np.float64, na_value=np.nan)
    scaled = {name: totals[name] * batch for name in SCALES_WITH_BATCH}
    return totals.assign(**scaled)
