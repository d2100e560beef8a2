"""Modules, factories, torch.export, PipeDream and folding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from profiling.capture import (
    capture_module,
    capture_onnx,
    capture_pipedream,
    capture_zoo,
    fold_repeats,
    graph_for,
    register_graph,
)
from profiling.errors import InputError, UnknownNameError
from profiling.graph import Operator
from profiling.workload import Workload
from profiling.zoo import get_entry
from tests.profiling.graphs import chain
from tests.shared import shared_data

PROFILE = """node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=602112.0, parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=12845056.0, parameter_size=7168.0
node3 -- ReLU(inplace) -- forward_compute_time=0.1, backward_compute_time=0.2, activation_size=12845056.0, parameter_size=0.0
node4 -- View(-1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=12845056.0, parameter_size=0.0
node5 -- Linear(in_features=3211264, out_features=10, bias=True) -- forward_compute_time=0.4, backward_compute_time=0.6, activation_size=40.0, parameter_size=128450600.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
\tnode4 -- node5
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("resnet18-cifar", torch.empty(2, 3, 32, 32)),
        ("gpt-125m", torch.zeros(1, 64, dtype=torch.long)),
        ("lstm-wikitext2", torch.zeros(2, 6, dtype=torch.long)),
    ],
)
def test_export_agrees_with_the_recording(name: str, inputs: torch.Tensor) -> None:
    with torch.device("meta"):
        model = get_entry(name).model()
    static = capture_module(model, inputs, static=True)
    recorded = capture_module(model, inputs)
    assert static.source == "export"
    assert static.parameter_count == recorded.parameter_count
    assert static.forward_flops == recorded.forward_flops
    assert static.backward_flops == pytest.approx(recorded.backward_flops, rel=0.02)
    assert static.step_bytes == pytest.approx(recorded.step_bytes, rel=0.25)
    assert static.layers == recorded.layers


