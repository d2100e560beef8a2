"""Operators timed by themselves, as examples for the cost model.

They show how fast a device runs one kind of operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from models.cost.single_operators import operators_job
from models.cost.work import Floats, OperatorWork
from predictor.training.cost.examples import CostExample
from profiling.devices import get_device
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from models.cost.job import JobInput


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
                    _one(job, position),
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


def _one(job: JobInput, position: int) -> JobInput:
    chosen, work, mask = slice(position, position + 1), job.work, job.mask

    def of(passes: Floats) -> Floats:
        return (passes * mask)[:, chosen]

    return replace(
        job,
        features=job.features[chosen],
        work=OperatorWork(
            of(work.compute_s),
            of(work.traffic_bytes),
            of(work.block_s),
            of(work.kernels),
            work.repeat[chosen],
            work.density[chosen],
            work.double_density[chosen],
            of(work.padding_s),
            of(work.serial_s),
            of(work.least_s),
            work.occupancy[chosen],
        ),
        mask=np.ones((2, 1)),
        kind=job.kind[chosen],
    )
