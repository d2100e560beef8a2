"""From recordings to stored graphs and back: a collection returns what a capture would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from profiling import collections
from profiling.capture import capture_job, capture_zoo, graph_for
from profiling.collections.affine import check, fit
from profiling.collections.build import record
from profiling.collections.entry import Entry
from profiling.collections.pack import pack
from profiling.collections.recorded import failures, write_index
from profiling.collections.store import Store
from profiling.collections.unpack import unpack
from profiling.errors import InputError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.training import TrainingJob
from profiling.workload import OPTIMIZERS, Workload
from profiling.zoo import build

NETWORKS = ("mobilenetv3small-imagenet", "resnet18-cifar")


def _job(name: str, batch_size: int, precision: str) -> TrainingJob:
    return build(Workload(name, batch_size=batch_size, precision=precision, optimizer="sgd"), "meta")


def _makers(name: str, size: int) -> Iterator[partial[TrainingJob]]:
    yield partial(_job, name)


def _broken(size: int) -> Iterator[partial[TrainingJob]]:
    yield partial(_job, "no-such-network")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two zoo networks, an alias and one that fails, in place of timm's."""
    recorded, folder = tmp_path_factory.mktemp("recorded"), tmp_path_factory.mktemp("packed")
    entries = [Entry(name, "zoo", (224,), partial(_makers, name)) for name in NETWORKS]
    entries.append(Entry("broken", "zoo", (224,), _broken))
    entries.append(Entry("another-name", "zoo", (), _broken, alias_of=NETWORKS[1]))
    write_index(recorded, "timm", entries)
    assert record("timm", entries, recorded) == (4, 1)
    assert record("timm", entries, recorded) == (0, 1)  # goes on where it stopped
    assert "not in the zoo" in failures(recorded, "timm")["broken@224"]
    assert "3 names, 4 graphs" in pack("timm", recorded, folder)
    return folder


def test_unpacking_and_repacking_is_lossless(packed: Path, tmp_path: Path) -> None:
    assert unpack("timm", tmp_path / "recorded", packed) == 4
    pack("timm", tmp_path / "recorded", tmp_path / "again")
    for path in packed.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.fixture
def stored(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    store = Store("timm", packed)
    monkeypatch.setattr(collections, "store_of", lambda _: store)
    collections._graph.cache_clear()
    yield
    collections._graph.cache_clear()


@cache
def captured(
    name: str, batch_size: int, precision: str, optimizer: str, accumulation: int = 1
) -> ComputationGraph:
    workload = Workload(
        name,
        batch_size=batch_size,
        precision=precision,
        optimizer=optimizer,
        gradient_accumulation=accumulation,
    )
    return capture_zoo(workload)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("precision", ["fp32", "amp", "tf32"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch_size", [1, 48, 300])
def test_a_stored_graph_equals_the_captured_one(name: str, batch_size: int, precision: str) -> None:
    job = Workload(f"timm/{name}", batch_size=batch_size, precision=precision, optimizer="adam")
    graph, expected = graph_for(job), captured(name, batch_size, precision, "adam")
    options = {**expected.options, "image_size": 224}
    assert graph == replace(expected, name=f"timm/{name}", options=options)
    assert graph_for(job) is graph


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimisers_and_accumulation_follow_from_the_parameters(optimizer: str) -> None:
    name = NETWORKS[1]
    graph = graph_for(Workload(f"timm/{name}", batch_size=4, optimizer=optimizer, gradient_accumulation=3))
    expected = captured(name, 4, "fp32", optimizer, 3)
    assert graph.operators == expected.operators
    for field in ("optimizer_flops", "optimizer_bytes", "optimizer_kernels", "optimizer_state_bytes", "host_input_bytes"):  # fmt: skip
        assert getattr(graph, field) == pytest.approx(getattr(expected, field), rel=1e-12), field


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_other_precisions_follow_by_rule(name: str, precision: str) -> None:
    graph = graph_for(Workload(f"timm/{name}", batch_size=16, precision=precision))
    expected = captured(name, 16, precision, "sgd")
    assert graph.parameter_bytes == expected.parameter_bytes
    assert graph.step_flops == expected.step_flops
    assert [op.dtype for op in graph.operators] == [op.dtype for op in expected.operators]
    assert [op.tensor_core for op in graph.operators] == [op.tensor_core for op in expected.operators]
    for column in ("bytes_read", "bytes_written", "backward_bytes", "saved_activation_bytes"):
        assert graph.total(column) == pytest.approx(expected.total(column), rel=0.02), column
    assert graph.activation_bytes == pytest.approx(expected.activation_bytes, rel=0.05)
    assert graph.forward_activation_bytes == pytest.approx(expected.forward_activation_bytes, rel=0.05)


@pytest.mark.usefixtures("stored")
def test_an_alias_has_the_graph_of_its_network() -> None:
    own, alias = f"timm/{NETWORKS[1]}", "timm/another-name"
    assert collections.collected_names("timm") == [alias, *(f"timm/{name}" for name in NETWORKS)]
    assert collections.is_collected(alias)
    assert not collections.is_collected("timm/broken")
    assert not collections.is_collected("resnet18-cifar")
    assert (
        graph_for(Workload(alias, batch_size=2)).operators == graph_for(Workload(own, batch_size=2)).operators
    )


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("timm/resnet18-cifr", UnknownNameError, "timm/resnet18-cifar"),
        ("timm/resnet18-cifar:image_size=225", InputError, "one of 224"),
        ("timm/resnet18-cifar:sequence_length=5", InputError, "no sequence_length"),
        ("timm/resnet18-cifar:activation_checkpointing=true", InputError, "checkpointing"),
    ],
)
def test_missing_graphs_are_refused(spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        graph_for(Workload.parse(spec))


def test_an_inconsistent_line_is_found() -> None:
    graphs, curves = [], []
    for batch_size in (4, 8, 16):
        curve: dict[str, list[float]] = {}
        graphs.append(capture_job(_job("dcgan-64", batch_size, "fp32"), "x", {}, curve))
        curves.append(curve)
    line = fit(graphs[0], graphs[1], (curves[0], curves[1]))
    check(line, graphs[2])
    operator = replace(graphs[2].operators[3], bytes_read=graphs[2].operators[3].bytes_read + 64)
    wrong = replace(graphs[2], operators=(*graphs[2].operators[:3], operator, *graphs[2].operators[4:]))
    with pytest.raises(InputError, match=r"bytes_read of .* is not affine"):
        check(line, wrong)
    with pytest.raises(InputError, match="not a maximum of lines"):
        check(line, replace(graphs[2], activation_bytes=1.0))
    with pytest.raises(InputError, match=r"operators .* differ"):
        check(line, replace(graphs[2], layers=()))
