"""A registered graph of a zoo model shares what is learned of the zoo's job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import load_predictor
from predictor.examples.featurizer import Featurizer
from predictor.examples.observations import Observation
from predictor.gaussian_process.kernel import KernelParameters
from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.members import default_scale
from predictor.gaussian_process.spelling import Spelling
from predictor.learning.posterior import Posterior
from profiling.capture import graph_for
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import REGISTERED, ColocationSet, Workload

ZOO = Workload("resnet18-cifar", 64, optimizer="adam")
GRAPH = graph_for(ZOO.captured())
OTHER = replace(GRAPH, name="dcgan-64")
OWN = replace(graph_for(Workload("dcgan-64").captured()), name="own")
SAME = Workload(REGISTERED + GRAPH.content_hash)


def source(workload: Workload) -> ComputationGraph:
    if not workload.model.startswith(REGISTERED):
        return graph_for(workload)
    for graph in (GRAPH, OWN):
        if workload.model == REGISTERED + graph.content_hash:
            return graph
    raise UnknownNameError("not registered")


def misnamed(workload: Workload) -> ComputationGraph:
    return OTHER if workload == SAME else graph_for(workload)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ZOO),
        ({"batch_size": 64, "optimizer": "adam"}, ZOO),
        ({"frozen_prefix": 2}, replace(ZOO, frozen_prefix=2)),
        ({"mode": "inference", "data_on_device": True}, replace(ZOO, mode="inference", data_on_device=True)),
    ],
)
def test_it_is_the_zoos_job_with_the_options_of_the_capture(
    options: dict[str, object], expected: Workload
) -> None:
    spelled = Spelling(Featurizer(source))
    assert spelled(replace(SAME, **options)) == spelled(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "amp"}, {"precision": "amp", "gradient_accumulation": 4, "optimizer": "sgd"}],
)
def test_a_graph_has_the_options_of_its_capture_stated_or_not(options: dict[str, object]) -> None:
    captured = Workload("dcgan-64", 64, precision="amp", gradient_accumulation=4, optimizer="sgd")
    graph = replace(graph_for(captured.captured()), name="own")
    own = Workload(REGISTERED + graph.content_hash)
    spelled = Spelling(Featurizer(lambda workload: graph))
    expected = replace(own, precision="amp", gradient_accumulation=4)
    assert spelled(replace(own, **options)) == expected  # type: ignore[arg-type]
    assert spelled(replace(own, precision="bf16")).precision == "bf16"


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd"},
        {"frozen_prefix": 3},
        {"gradient_accumulation": 4},
        {"activation_checkpointing": True},
    ],
)
def test_options_of_training_do_not_count_in_inference(options: dict[str, object]) -> None:
    plain = Workload("resnet18-cifar", 64, mode="inference")
    same = replace(plain, **options)  # type: ignore[arg-type]
    spelled = Spelling(None)
    assert spelled(same) == spelled(plain)
    assert spelled(replace(same, mode="training")) != spelled(replace(plain, mode="training"))
    posterior = Posterior(load_predictor("default"))
    alone, asked = (ColocationSet("v100", (job,)) for job in (plain, same))
    posterior.observe([Observation(alone, 0, 0.02, memory_bytes=2.5e9, utilization_ratio=0.4)])
    expected, answer = (posterior.predict(each).members[0] for each in (alone, asked))
    for name in ("solo_step_time_s", "memory_bytes", "utilization_ratio"):
        assert getattr(answer, name) == getattr(expected, name), name


def test_other_graphs_keep_their_names() -> None:
    spelled = Spelling(Featurizer(source))
    own = Workload(REGISTERED + OWN.content_hash)
    assert spelled(own) == own
    assert spelled(replace(SAME, precision="amp")).model == SAME.model  # derived, not captured, in it
    assert Spelling(None)(SAME) == SAME
    # The name of another zoo model does not make it one.
    assert Spelling(Featurizer(misnamed))(SAME) == SAME
    gone = Workload(REGISTERED + "0" * 64)
    assert spelled(gone) == gone


def test_observations_of_either_are_those_of_both() -> None:
    predictor = load_predictor("default", source)
    neighbour = Workload("lstm-wikitext2")

    def answers(posterior: Posterior) -> list[tuple[float, ...]]:
        sets = [ColocationSet("v100", jobs) for job in (ZOO, SAME) for jobs in ((job,), (job, neighbour))]
        arrays = posterior.predict_arrays(sets)
        members = [prediction.members[0] for prediction in posterior.predict_many(sets)]
        np.testing.assert_allclose(
            [m.step_time_s.value for m in members], arrays.step_time_s[:, 0], rtol=1e-5
        )
        return [(m.solo_step_time_s.value, m.slowdown.value) for m in members]

    for job in (ZOO, SAME):
        posterior = Posterior(predictor)
        before = answers(posterior)
        alone, pair = ColocationSet("v100", (job,)), ColocationSet("v100", (job, Workload("dcgan-64")))
        posterior.observe([Observation(alone, 0, 0.05), Observation(pair, 0, 0.11)])
        after = answers(posterior)
        np.testing.assert_allclose(after[:2], after[2:])
        np.testing.assert_allclose(before[:2], before[2:])
        assert after[0] != before[0]


def captures(*jobs: Workload) -> tuple[list[Workload], Featurizer]:
    """Registered graphs of jobs of a network of one's own, and what reads them."""
    graphs = [replace(graph_for(job.captured()), name=f"own-{job.batch_size}") for job in jobs]
    names = [REGISTERED + graph.content_hash for graph in graphs]
    stored = dict(zip(names, graphs, strict=True))
    return [Workload(name) for name in names], Featurizer(
        lambda asked: stored.get(asked.model) or graph_for(asked)
    )


