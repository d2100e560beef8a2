"""What a `module:factory` may return, and the errors for invalid ones."""

import warnings
from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from profiling.capture import capture_factory
from profiling.capture.factory import factory_job
from profiling.errors import InputError
from profiling.workload import Workload

FACTORIES = """
import torch
from torch import nn
from profiling.training import Phase, TrainingJob

def whole(batch_size=8):
    model = nn.Linear(8, 2)
    phase = Phase(lambda model, batch, memo: model(batch).mean())
    return TrainingJob(
        model, torch.randn(batch_size, 8), (phase,), batch_size=batch_size, optimizer="adam", gradient_accumulation=2
    )

def fixed():
    return nn.Linear(8, 2), torch.randn(8, 8)

def images(image_size=8):
    return nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, image_size, image_size)

def time_first(batch_size=8):
    return nn.Linear(8, 2), torch.randn(50, batch_size, 8)

class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.seen = {}
        self.first.register_forward_hook(lambda module, inputs, out: self.seen.update(first=out))

    def forward(self, x):
        self.first(x)
        return self.last(self.seen.pop("first"))

def hooked(batch_size=8):
    return Hooked(), torch.randn(batch_size, 8)

def adapted(batch_size=8):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    model.adapter = nn.Linear(8, 8)
    first = model[0].forward
    model[0].forward = lambda x: first(x) + model.adapter(x)
    model.forward = lambda x: model[1](model[0](x))
    return model, torch.randn(batch_size, 8)

def normed(batch_size=8):
    return nn.utils.weight_norm(nn.Linear(8, 2)), torch.randn(batch_size, 8)

def orthogonal(batch_size=8, width=64, kind=None):
    parametrized = nn.utils.parametrizations.orthogonal(nn.Linear(64, width), orthogonal_map=kind)
    return nn.Sequential(nn.Linear(8, 64), parametrized), torch.randn(batch_size, 8)

def wide(batch_size=8):
    return orthogonal(batch_size, 96)

def cayley(batch_size=8):
    return orthogonal(batch_size, 64, "cayley")

def rates():
    return nn.Dropout([rate.item() for rate in torch.linspace(0, 0.1, 3)][-1]), torch.randn(8, 8)

def four(batch_size=8):
    return nn.Linear(8, 2), torch.randn(4, 8)

def tokens(batch_size=8):
    return nn.Embedding(10, 2), torch.zeros(50, batch_size, dtype=torch.long)

def empty(batch_size=8):
    return nn.Linear(8, 2), torch.randn(0, 8)

def exits():
    raise SystemExit(0)

def raises(batch_size=8):
    raise ValueError("boom")

def needs(path):
    return nn.Linear(8, 2), torch.randn(8, 8)

def sized(batch_size, **more):
    return nn.Linear(8, 2), torch.randn(batch_size, 8)

def job(workload, device):
    return None

def wrong_type():
    return nn.Linear(8, "2"), torch.randn(8, 8)

def vector():
    return nn.Linear(8, 2), torch.randn(8, 8), lambda out: out.mean(1)

def counted():
    return nn.Linear(8, 2), torch.randn(8, 8), lambda out: out.argmax(1).sum()

def no_module():
    return lambda x: x, torch.randn(8, 8)

def whole_dictionary():
    return nn.Identity(), {"x": torch.randn(8, 8)}

def needs_targets():
    return nn.Linear(8, 2), torch.randn(8, 8), nn.CrossEntropyLoss()

def detached(batch_size=8):
    return nn.Linear(8, 2), torch.randn(batch_size, 8), lambda out: out.mean().detach()

def classes(batch_size=8):
    return nn.Sequential(nn.Linear(8, 2), nn.Softmax(1), Largest()), torch.randn(batch_size, 8)

class Largest(nn.Module):
    def forward(self, x):
        return x.argmax(1)

constant = 3
"""


@pytest.fixture(autouse=True)
def _factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_training_job_keeps_the_options_it_was_built_with() -> None:
    graph = capture_factory(Workload("some_factories:whole", batch_size=4))
    assert (graph.options["optimizer"], graph.options["gradient_accumulation"]) == ("adam", 2)
    assert graph.optimizer_state_bytes == 2 * graph.parameter_bytes
    assert factory_job(Workload("some_factories:whole", optimizer="adam"), "cpu").samples_per_step == 16


@pytest.mark.parametrize(
    "option",
    [
        {"precision": "bf16"},
        {"optimizer": "sgd"},
        {"frozen_prefix": 1},
        {"gradient_accumulation": 4},
        {"activation_checkpointing": True},
    ],
)
def test_an_option_that_contradicts_a_training_job_is_refused(option: dict[str, object]) -> None:
    workload = Workload.from_mapping({"model": "some_factories:whole", **option})
    for make in (capture_factory, lambda job: factory_job(job, "cpu")):
        with pytest.raises(InputError, match=f"has its own {next(iter(option))}"):
            make(workload)