class Recurrent(torch.nn.Module):
    """Recurrent layers that read the input, which has no gradient."""

    def __init__(self, kind: type[torch.nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(16, 32, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_recurrent_layer_on_the_input_passes_gradients_back_in_time(kind: type[torch.nn.RNNBase]) -> None:
    static, recorded = (
        capture_module(Recurrent(kind), torch.zeros(2, 6, 16), static=s) for s in (True, False)
    )
    assert static.backward_flops == recorded.backward_flops == 2 * static.forward_flops


class Adapted(torch.nn.Module):
    """A frozen layer with an adapter, a product by `einsum`, and changes of shape in place."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(16, 16).requires_grad_(False)
        self.adapter = torch.nn.Sequential(torch.nn.Linear(16, 2), torch.nn.Linear(2, 16))
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (self.base(x) + self.adapter(x)).unsqueeze_(0).squeeze_(0)
        scores = torch.einsum("btc,bsc->bts", x, x.tanh())
        return self.last(torch.einsum("bts,bsc->btc", scores, x))


@pytest.mark.filterwarnings("error::UserWarning")
def test_export_agrees_with_the_recording_of_a_partly_frozen_module() -> None:
    static, recorded = (capture_module(Adapted(), torch.randn(2, 6, 16), static=s) for s in (True, False))
    for figure in ("parameter_count", "gradient_bytes", "optimizer_flops", "forward_flops", "backward_flops"):
        assert getattr(static, figure) == getattr(recorded, figure) > 0, figure


class Embedded(torch.nn.Module):
    """A norm, a parameter of the module itself and a layer with tied weights, in that order from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.position = torch.nn.Parameter(torch.zeros(1, 6, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.linear = torch.nn.Linear(16, 16)
        self.square = torch.nn.Parameter(torch.zeros(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x.transpose(1, 2)) + self.position) @ (self.square + self.square.T)


def test_what_meets_the_input_first_is_not_taken_for_a_function_of_weights() -> None:
    static, recorded = (capture_module(Embedded(), torch.randn(2, 16, 6), static=s) for s in (True, False))
    kinds = {op.kind: op for op in static.operators}
    assert {"layer_norm", "elementwise", "linear"} <= set(kinds)
    assert kinds["layer_norm"].parameter_bytes == 2 * 16 * 4
    assert (static.layers, static.options) == (recorded.layers, recorded.options)
    assert static.total("parameter_bytes") == recorded.total("parameter_bytes") == static.parameter_bytes
    for figure in ("parameter_count", "gradient_bytes", "forward_flops", "backward_flops"):
        assert getattr(static, figure) == getattr(recorded, figure) > 0, figure


class Regions(torch.nn.Module):
    def __init__(self, chosen: bool) -> None:
        super().__init__()
        self.teacher, self.student = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.chosen:
            return self.student(x[torch.where(x[:, 0] > 0)[0]])
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x) - target


def test_export_follows_regions_of_weights() -> None:
    norm = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(16, 16))
    static, recorded = (capture_module(norm, torch.randn(4, 16), static=s) for s in (True, False))
    assert static.total("parameter_bytes") == recorded.total("parameter_bytes") == 4 * (16 * 16 + 16)
    assert static.forward_flops == recorded.forward_flops > 0


@pytest.mark.parametrize(("chosen", "said"), [(False, "set_grad_enabled"), (True, "depend on values")])
def test_export_refuses_what_it_cannot_follow(chosen: bool, said: str) -> None:
    with pytest.raises(InputError, match=f"(?s){said}.*record a step instead"):
        capture_module(Regions(chosen), torch.randn(4, 16), static=True)
    assert capture_module(Regions(chosen), torch.randn(4, 16)).forward_flops > 0


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: self.second(y).relu(), self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_export_refuses_checkpointed_regions_and_a_recording_counts_them_twice(reentrant: bool) -> None:
    with pytest.raises(InputError, match=r"activation checkpointing.*record a step instead"):
        capture_module(Checkpointed(reentrant), torch.randn(4, 16), static=True)
    recorded = capture_module(Checkpointed(reentrant), torch.randn(4, 16)).operators
    second = next(op for op in recorded if op.module_path == "second")
    assert second.backward_flops == 3 * second.forward_flops


class Square(torch.nn.Module):
    """A product of a tensor with itself, or attention from it to itself."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.layer(x)
        return torch.nn.functional.scaled_dot_product_attention(z, z, z) if self.attention else z @ z


def test_a_product_of_a_tensor_with_itself_has_two_gradient_products(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 16, 16)
    static, recorded = (capture_module(Square(False), x, static=s) for s in (True, False))
    assert static.backward_flops == recorded.backward_flops == 1.5 * static.forward_flops
    assert static.edges[0].bytes == 4 * x.numel()
    operators = capture_module(Square(True), x, static=True).operators
    attention = next(op for op in operators if op.kind == "attention")
    assert attention.backward_flops == 2 * attention.forward_flops
    path = tmp_path / "square.onnx"
    torch.onnx.export(Square(False), (x,), path, dynamo=True, external_data=False, verbose=False)
    assert capture_onnx(path).backward_flops == static.backward_flops


def test_files_and_code_are_read_for_local_callers_only(tmp_path: Path) -> None:
    for name in ("os:getcwd", str(tmp_path / "model.onnx"), "../x.graph.txt", "graph:../../etc/passwd"):
        with pytest.raises(UnknownNameError):
            graph_for(Workload(name))


def test_registered_graphs_are_found_by_their_hash() -> None:
    graph = capture_zoo(Workload("ppo-lunarlander"))
    name = register_graph(graph)
    assert name == f"graph:{graph.content_hash}"
    assert graph_for(Workload(name)).content_hash == graph.content_hash


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("batch_size=7", "batch_size=256, or no batch_size"),
        ("sequence_length=128", "no sequence_length"),
        ("image_size=64", "no image_size"),
        ("optimizer=sgd", "optimizer=adam, or no optimizer"),
        ("gradient_accumulation=2", "gradient_accumulation=1, or"),
        ("activation_checkpointing=true", "activation_checkpointing=False, or"),
    ],
)
def test_options_of_a_registered_graph_are_those_of_its_capture(option: str, expected: str) -> None:
    name = register_graph(capture_zoo(Workload("ppo-lunarlander", batch_size=256)))
    asked = Workload.parse(f"{name}:{option}")
    with pytest.raises(InputError, match=f"another {option.partition('=')[0]}: expected {expected}") as told:
        graph_for(asked)
    assert "take compiler, data_on_device, framework, frozen_prefix" in told.value.message
    same = "batch_size=256,optimizer=adam,gradient_accumulation=1,activation_checkpointing=false"
    assert graph_for(Workload.parse(f"{name}:{same},precision=amp,frozen_prefix=1")).batch_size == 256


def test_the_sequence_length_of_a_registered_graph() -> None:
    name = register_graph(capture_zoo(Workload("bert-base-squad", batch_size=1, sequence_length=64)))
    assert graph_for(Workload(name, sequence_length=64)).batch_size == 1
    with pytest.raises(InputError, match="expected sequence_length=64, or no sequence_length, got 128"):
        graph_for(Workload(name, sequence_length=128))


FACTORY = """
import torch
from torch import nn

def make(batch_size=4):
    return nn.Linear(16, 4), torch.randn(batch_size, 16)

def with_loss(batch_size=4):
    return nn.Linear(16, 4), {"input": torch.randn(batch_size, 16)}, lambda out: out.square().mean()

def wrong():
    return 3
"""


def test_module_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = graph_for(Workload("a_factory:make", batch_size=6, optimizer="adam"), local=True)
    assert graph.forward_flops == 2 * 6 * 16 * 4
    assert graph.optimizer_state_bytes == 8 * graph.parameter_count
    assert graph_for(Workload("a_factory:with_loss"), local=True).batch_size == 4
    with pytest.raises(InputError, match="returned a wrong value"):
        graph_for(Workload("a_factory:wrong"), local=True)
    with pytest.raises(InputError, match="cannot be imported"):
        graph_for(Workload("a_factory:none"), local=True)


def test_pipedream_profile(tmp_path: Path) -> None:
    path = tmp_path / "small.graph.txt"
    path.write_text(PROFILE)
    graph = capture_pipedream(path, workload=Workload("small", batch_size=4, optimizer="momentum"))
    assert [op.kind for op in graph.operators] == ["convolution", "activation", "linear"]
    assert graph.operators[0].forward_flops == 2 * (12845056 / 4) * 27
    assert graph.operators[2].forward_flops == 2 * 10 * 3211264
    # The first layer needs no gradient of its input.
    assert graph.operators[0].backward_flops == graph.operators[0].forward_flops
    assert graph.parameter_bytes == 7168 + 128450600 == graph.optimizer_state_bytes
    assert graph.options["forward_time_s"] == pytest.approx(0.002)
    assert [(e.source, e.target) for e in graph.edges] == [(0, 1), (1, 2)]
    assert graph.host_input_bytes == 602112
    path.write_text(PROFILE.replace("activation_size=40.0", "activation_size=[40.0; 8.0]"))
    several = capture_pipedream(path)
    assert several.operators[2].bytes_written == 48
    assert several.operators[2].forward_flops == graph.operators[2].forward_flops
    frozen = capture_pipedream(path, workload=Workload("small", frozen_prefix=1))
    assert frozen.gradient_bytes == 128450600


@pytest.mark.parametrize(
    "job",
    [
        Workload("small.graph.txt", sequence_length=8),
        Workload("small.graph.txt", image_size=8),
        Workload("small.onnx", image_size=8),
    ],
)
def test_files_have_no_such_size(job: Workload) -> None:
    option = "sequence_length" if job.sequence_length else "image_size"
    with pytest.raises(InputError, match=f"small.* has no {option}"):
        graph_for(job, local=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no nodes"),
        ("hello", "line 1: expected ID"),
        (PROFILE + "\tnode5 -- node9\n", "unknown node.*node9"),
        (PROFILE + "\tnode5 -- node2\n", "cycle"),
        (PROFILE.replace("parameter_size=7168.0", "weights=1"), "expected parameter_size"),
    ],
)
def test_invalid_profiles_are_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.graph.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        capture_pipedream(path)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
        ("densenet121", 7_978_856),
        ("inception_v3", 27_161_264),
    ],
)
def test_public_profiles(name: str, parameters: int) -> None:
    graph = capture_pipedream(shared_data("pipedream", f"{name}.graph.txt"))
    assert graph.parameter_count == parameters
    assert graph.forward_flops > 1e11


def test_folding_keeps_the_totals() -> None:
    graph = capture_zoo(Workload.parse("gpt-125m:batch_size=1,sequence_length=16"))
    folded = fold_repeats(graph)
    assert len(folded.operators) < len(graph.operators) / 4
    for column in ("forward_flops", "backward_flops", "bytes_read", "parameter_bytes", "kernel_count"):
        assert folded.total(column) == pytest.approx(graph.total(column), rel=1e-12)
    assert all(edge.source < edge.target for edge in folded.edges)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_folding_any_sequence_keeps_the_totals(values: list[int]) -> None:
    graph = chain([Operator(f"o{i}", "elementwise", bytes_written=float(v)) for i, v in enumerate(values)])
    folded = fold_repeats(graph)
    assert folded.total("bytes_written") == sum(values)
    assert sum(op.repeat for op in folded.operators) == len(values)


def test_transformer_encoder_of_torch() -> None:
    """`nn.TransformerEncoderLayer` calls attention inside a Python function, which must not hide it."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    graph = capture_module(layer, torch.randn(2, 10, 32), workload=Workload("x", precision="amp"))
    kinds = {op.kind: op.dtype for op in graph.operators}
    assert kinds["attention"] == "float16"
    assert graph.forward_flops == 2 * 20 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 2 * 10 * 10 * 32