@pytest.mark.parametrize(
    "model", ["resnet18-cifar", "bert-base-squad", "lstm-wikitext2", "neumf-ml1m", "dcgan-64"]
)
def test_captures_in_other_batches_are_of_one_network(model: str) -> None:
    own, featurizer = captures(
        Workload(model, 4), Workload(model, 12), Workload(model, 12, optimizer="adagrad")
    )
    small, large, other = map(Spelling(featurizer).network, own)
    assert small == large
    assert small.model.startswith(REGISTERED)
    assert other.model != small.model


def test_captures_of_other_samples_are_not() -> None:
    jobs = [Workload("bert-base-squad", 4, sequence_length=length) for length in (128, 384)]
    own, featurizer = captures(*jobs, Workload("roberta-base-qnli", 4))
    network = Spelling(featurizer).network
    assert len({network(job).model for job in own}) == 3
    assert network(Workload("dcgan-64", 32)) == Spelling(featurizer)(Workload("dcgan-64", 32))
    assert Spelling(None).network(own[0]) == own[0]


def test_what_was_observed_of_a_capture_carries_over_to_one_with_another_batch() -> None:
    (small, large), featurizer = captures(Workload("resnet18-cifar", 64), Workload("resnet18-cifar", 128))
    predictor = load_predictor("default", featurizer.graph_source)
    posterior = Posterior(predictor)
    alone, asked = (ColocationSet("v100", (job,)) for job in (small, large))
    before = predictor.predict_arrays([alone, asked])
    step_s, memory_bytes = 3.0 * before.step_time_s[0, 0], 1.5 * before.memory_bytes[0, 0]
    posterior.observe([Observation(alone, 0, float(step_s), memory_bytes=float(memory_bytes))])
    now = posterior.predict_arrays([asked])
    assert now.step_time_s[0, 0] > max(step_s, 1.8 * before.step_time_s[1, 0])
    assert now.memory_bytes[0, 0] > 1.3 * before.memory_bytes[1, 0]


@pytest.mark.parametrize("name", ["dcgan-64", "own"])
def test_the_same_job_has_the_same_load(name: str) -> None:
    zoo = Workload("dcgan-64", 64, gradient_accumulation=2, activation_checkpointing=True)
    graph = replace(graph_for(zoo.captured()), name=name)
    job = Workload(REGISTERED + graph.content_hash)
    featurizer = Featurizer(lambda one: graph if one.model == job.model else graph_for(one))
    stated = replace(job, gradient_accumulation=2, activation_checkpointing=True)
    known = KnownMembers(KernelParameters(), default_scale(), featurizer)
    for jobs in ([job, stated, zoo], [replace(each, mode="inference") for each in (job, stated, zoo)]):
        numbers = known.numbers([(each, "v100", "mps") for each in jobs], [0.1] * 3)
        load = known.load[numbers].tolist()
        assert load[0] == load[1] == load[2]
