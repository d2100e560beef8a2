"""A registered graph of a zoo model shares what is learned of the zoo's job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import load_predictor
from predictor.examples.featurizer import Featurizer
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.learning.spelling import Spelling
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
