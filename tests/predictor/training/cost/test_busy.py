from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from models.cost.network import EfficiencyNetwork
from predictor.training.cost.busy import busy_rows
from predictor.training.cost.examples import cost_examples
from predictor.training.cost.tensors import CostTensors
from profiling.capture import graph_for

JOB = {
    "workload": "resnet18-cifar:batch_size=64",
    "mode": "training",
    "source": "mine",
    "campaign": "lab",
    "gpus": 1,
    "step_time_s": np.nan,
    "utilization_ratio": np.nan,
}


def table(*rows: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([JOB | row for row in rows])


def test_busy_time_is_utilization_times_step_time() -> None:
    rows = busy_rows(
        table(
            {"device": "v100", "utilization_ratio": 0.6, "step_time_s": 0.05},
            {"device": "t4", "step_time_s": 0.1},
        )
    )
    assert rows.device.tolist() == ["v100"]
    assert rows.step_time_s.tolist() == [pytest.approx(0.03)]


def test_the_largest_slice_stands_for_the_whole_card() -> None:
    rows = busy_rows(
        table(
            {"device": "a100", "utilization_ratio": 0.5},
            {"device": "a100:mig=7g", "step_time_s": 0.04},
            {"device": "a100:mig=1g", "step_time_s": 0.4},
        )
    )
    assert rows.device.tolist() == ["a100"]
    assert rows.step_time_s.tolist() == [pytest.approx(0.02)]


def test_kernels_add_up_where_the_input_size_is_known() -> None:
    kernel = {"device": "v100", "mode": "training", "source": "mine", "campaign": "kernels"}
    kernels = pd.DataFrame(
        [
            kernel | {"workload": workload, "duration_s": seconds}
            for workload, seconds in (
                ("torchvision/resnet18:batch_size=4", 1e-3),
                ("torchvision/resnet18:batch_size=4", 2e-3),
                ("hf/bert-large:batch_size=8", 1.0),
            )
        ]
    )
    rows = busy_rows(table({"device": "v100"}), kernels)
    assert rows.workload.tolist() == ["torchvision/resnet18:batch_size=4"]
    assert rows.step_time_s.tolist() == [pytest.approx(3e-3)]


def test_the_network_predicts_busy_time_without_host_time() -> None:
    rows = busy_rows(table({"device": "v100", "utilization_ratio": 0.6, "step_time_s": 0.05}))
    examples, _ = cost_examples(rows, graph_for, timing="busy")
    steps, _ = cost_examples(rows, graph_for)
    tensors = CostTensors.of([*examples, *steps], [], [])
    standard = torch.zeros(tensors.features.shape[1]), torch.ones(tensors.features.shape[1])
    network = EfficiencyNetwork(8)
    with torch.no_grad():
        jobs = tensors.batch(np.arange(2), *standard)
        busy, step = network.log_seconds(jobs).exp().tolist()
        expected = (network.operator_times(jobs).sum(0) * jobs.repeat)[jobs.job == 0].sum()
    assert busy < step
    assert busy == pytest.approx(float(expected), rel=0.1), "and the optimizer"
