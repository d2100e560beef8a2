from __future__ import annotations

import numpy as np
import pytest
import torch

from datasets.tables import make_table
from models.cost.network import EfficiencyNetwork
from models.cost.single_operators import operator_times
from predictor.training.cost.fit import CostConfig, fit_cost
from predictor.training.cost.operators import operator_examples, sample_operators
from predictor.training.cost.tensors import CostTensors

CALL_S = 25e-6
OWN = {
    "source": "mine",
    "campaign": "mine-1",
    "licence": "CC0-1.0",
    "origin": "measured",
    "precision": "fp32",
}


def table(devices: tuple[str, ...] = ("v100",)):  # type: ignore[no-untyped-def]
    rows = [
        {"device": device, "kind": kind, "operator": name, "operand_count": 1, "b": 256 * k, "n": 1024}
        | {"latency_s": CALL_S + k * slope}
        for device in devices
        for kind, name, slope in (("activation", "relu", 4e-6), ("softmax", "softmax", 6e-6))
        for k in range(1, 13)
    ]
    return make_table("operators", [row | OWN for row in rows])


def test_an_example_is_one_operator_timed_by_itself() -> None:
    examples = operator_examples(table())
    assert len(examples) == 24
    assert {len(e.job.kind) for e in examples} == {1}
    assert {e.timing for e in examples} == {"operator"}
    assert examples[0].log_s == pytest.approx(np.log(CALL_S + 4e-6))


def test_rows_with_a_missing_dimension_are_left_out() -> None:
    rows = table()
    rows.loc[3, "n"] = None
    assert [e.row for e in operator_examples(rows) if e.row == 3] == []
    assert len(operator_examples(rows)) == 23


def test_an_operator_takes_as_long_as_its_device_or_its_call() -> None:
    examples = operator_examples(table())
    tensors = CostTensors.of(examples, [], [])
    network = EfficiencyNetwork(8)
    standard = torch.zeros(tensors.features.shape[1]), torch.ones(tensors.features.shape[1])
    with torch.no_grad():
        jobs = tensors.batch(np.arange(len(examples)), *standard)
        seconds = network.log_seconds(jobs).exp()
        busy = network.operator_times(jobs).sum(0)
    assert (seconds > busy).all()
    assert (seconds > CALL_S).all()
    assert (seconds < busy + CALL_S).all()


def test_learns_single_operators() -> None:
    rows = table()
    model = fit_cost(
        operator_examples(rows), CostConfig(networks=1, hidden=8, epochs=40, batch_jobs=8, learning_rate=2e-2)
    )
    seconds, reasons = operator_times(model, rows)
    assert not reasons
    assert np.abs(seconds / rows["latency_s"].to_numpy(dtype=float) - 1).mean() < 0.1


def test_a_sample_covers_every_kind_on_every_device() -> None:
    rows = sample_operators(table(("v100", "t4")), 3)
    assert rows.groupby(["device", "kind"]).size().tolist() == [3, 3, 3, 3]
