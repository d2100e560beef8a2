"""Jobs as inputs of the cost model."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from models.cost import default_cost_model
from models.cost.job import JobInput
from models.cost.work import OperatorWork
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.workload import Workload


def test_some_operators_have_the_work_of_the_passes_that_run() -> None:
    workload = Workload("torchvision/resnet50", 8, mode="inference")
    job = JobInput.of(graph_for(workload.captured()), get_device("v100"), workload)
    rows = np.array([5, 0, 2])
    some = job.only(rows)
    for part in fields(OperatorWork):
        whole, chosen = getattr(job.work, part.name), getattr(some.work, part.name)
        assert chosen.tolist() == (whole * job.mask if whole.ndim == 2 else whole)[..., rows].tolist()
    assert some.mask.tolist() == np.ones((2, 3)).tolist()
    alone = [default_cost_model().cost_of(job.only(slice(k, k + 1))).operators.busy_s.sum() for k in rows]
    together = default_cost_model().cost_of(some).operators.busy_s.sum(0)
    assert together.tolist() == pytest.approx(alone)
