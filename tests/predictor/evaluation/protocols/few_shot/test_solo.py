"""Solo step times of synthetic jobs: each model has its own error factor, and so does each device."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.evaluation.protocols.few_shot.page import of_jobs
from predictor.evaluation.protocols.few_shot.solo import AXES, LEARNERS, SoloPoints, run
from predictor.examples.featurizer import Featurizer
from profiling.errors import InputError
from profiling.workload import Workload
from tests.predictor.synthetic import graph_source

MODELS = {"alpha": 0.5, "beta": 1.6, "gamma": 2.5}
DEVICES = {"v100": 1.0, "p100": 1.3, "k80": 0.8}


def table(is_proportional: bool = False) -> pd.DataFrame:
    """Steps of every job on every device, which are in one proportion for all jobs on request."""
    featurizer = Featurizer(graph_source)
    rows = []
    for model, own in MODELS.items():
        for batch in (8, 16, 32):
            for device, factor in DEVICES.items():
                workload = Workload(model, batch)
                expected_s = featurizer.job(workload, "v100" if is_proportional else device).demand.step_s
                step_s = expected_s * own * factor
                rows.append({"workload": str(workload), "device": device, "campaign": "gavel-2019", "gpus": 1, "step_time_s": step_s})  # fmt: skip
    return pd.DataFrame(rows)


def test_one_measured_point_corrects_the_others() -> None:
    points = SoloPoints.of(table(), Featurizer(graph_source))
    assert len(points) == 27
    results = run(points, seeds=(0,))
    assert tuple(results) == LEARNERS
    for axis in AXES:
        process = results["process"][axis]
        assert process["1"]["mape_percent"] < 0.5 * process["0"]["mape_percent"]
        assert process["0"]["n"] == 27 > process["1"]["n"] == 18
    devices = results["uncorrected"][AXES[0]]
    assert devices["0"]["mape_percent"] > 30
    page = of_jobs({"protocol": "p", "about": "a job", "points": 27, "seeds": [0], "command": "c", "date": "d", "machine": {}, "counts": [0, 1, 2], "learners": results})  # fmt: skip
    assert page.count("| process |") == 2
    assert "| proportional | other-devices | - |" in page


def test_one_measured_point_suffices_where_devices_differ_by_a_factor() -> None:
    results = run(SoloPoints.of(table(is_proportional=True), Featurizer(graph_source)), seeds=(0,))
    other_devices = {
        name: results[name][AXES[0]]["1"]["mape_percent"] for name in ("proportional", "factor-per-job")
    }
    assert other_devices["proportional"] < 0.1 < 1 < other_devices["factor-per-job"]


def test_points_of_a_group_differ_in_one_thing() -> None:
    points = SoloPoints.of(table(), Featurizer(graph_source))
    everything = np.arange(len(points))
    for group in points.groups("other-devices", everything):
        assert len({points.workloads[k] for k in group}) == 1
        assert len({points.devices[k] for k in group}) == len(group) == 3
    for group in points.groups("other-batch-sizes", everything):
        assert len({points.devices[k] for k in group}) == 1
        assert len({points.workloads[k].batch_size for k in group}) == len(group) == 3


def test_a_table_without_the_campaigns_is_refused() -> None:
    with pytest.raises(InputError, match="campaigns"):
        SoloPoints.of(table().assign(campaign="other"), Featurizer(graph_source))
