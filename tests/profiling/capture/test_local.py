"""Job SPECs that name a captured graph, its file, its hash, or a factory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from profiling.capture import graph_for, local_workload, register_graph
from profiling.capture.options import as_captured, execution_options
from profiling.errors import InputError, UnknownNameError
from profiling.workload import Workload

FACTORY = """
import torch

def factory(batch_size=8):
    return torch.nn.Linear(64, 10), torch.zeros(batch_size, 64)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_factory_of_test.py").write_text(FACTORY)
    return tmp_path


def test_captured_options_hold_unless_the_spec_overrides_them(here: Path) -> None:
    graph = graph_for(
        Workload("own_factory_of_test:factory", batch_size=16, precision="amp", optimizer="adam"), local=True
    )
    graph.save(here / "own.json")
    job = local_workload("own.json")
    assert (job.model, job.batch_size) == (f"graph:{graph.content_hash}", 16)
    assert (job.precision, job.optimizer) == ("amp", "adam")
    for precision in ("bf16", "fp32"):
        other = local_workload(f"own.json:precision={precision}")
        assert (other.precision, other.optimizer) == (precision, "adam")
        assert graph_for(other).options["precision"] == precision
    assert local_workload("own.json: precision = fp32").precision == "fp32"
    plain = graph_for(local_workload("own.json:optimizer=sgd"))
    assert plain.optimizer_state_bytes < graph.optimizer_state_bytes
    for option in (
        "batch_size=4",
        "gradient_accumulation=4",
        "activation_checkpointing=true",
        "image_size=64",
    ):
        with pytest.raises(InputError, match=f"another {option.partition('=')[0]}.* take .*mode, optimizer,"):
            local_workload(f"own.json:{option}")


def test_a_path_may_have_an_equals_sign(here: Path) -> None:
    (here / "lr=0.1").mkdir()
    graph = graph_for(Workload("own_factory_of_test:factory", batch_size=16), local=True)
    graph.save(here / "lr=0.1" / "own.json")
    assert local_workload("lr=0.1/own.json").model == f"graph:{graph.content_hash}"
    assert local_workload("lr=0.1/own.json:precision=amp").precision == "amp"
    with pytest.raises(InputError, match="has no model"):
        local_workload("batch_size=16")


@pytest.mark.parametrize("spec", ["dcgan-64:8", "dcgan-64::8", "dcgan-64:batch_size:8"])
def test_a_batch_size_written_otherwise_is_suggested(here: Path, spec: str) -> None:
    with pytest.raises(InputError, match=r"did you mean dcgan-64:batch_size=8\?$"):
        local_workload(spec)


@pytest.mark.parametrize("option", ["batch_size=8", "mode=inference"])
def test_a_colon_between_options_is_reported(here: Path, option: str) -> None:
    with pytest.raises(InputError, match=r"'dcgan-64:.*' is not a model: .*; put commas between options"):
        local_workload(f"dcgan-64:{option}:precision=amp")


def test_an_own_module_may_be_called_like_a_zoo_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "yolov3.py").write_text("from own_factory_of_test import factory\n")
    monkeypatch.delitem(sys.modules, "yolov3", raising=False)
    assert local_workload("yolov3:factory").model.startswith("graph:")


def test_hash_and_factory_name_the_same_graph(here: Path) -> None:
    job = local_workload("own_factory_of_test:factory:batch_size=16")
    assert job.batch_size == 16
    digest = job.model.removeprefix("graph:")
    assert local_workload(digest[:12]).model == job.model
    assert local_workload(f"graph:{digest}").model == job.model
    assert graph_for(job).content_hash == digest


def test_unknown_and_ambiguous_hashes(here: Path) -> None:
    graph = graph_for(Workload("own_factory_of_test:factory"), local=True)
    path = here / "cache" / "cotenant" / "registered" / f"{graph.content_hash}.json"
    register_graph(graph)
    path.with_name(graph.content_hash[:8] + "0" * 56 + ".json").write_text(path.read_text())
    with pytest.raises(UnknownNameError, match="no captured graph"):
        local_workload("0123456789abcdef")
    with pytest.raises(UnknownNameError, match="several"):
        local_workload(graph.content_hash[:8])


def test_an_optimizer_cannot_be_added_to_a_graph_without_one(here: Path) -> None:
    job = local_workload("own_factory_of_test:factory:batch_size=16,optimizer=none")
    assert local_workload(f"{job.model}:optimizer=none").optimizer == "none"
    with pytest.raises(InputError, match="without an optimiser"):
        local_workload(f"{job.model}:optimizer=adam")


def test_zoo_names_are_unchanged(here: Path) -> None:
    assert local_workload("resnet18-cifar:batch_size=4") == Workload("resnet18-cifar", batch_size=4)


IMPLIED = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

def compiled(batch_size=8):
    return torch.compile(model()), torch.zeros(batch_size, 3, 8, 8)

def in_place(batch_size=8):
    whole = model()
    whole.compile()
    return whole, torch.zeros(batch_size, 3, 8, 8)

def channels_last(batch_size=8):
    return model().to(memory_format=torch.channels_last), torch.zeros(batch_size, 3, 8, 8)
"""


@pytest.mark.parametrize(
    ("factory", "option", "implied", "other"),
    [
        ("compiled", "compiler", "compile", "eager"),
        ("in_place", "compiler", "compile", "eager"),
        ("channels_last", "memory_layout", "channels-last", "contiguous"),
    ],
)
def test_a_module_implies_how_its_kernels_run(
    here: Path, factory: str, option: str, implied: str, other: str
) -> None:
    (here / "implied_of_test.py").write_text(IMPLIED)
    name = f"implied_of_test:{factory}"
    job = local_workload(name)
    assert getattr(job, option) == implied
    # Over HTTP, a job names the graph alone.
    by_hash = Workload(job.model)
    assert getattr(as_captured(by_hash, graph_for(by_hash)), option) == implied
    stated = local_workload(f"{name}:{option}={other}")
    assert getattr(as_captured(stated, graph_for(stated)), option) == other
    plain = local_workload("own_factory_of_test:factory")
    assert (plain.compiler, plain.memory_layout) == ("eager", "contiguous")


@pytest.mark.parametrize(("part", "expected"), [(0, "compile"), (2, "eager")])
@pytest.mark.parametrize("in_place", [False, True])
def test_most_parameters_decide_if_some_modules_are_compiled(
    part: int, expected: str, in_place: bool
) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    if in_place:
        model[part].compile()
    else:
        model[part] = torch.compile(model[part])
    with pytest.warns(
        UserWarning, match=r"modules with (80\.9|19\.1) % of the parameters: .* as " + expected
    ):
        assert execution_options(model).get("compiler", "eager") == expected


def test_a_compiled_forward_compiles_the_module() -> None:
    model = nn.Linear(8, 2)
    model.forward = torch.compile(model.forward)
    assert execution_options(model) == {"compiler": "compile"}


def test_what_a_model_prints_is_not_output(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout may be one JSON value."""
    printing = FACTORY.replace("    return", "    print('made')\n    return")
    (here / "printing_factory_of_test.py").write_text("print('imported')\n" + printing)
    graph_for(Workload("printing_factory_of_test:factory"), local=True)
    printed = capsys.readouterr()
    assert (printed.out, "imported" in printed.err, "made" in printed.err) == ("", True, True)
