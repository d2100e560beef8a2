"""Operators timed by themselves, as examples for the cost model.

They show how fast a device runs one kind of operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.cost.single_operators import operators_job
from predictor.training.cost.examples import CostExample
from profiling.devices import get_device
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


def operator_examples(rows: pd.DataFrame) -> list[CostExample]:
    """One example per row of the table `operators`; rows with missing dimensions are skipped.

    Raises:
        UnknownNameError, InputError: a device is not in the catalogue, or lacks the precision.
    """
    examples: list[CostExample] = []
    numbered = rows.reset_index(drop=True)
    for (name, precision), part in numbered.groupby(["device", "precision"], sort=False):
        workload = Workload("operator", mode="inference", precision=str(precision))
        job = operators_job(part, get_device(str(name)), workload)
        known = np.isfinite(job.work.traffic_bytes).all(axis=0)
        latency_s = part["latency_s"].to_numpy(dtype=np.float64)
        for position in np.flatnonzero(known).tolist():
            examples.append(
                CostExample(
                    int(part.index[position]),
                    job.only(slice(position, position + 1)),
                    float(np.log(latency_s[position])),
                    "operators",
                    timing="operator",
                )
            )
    return examples


def sample_operators(rows: pd.DataFrame, most: int, seed: int = 0) -> pd.DataFrame:
    """At most `most` rows of each kind on each device."""
    shuffled = rows.sample(frac=1.0, random_state=seed)
    return shuffled.groupby(["device", "kind"], sort=False).head(most).reset_index(drop=True)
