from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from profiling.capture import capture_zoo
from profiling.collections import collection_of, is_collected
from profiling.errors import InputError, UnknownNameError
from profiling.operators import CONTRACTIONS
from profiling.training import Phase, TrainingJob, atomic_layers, freeze_prefix
from profiling.workload import Workload
from profiling.zoo import build, get_entry, zoo_names
from profiling.zoo.aliases import ALIASES
from profiling.zoo.listing import LISTING, listed, resolve
from profiling.zoo.registry import all_entries
from tests.shared import shared_data

# The numbers that the public measurements state for their models.
STATED = {
    "resnet18-cifar": 11_173_962,
    "mobilenetv2-cifar": 2_296_922,
    "efficientnetb0-cifar": 2_912_089,
    "vgg11-cifar": 9_231_114,
    "mobilenetv3small-imagenet": 2_542_856,
    "resnet50-imagenet": 25_557_032,
    "dcgan-64": 3_576_704 + 2_765_568,
    "lstm-wikitext2": 13_987_678,
    "neumf-ml1m": 1_602_657,
    "pointnet-2500": 1_607_961,
    "a3c-pong": 3_249_639,
    "cyclegan-256": 2 * 11_378_179 + 2 * 2_764_737,
}
# Atomic layers that the freezing measurements count.
FREEZABLE = {
    "bert-base-wikitext2": 103,
    "yolov3-voc": 117,
    "resnet18-cifar": 41,
    "resnet50-cifar": 107,
    "vgg19-cifar": 33,
}


@pytest.mark.parametrize("name", zoo_names())
def test_parameter_counts_match_published_ones(name: str) -> None:
    entry = get_entry(name)
    with torch.device("meta"):
        model = entry.model()
    assert (
        sum(p.numel() for p in model.parameters()) == entry.parameters == STATED.get(name, entry.parameters)
    )
    assert len(entry.source) > 10
    assert len(atomic_layers(model)) == FREEZABLE.get(name, len(atomic_layers(model)))


def test_the_listing_matches_the_entries() -> None:
    assert json.loads(LISTING.read_text()) == [listed(entry) for entry in all_entries()], (
        "python -m profiling.zoo"
    )


def test_every_name_of_the_public_data_is_in_the_zoo() -> None:
    known = set(zoo_names())
    # Networks of libraries are in collections of stored graphs.
    elsewhere = {name for name in ALIASES.values() if name not in known}
    assert {name for name in elsewhere if not collection_of(name)} == set()
    assert all(is_collected(name) for name in elsewhere if collection_of(name) == "torchvision")
    with pytest.raises(UnknownNameError, match="resnet50"):
        get_entry("resnet50-imagnet")


def test_gavel_jobs_have_zoo_models() -> None:
    path = shared_data("gavel", "simulation_throughputs.json")
    jobs = {key.split("'")[1].split(" (")[0] for key in json.loads(path.read_text())["v100"]}
    assert jobs <= ALIASES.keys()


