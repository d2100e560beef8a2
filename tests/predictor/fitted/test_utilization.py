from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer
from predictor.fitted.model import CotenantModel
from predictor.fitted.utilization import independent_ratio, measured_difference, predicted_ratio, set_means
from predictor.predictor import Predictor
from predictor.training.fit import solo_examples
from predictor.training.networks import fit
from profiling.workload import ColocationSet
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]
# What jobs in step take off the utilisation of independent ones.
IN_STEP = -0.15


@pytest.fixture(scope="module")
def in_step(measured: Tables) -> Tables:
    colocation, solo = measured
    return colocation.assign(set_utilization_ratio=colocation.set_utilization_ratio + IN_STEP), solo


@pytest.fixture(scope="module")
def learned(in_step: Tables) -> CotenantModel:
    config = replace(TRAINING, epochs=60)
    solo = solo_examples(in_step[1])
    return fit(examples_of(*in_step), solo, Featurizer(graph_source), NETWORK, config)


def test_members_with_independent_phases(predictor: Predictor, measured: Tables) -> None:
    model, examples = predictor.fitted_.model, examples_of(*measured)
    busy = np.array([w.solo.utilization_ratio for w in examples.workloads]).reshape(-1, 2)
    expected = 1 - (1 - busy[:, 0]) * (1 - busy[:, 1])
    assert independent_ratio(model, examples) == pytest.approx(expected)
    assert measured_difference(model, examples).numpy() == pytest.approx(0.0, abs=1e-6)


def test_measured_utilisation_is_learned(learned: CotenantModel, in_step: Tables) -> None:
    examples = examples_of(*in_step)
    off = np.abs(predicted_ratio(learned, examples) - examples.set_utilization_ratio)
    assert off.mean() < 0.3 * abs(IN_STEP)
    # Without solo measurements too, as far as the estimate of the members' own utilisation goes.
    blind = examples.without_solo()
    moved = predicted_ratio(learned, blind) - independent_ratio(learned, blind)
    assert np.isfinite(moved).all()


def test_nothing_is_learned_without_measurements(in_step: Tables) -> None:
    colocation = in_step[0].assign(set_utilization_ratio=np.nan)
    examples = examples_of(colocation, in_step[1])
    model = fit(examples, solo_examples(in_step[1]), Featurizer(graph_source), NETWORK, TRAINING)
    assert not model.networks[0].usage.weight.any()
    assert torch.isnan(measured_difference(model, examples)).all()
    np.testing.assert_array_equal(predicted_ratio(model, examples), independent_ratio(model, examples))


def test_nothing_is_learned_from_cpu_rows(predictor: Predictor, measured: Tables) -> None:
    on_cpu = measured[0].assign(device="cpu"), measured[1].assign(device="cpu")
    assert torch.isnan(measured_difference(predictor.fitted_.model, examples_of(*on_cpu))).all()


def test_predictions_include_it(learned: CotenantModel, in_step: Tables, predictor: Predictor) -> None:
    answers = Predictor.of(replace(predictor.fitted_, model=learned), "learned", NETWORK, TRAINING)
    examples = examples_of(*in_step)
    sets = [
        ColocationSet("v100", examples.workloads[2 * k : 2 * k + 2])
        for k, device in enumerate(examples.devices[::2])
        if device == "v100"
    ]
    got = [p.total_utilization_ratio.value for p in answers.predict_many(sets)]
    before = [p.total_utilization_ratio.value for p in predictor.predict_many(sets)]
    # Users name no campaign, so that it is the answer for an unknown one.
    assert np.mean(got) < np.mean(before) - 0.3 * abs(IN_STEP)
    alone = ColocationSet("v100", examples.workloads[:1])
    use = examples.workloads[0].solo.utilization_ratio
    assert answers.predict(alone).total_utilization_ratio.value == pytest.approx(use)


def test_means_over_sets_of_any_size() -> None:
    present = torch.tensor([[True, True], [False, False], [True, False]])
    means = set_means(torch.tensor([[1.0, 3.0], [7.0, 7.0], [5.0, 7.0]]), present)
    assert means.tolist() == [2.0, 0.0, 5.0]
