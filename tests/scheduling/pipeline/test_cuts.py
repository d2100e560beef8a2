"""Where captured graphs may be cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.pipeline_runtime import split_model
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph, Operator
from profiling.workload import Workload
from scheduling.pipeline.cluster import PipelineCluster
from scheduling.pipeline.computation import graph_states
from scheduling.pipeline.cuts import GRANULARITIES, cut_points
from scheduling.pipeline.plan import plan


def graph(*paths: str) -> ComputationGraph:
    """One linear operator for each module path, in this order."""
    operators = tuple(
        Operator(f"op{i}", "linear", parameter_bytes=1e6, output_shape=(8, 8), module_path=path)
        for i, path in enumerate(paths)
    )
    return ComputationGraph("hand", operators, (), batch_size=8)


def residual(path: str, layers: int = 4) -> list[str]:
    return [f"{path}.layer{i}" for i in range(layers)]


def test_blocks_are_members_of_the_innermost_list() -> None:
    stages = [f"stages.{i}.{j}" for i in range(2) for j in range(2)]
    paths = ["stem", *(layer for stage in stages for layer in residual(stage)), "head.norm", "head.out"]
    assert list(cut_points(graph(*paths)).values()) == ["", *stages, "head"]


def test_experts_and_branches_belong_to_a_block() -> None:
    paths = [
        p
        for i in range(3)
        for p in (*residual(f"layers.{i}"), *(f"layers.{i}.experts.{e}.{n}" for e in range(4) for n in "abc"))
    ]
    assert list(cut_points(graph(*paths)).values()) == ["", "layers.1", "layers.2"]


def test_a_model_without_blocks_is_cut_at_modules() -> None:
    paths = ["features.0", "features.1", "features.2", "classifier.0"]
    assert cut_points(graph(*paths)) == cut_points(graph(*paths), "module")
    assert list(cut_points(graph(*paths)).values()) == ["", "features.1", "features.2", "classifier.0"]


def test_operator_granularity_cuts_anywhere() -> None:
    paths = ["a", "a", "b"]
    assert cut_points(graph(*paths), "operator") == {0: "", 1: "", 2: "b"}
    with pytest.raises(UnknownNameError, match="block, module, operator"):
        cut_points(graph(*paths), "layer")


def test_zoo_model_is_cut_at_its_blocks() -> None:
    captured = graph_for(Workload.parse("resnet18-cifar:batch_size=2"))
    block, module, operator = (list(cut_points(captured, g).values()) for g in GRANULARITIES)
    assert sum(path.rpartition(".")[2].isdigit() for path in block) == 8
    assert len(block) < len(module) < len(operator) == len(captured.operators)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer, self.last = (
            nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.outer(self.inner(self.norm(x)).relu()))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_split_spec_is_accepted_by_torch() -> None:
    paths = [
        "stem",
        *(f"blocks.{i}.{part}" for i in range(4) for part in ("norm", "inner", "outer", "last")),
        "head",
    ]
    cluster = PipelineCluster((3,), (1e9,))
    times = [(0.01, 0.02)] * len(paths)
    cut = plan(graph(*paths), cluster, "1f1b", 2, times=times, depth=3)
    assert cut.split_spec is not None
    assert all(path.startswith("blocks.") and path.count(".") == 1 for path in cut.split_spec)
    assert list(cut.split_spec) == cut.split_points
    pipe = split_model(Chain(), torch.randn(2, 4), list(cut.split_spec))
    assert pipe.num_stages == 3
    anywhere = plan(
        graph("a", "a", "a"), cluster, "1f1b", 2, times=times[:3], depth=3, granularity="operator"
    )
    assert anywhere.split_spec is None
    assert anywhere.to_json()["split_spec"] is None


def test_passes_of_a_step_share_parameters_but_not_outputs() -> None:
    job = Workload("gpt-125m", 1, sequence_length=32)
    device = get_device("v100")
    one, four = (
        graph_states(graph_for(replace(job, gradient_accumulation=passes)), device) for passes in (1, 4)
    )
    assert four.parameter_bytes == pytest.approx(one.parameter_bytes)
    assert four.fixed_bytes == pytest.approx(one.fixed_bytes)
    assert four.output_bytes == pytest.approx(4 * one.output_bytes)
    assert four.activation_bytes == pytest.approx(4 * one.activation_bytes)
