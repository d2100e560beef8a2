from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from datasets.tables import make_table
from models.cost import default_cost_model
from models.cost.network import EfficiencyNetwork
from predictor.training.cost.examples import CostExample, balanced, cost_examples
from predictor.training.cost.fit import CostConfig, fit_cost
from predictor.training.cost.tensors import CostTensors
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import Workload

SPECS = [
    f"torchvision/{name}:batch_size={batch},precision={precision}"
    for name in ("resnet18", "resnet50", "vgg11", "mobilenet_v2", "squeezenet1_0")
    for batch in (8, 64)
    for precision in ("fp32", "amp")
]
CONFIG = CostConfig(networks=1, hidden=8, epochs=25, batch_jobs=8, learning_rate=2e-2)


def table(specs: Sequence[str] = SPECS, device: str = "v100") -> pd.DataFrame:
    """Steps 1.5 times as long as the shipped cost model predicts, which a fit should recover."""
    rows = []
    for spec in specs:
        workload = Workload.parse(spec)
        cost = default_cost_model().cost(graph_for(workload), get_device(device), workload)
        rows.append(
            {
                "device": device,
                "workload": spec,
                "architecture": workload.model,
                "batch_size": workload.batch_size,
                "step_time_s": 1.5 * cost.step_time_s,
                "gpus": 1,
                "source": "own",
                "campaign": "lab",
                "licence": "CC0-1.0",
                "origin": "measured",
            }
        )
    return make_table("solo", rows)


def test_learns_measured_steps() -> None:
    examples, skipped = cost_examples(table(), graph_for)
    assert len(examples) == len(SPECS)
    assert skipped.reasons == {}
    losses: list[float] = []
    model = fit_cost(examples, CONFIG, report=lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.3 * losses[0]
    predicted = [model.cost_of(e.job, e.campaign).step_time_s for e in examples]
    error = np.abs(np.array(predicted) / np.exp([e.log_s for e in examples]) - 1)
    assert error.mean() < 0.15


def test_predictions_equal_those_of_the_fitted_network() -> None:
    resized = "timm/efficientformerv2_s0:batch_size=64,precision=amp,mode=inference,data_on_device=true"
    others = [f"{SPECS[0]},sm_share_ratio=0.1", SPECS[0].replace("fp32", "fp64")]
    others += [resized, f"{resized},compiler=compile"]
    tables = [table([*SPECS[:6], *others]), table(SPECS[:2], "t4")]
    examples, _ = cost_examples(pd.concat(tables, ignore_index=True), graph_for)
    model = fit_cost(examples, replace(CONFIG, epochs=2))
    tensors = CostTensors.of(examples, model.devices, model.campaigns)
    network = EfficiencyNetwork(CONFIG.hidden, len(model.devices), len(model.campaigns))
    state = {k: torch.tensor(v, dtype=torch.float32) for k, v in model.members[0].items()}
    mean, scale = state.pop("mean"), state.pop("scale")
    network.load_state_dict(state)
    with torch.no_grad():
        jobs = tensors.batch(np.arange(len(examples)), mean, scale)
        expected = network.log_seconds(jobs).exp().numpy()
    predicted = [model.cost_of(e.job, e.campaign).step_time_s for e in examples]
    np.testing.assert_allclose(predicted, expected, rtol=2e-3)


def test_hiding_device_shifts_moves_more_into_the_common_part() -> None:
    tables = [table(SPECS[:8], device) for device in ("v100", "rtx-3090")]
    tables[1]["step_time_s"] *= 2.0
    examples, _ = cost_examples(pd.concat(tables, ignore_index=True), graph_for)
    sizes = []
    for share in (0.0, 0.9):
        model = fit_cost(examples, replace(CONFIG, effect_dropout=share))
        sizes.append(float(np.abs(model.members[0]["device_effect"]).mean()))
    assert sizes[1] < sizes[0]
    with pytest.raises(InputError, match="effect_dropout"):
        CostConfig(effect_dropout=1.0)


def test_the_prediction_is_the_mean_of_the_networks() -> None:
    examples, _ = cost_examples(table(SPECS[:6]), graph_for)
    model = fit_cost(examples, replace(CONFIG, epochs=2, networks=2))
    assert len(model.members) == 2
    alone = [replace(model, members=(member,)).cost_of(examples[0].job) for member in model.members]
    both = model.cost_of(examples[0].job)
    assert alone[0].step_time_s != alone[1].step_time_s
    assert both.step_time_s == pytest.approx(np.mean([cost.step_time_s for cost in alone]))
    assert both.operators.busy_s.sum() == pytest.approx(np.mean([c.operators.busy_s.sum() for c in alone]))


def test_equal_operators_are_merged_with_a_count() -> None:
    workload = Workload.parse(SPECS[0])
    graph = graph_for(workload)
    (example,), _ = cost_examples(table(SPECS[:1]), graph_for)
    assert len(example.job.kind) < len(graph.operators)
    whole = default_cost_model().cost(graph, get_device("v100"), workload)
    merged = default_cost_model().cost_of(example.job)
    assert merged.step_time_s == pytest.approx(whole.step_time_s, rel=1e-4)
    assert merged.launches == pytest.approx(whole.launches)


def test_unusable_rows_are_counted() -> None:
    rows = table(SPECS[:3])
    rows.loc[0, "step_time_s"] = np.nan
    rows.loc[1, "workload"] = "nosuchmodel"
    examples, skipped = cost_examples(rows, graph_for)
    assert len(examples) == 1
    assert skipped.reasons == {"no step time of one GPU": 1, "UnknownNameError": 1}
    with pytest.raises(InputError, match="too few"):
        fit_cost(examples, CONFIG)
    with pytest.raises(InputError, match="epochs"):
        CostConfig(epochs=0)


def test_groups_are_weighted_by_the_root_of_their_size() -> None:
    examples, _ = cost_examples(table(SPECS[:5]), graph_for)

    def group(example: CostExample) -> str:
        return "large" if example.row < 4 else "small"

    weights = np.array([e.weight for e in balanced(examples, group)])
    large = np.array([e.row < 4 for e in examples])
    assert weights[large].sum() == pytest.approx(2 * weights[~large].sum())
    assert weights.mean() == pytest.approx(1.0)