@pytest.mark.parametrize("option", ["batch_size", "sequence_length", "image_size"])
def test_an_option_that_a_factory_does_not_accept_is_refused(option: str) -> None:
    workload = Workload.from_mapping({"model": "some_factories:fixed", option: 64})
    for make in (capture_factory, lambda job: factory_job(job, "cpu")):
        with pytest.raises(InputError, match=f"takes no {option}"):
            make(workload)
    assert capture_factory(Workload("some_factories:fixed")).batch_size == 8


def test_an_image_size_reaches_the_factory() -> None:
    one, two = (capture_factory(Workload("some_factories:images", image_size=size)) for size in (8, 16))
    assert two.forward_flops == 4 * one.forward_flops > 0
    assert two.options["image_size"] == 16


@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_batch_size_is_the_factorys_argument_and_not_the_first_dimension(batch_size: int | None) -> None:
    workload = Workload("some_factories:time_first", batch_size=batch_size)
    expected = batch_size or 8
    assert capture_factory(workload).batch_size == expected
    assert factory_job(workload, "cpu").batch_size == expected


@pytest.mark.parametrize("name", ["some_factories:constant", "some_factories:__doc__", "torch:zeros"])
def test_invalid_factories(name: str) -> None:
    with pytest.raises(InputError, match="is not a factory"):
        capture_factory(Workload(name))


def test_functions_that_a_module_keeps_refer_to_the_module_that_is_captured() -> None:
    hooked, adapted = (capture_factory(Workload(f"some_factories:{name}")) for name in ("hooked", "adapted"))
    assert hooked.forward_flops == 2 * 8 * (8 * 8 + 8 * 2)
    assert hooked.gradient_bytes == hooked.parameter_bytes
    assert [op.kind for op in adapted.operators if op.layer_index >= 0][:2] == ["linear", "linear"]
    assert adapted.gradient_bytes == adapted.parameter_bytes
    assert sum(op.parameter_bytes for op in adapted.operators) == adapted.parameter_bytes


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_cannot_be_copied_is_captured_from_a_factory() -> None:
    assert capture_factory(Workload("some_factories:normed")).parameter_count == 8 * 2 + 2 + 2


@pytest.mark.filterwarnings("ignore:.*canonical kind")
@pytest.mark.parametrize("name", ["orthogonal", "wide", "cayley"])
def test_an_orthogonal_parametrisation_has_the_products_of_a_real_step(name: str) -> None:
    graph = capture_factory(Workload(f"some_factories:{name}"))
    job = factory_job(Workload(f"some_factories:{name}"), "cpu")
    with FlopCounterMode(display=False) as counted:
        job.step()
    assert graph.parameter_count == sum(p.numel() for p in job.model.parameters())
    # Operators of `torch.linalg`, which torch does not count, have a FLOP for each element.
    assert graph.forward_flops + graph.backward_flops == pytest.approx(counted.get_total_flops(), rel=0.04)


def test_numbers_computed_on_meta_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="compute numbers in Python"):
        capture_factory(Workload("some_factories:rates"))


def test_inputs_of_another_batch_size_are_noted() -> None:
    for batch_size in (8, 16):
        with pytest.warns(
            UserWarning, match=rf"no input has batch_size={batch_size} .*\(the first input is 4 x 8\)"
        ):
            graph = capture_factory(Workload("some_factories:four", batch_size=batch_size))
        assert graph.batch_size == batch_size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("four", "time_first", "tokens", "fixed"):
            size = 4 if name == "four" else None
            capture_factory(Workload(f"some_factories:{name}", batch_size=size))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"^'some_factories:raises' raised ValueError: boom\.$"),
        ("exits", r"^'some_factories:exits' raised SystemExit: 0\.$"),
        ("needs", r"requires path: .*no more than batch_size, .*got needs\(path\); give path a default"),
        ("sized", r"requires batch_size: expected a value .*as in some_factories:sized:batch_size=8"),
        ("job", r"requires workload and device: .*can be measured only"),
        ("wrong_type", r"^'some_factories:wrong_type' raised TypeError: "),
        ("vector", r"the loss is not one number: .*got shape \(8,\)"),
        ("counted", "got a loss of int64, and none of weight, bias"),
        ("no_module", r"returned a wrong value: .*got \(function, Tensor\)"),
        ("whole_dictionary", r"unexpected keyword argument 'x'; .*return \({\.\.\.},\) to pass it whole"),
        ("needs_targets", r"missing 1 required positional argument: 'target'; .*the module's output alone"),
        ("empty", r"inputs are empty.*\(0, 8\)"),
        (
            "detached",
            "^some_factories:detached: no parameter gets a gradient from the loss.*none of weight, bias",
        ),
        ("classes", "no floating-point output to train on: got tensors of int64"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        capture_factory(Workload(f"some_factories:{name}"))


def test_a_factory_of_a_workload_takes_any_batch_size() -> None:
    with pytest.raises(InputError, match="can be measured only"):
        capture_factory(Workload("some_factories:job", batch_size=4))
