from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.tables import make_table
from models.cost import default_cost_model
from models.cost.single_operators import operator_columns, operator_times
from profiling.capture import graph_for
from profiling.graph_columns import COLUMNS
from profiling.workload import Workload

OWN = {"source": "mine", "campaign": "mine-1", "licence": "CC0-1.0", "origin": "measured", "latency_s": 1.0}
# The first linear layer and the first convolution of two stored networks, in the words of the table.
LINEAR = {"kind": "linear", "operator": "linear", "operand_count": 2, "b": 8, "m": 197, "n": 2304, "k": 768}
CONVOLUTION = {
    "kind": "convolution",
    "operator": "conv2d",
    "operand_count": 2,
    "b": 8,
    "input_channels": 3,
    "output_channels": 64,
    "kernel_size": 7,
    "input_size": 224,
    "stride": 2,
    "padding": 3,
}
ROWS = {"b": 512, "n": 1024}
NORM = {"kind": "layer_norm", "operator": "layer_norm", "operand_count": 1, **ROWS}
RELU = {"kind": "activation", "operator": "relu", "operand_count": 1, **ROWS}


def table(*rows: dict[str, object], device: str = "v100") -> pd.DataFrame:
    return make_table("operators", [{"device": device, "precision": "fp32"} | row | OWN for row in rows])


@pytest.mark.parametrize(
    ("row", "network", "kind"),
    [(LINEAR, "torchvision/vit_b_16", "linear"), (CONVOLUTION, "torchvision/resnet18", "convolution")],
)
def test_columns_are_those_of_a_captured_operator(row: dict[str, object], network: str, kind: str) -> None:
    graph = graph_for(Workload.parse(f"{network}:batch_size=8").captured())
    position = next(i for i, op in enumerate(graph.operators) if op.kind == kind)
    columns = operator_columns(table(row))
    assert set(columns) == set(COLUMNS)
    for name in COLUMNS:
        if name in ("bytes_read", "backward_flops", "backward_bytes", "parameter_bytes", "layer_index"):
            continue  # the bias of a layer; what a forward call has not
        if name in ("saved_activation_bytes", "kernel_count", "forward_kernel_count"):
            continue  # what training keeps and starts, and the counter of the batch norm that follows
        assert columns[name][0] == graph.columns[name][position], name
    assert columns["bytes_read"][0] == pytest.approx(graph.columns["bytes_read"][position], rel=0.01)


def test_times_grow_with_work_and_never_beat_the_call() -> None:
    small, large = ROWS, {"b": 8192, "n": 1024}
    rows = table(NORM, NORM | large, RELU | small, RELU | large, LINEAR, LINEAR | {"b": 64})
    seconds, reasons = operator_times(default_cost_model(), rows)
    assert not reasons
    assert (seconds > 10e-6).all()
    assert (seconds[1::2] > seconds[::2]).all()


def test_unpredictable_operators_have_a_reason() -> None:
    rows = pd.concat([table(RELU), table(RELU, device="abacus"), table(LINEAR | {"k": None})])
    seconds, reasons = operator_times(default_cost_model(), rows)
    assert np.isnan(seconds).tolist() == [False, True, True]
    assert len(reasons) == 2