def test_lucid_jobs_have_zoo_models() -> None:
    lines = shared_data("lucid", "single_data.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in lines if line} <= ALIASES.keys()


@pytest.mark.parametrize(
    "spec",
    [
        "resnet18-cifar:batch_size=2",
        "dcgan-64:batch_size=2,gradient_accumulation=2",
        "lstm-wikitext2:batch_size=2,sequence_length=5",
        "neumf-ml1m:batch_size=8,optimizer=adagrad",
        "td3-bipedalwalker:batch_size=4",
        "ppo-lunarlander:batch_size=4",
        "a3c-pong:sequence_length=2",
        "autoencoder-ml20m:batch_size=4",
        "mobilenetv3small-imagenet:batch_size=2,precision=amp",
        "keras-resnet50-cifar:batch_size=2",
        "keras-embedding-newsgroups:batch_size=2",
        "keras-transformer-forda:batch_size=1",
        "keras-mpnn-bbbp:batch_size=2",
        "keras-deepspeech2-ljspeech:batch_size=2,sequence_length=40",
        "resnet18-cifar:batch_size=2,frozen_prefix=41",
        "resnet18-cifar:batch_size=2,activation_checkpointing=true,precision=bf16",
    ],
)
def test_zoo_jobs_train_on_the_cpu(spec: str) -> None:
    torch.manual_seed(0)
    job = build(Workload.parse(spec), "cpu")
    before = [p.detach().clone() for p in job.model.parameters()]
    parts: list[str] = []
    first = float(job.step(parts.append))
    assert math.isfinite(first)
    assert parts[:2] == ["forward", "backward"]
    assert parts[-1] == "optimizer"
    changed = [not torch.equal(a, b) for a, b in zip(before, job.model.parameters(), strict=True)]
    assert any(changed) != ("frozen_prefix=41" in spec)
    assert job.samples_per_step == job.batch_size * job.gradient_accumulation


def test_frozen_prefix_is_the_first_atomic_layers() -> None:
    job = build(Workload.parse("resnet18-cifar:frozen_prefix=5"), "meta")
    layers = atomic_layers(job.model)
    frozen = [all(not p.requires_grad for p in m.parameters(recurse=False)) for _, m in layers]
    assert frozen == [True] * 5 + [False] * 36
    with pytest.raises(InputError, match="0 to 41"):
        freeze_prefix(job.model, 42)


def test_options_that_a_model_lacks() -> None:
    with pytest.raises(InputError, match="no sequence length"):
        build(Workload.parse("resnet18-cifar:sequence_length=3"), "meta")


@pytest.mark.parametrize(
    ("name", "most"),
    [("bert-base-squad", 512), ("roberta-base-qnli", 512), ("gpt-125m", 2048), ("whisper-small", 448)],
)
def test_a_sequence_beyond_the_positions_is_refused(name: str, most: int) -> None:
    assert resolve(Workload(name, sequence_length=most)).sequence_length == most
    with pytest.raises(
        InputError, match=f"{name} has no positions for this .*: expected at most {most}, got {most + 1}"
    ):
        resolve(Workload(name, sequence_length=most + 1))


def test_processes_of_a_job_are_at_least_one() -> None:
    entry = get_entry("a3c-pong")
    assert entry.processes == 4
    assert get_entry("resnet18-cifar").processes == 1
    with pytest.raises(InputError, match="processes"):
        replace(entry, processes=0)


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)


def test_phases_that_share_a_forward_pass_get_the_gradients_of_one_tape() -> None:
    def forward(model, batch, memo):  # type: ignore[no-untyped-def]
        out = model.second(model.first(batch["x"]))
        memo["second"] = (out - 1).square().mean()
        return out.square().mean()

    torch.manual_seed(0)
    model = Pair()
    x = torch.randn(5, 3)
    out = model.second(model.first(x))
    first = torch.autograd.grad(out.square().mean(), list(model.first.parameters()), retain_graph=True)
    second = torch.autograd.grad((out - 1).square().mean(), list(model.second.parameters()))
    expected = [p.detach() - 1e-3 * g for p, g in zip(model.parameters(), (*first, *second), strict=True)]
    phases = (
        Phase(forward, ("first",), shares_forward=True),
        Phase(lambda model, batch, memo: memo["second"], ("second",), shares_forward=True),
    )
    TrainingJob(model, {"x": x}, phases, batch_size=5).step()
    assert all(torch.allclose(a, b) for a, b in zip(model.parameters(), expected, strict=True))


def test_a_shared_forward_pass_is_recorded_once() -> None:
    graph = capture_zoo(Workload("keras-cyclegan-256"))
    generator, judge = graph.parameter_count - 2 * 2_765_633, 2 * 2_765_633
    products = [op for op in graph.operators if op.kind in CONTRACTIONS]
    # Six generators of 24 convolutions and four discriminators of 5.
    assert len(products) == 6 * 24 + 4 * 5
    assert sum(op.parameter_bytes for op in graph.operators) == 4 * (generator + judge)
    # Every generator's gradient passes through the other one and a judge, whose weights then wait for their own.
    assert 1.5 * graph.forward_flops < graph.backward_flops < 3.0 * graph.forward_flops
    assert graph.total("saved_activation_bytes") < graph.activation_bytes
