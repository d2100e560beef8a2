"""Training pairs as evidence that the predictor is right about them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import load_predictor
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.leave_one_out import calibrated
from predictor.gaussian_process.rows import Rows
from predictor.gaussian_process.set_process import SetProcess
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.prior import Prior, Priors
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.learning.test_posterior import seen

DEFAULT = PosteriorConfig()
# The predictor has learned from batch size 32 alone.
LEARNED = [
    Workload.parse(f"{model}:batch_size=32,step_time_s=0.03") for model in ("alpha", "beta", "gamma", "delta")
]
NEW = Workload.parse("delta:batch_size=512,step_time_s=0.3")


def pair(one: Workload, other: Workload, device: str = "v100") -> ColocationSet:
    return ColocationSet(device, (one, other))


def without_training(predictor: Predictor) -> Posterior:
    """A posterior that does not know what the predictor was trained on."""
    bare: Any = SimpleNamespace(predict_arrays=predictor.predict_arrays, predict_many=predictor.predict_many)
    return Posterior(bare, featurizer=predictor.fitted_.model.featurizer)


def corrected(posterior: Posterior, asked: ColocationSet) -> float:
    """By how much the log excess of the first member's slowdown moves."""
    before = posterior.predictor.predict_arrays([asked]).slowdown[0, 0] - 1
    return float(np.log((posterior.predict_arrays([asked]).slowdown[0, 0] - 1) / before))


def test_errors_on_a_new_job_say_less_about_learned_ones(predictor: Predictor) -> None:
    posteriors = Posterior(predictor), without_training(predictor)
    for posterior in posteriors:
        posterior.observe(seen(predictor, pair(NEW, LEARNED[k]), 0, 2.0) for k in range(2))
    informed, ignorant = (corrected(p, pair(LEARNED[3], LEARNED[0])) for p in posteriors)
    assert abs(informed) < 0.6 * abs(ignorant)
    informed, ignorant = (corrected(p, pair(NEW, LEARNED[2])) for p in posteriors)
    assert informed > 0.8 * ignorant > 0


@pytest.mark.parametrize(("device", "known"), [("cpu", False), ("v100", True)])
def test_not_on_a_core_of_any_processor(device: str, known: bool) -> None:
    predictor = load_predictor()
    assert (device, "time-slice") in predictor.fitted_.model.process.seen.settings
    job = Workload.parse("resnet18-cifar:batch_size=32,step_time_s=0.1")
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair(job, job, device), 0, 1.1)])
    assert bool(posterior.process.evidence.training) is known


def test_only_where_something_was_observed(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    settings = predictor.fitted_.model.process.seen.settings
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0], "rtx-3090"), 0, 1.5)])
    assert not posterior.process.evidence.training
    assert posterior.process.parameters == DEFAULT.around_predictor
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 1.5)])
    evidence = posterior.process.evidence
    training = evidence.members.setting[evidence.rows.own[: evidence.training]]
    assert {settings[number] for number in training.tolist()} == {("v100", "time-slice")}
    assert posterior.process.parameters == DEFAULT.parameters


@pytest.mark.parametrize(("factor", "right"), [(1.1, True), (6.0, False)])
def test_a_cluster_may_contradict_them(predictor: Predictor, factor: float, right: bool) -> None:
    posterior = Posterior(predictor)
    for one, other in permutations(LEARNED, 2):
        posterior.observe([seen(predictor, pair(one, other), 0, factor)])
    assert bool(posterior.process.evidence.training) is right


def test_one_architecture_does_not_contradict_them(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    for one, other in permutations(LEARNED, 2):
        factor = 6.0 if one is LEARNED[0] else 1.0
        posterior.observe([seen(predictor, pair(one, other), 0, factor)])
    assert posterior.process.evidence.training


@pytest.mark.parametrize("factor", [12.0, 24.0, 1e5])
def test_one_job_s_absurd_step_times_contradict_nothing(predictor: Predictor, factor: float) -> None:
    posterior, asked = Posterior(predictor), pair(LEARNED[1], LEARNED[2])
    posterior.observe(seen(predictor, pair(LEARNED[0], other), 0, factor) for other in [*LEARNED[1:], NEW])
    assert posterior.process.evidence.training
    assert abs(corrected(posterior, asked)) < 0.02


@pytest.mark.parametrize("most_rows", [512, 16])
def test_a_learned_job_that_is_far_slower_in_the_user_s_cluster_is_believed(
    predictor: Predictor, most_rows: int
) -> None:
    posterior = Posterior(predictor, PosteriorConfig(most_rows=most_rows))
    posterior.observe([seen(predictor, pair(LEARNED[0], other), 0, 100.0) for other in LEARNED[1:3]] * 4)
    assert posterior.process.evidence.training
    for other in LEARNED[1:]:
        assert corrected(posterior, pair(LEARNED[0], other)) > 0.9 * np.log(100.0)
    assert abs(corrected(posterior, pair(LEARNED[1], LEARNED[2]))) < 0.05


def test_without_weighted_pairs_the_kernel_is_the_predictor_s(predictor: Predictor) -> None:
    process = predictor.fitted_.model.process
    assert process is not None
    none = replace(process.weights, weight=np.zeros_like(process.weights.weight))
    nothing = SetProcess(process.seen, none, process.centre, process.scale, process.featurizer)
    posterior = Posterior(predictor, training_sets=nothing)
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 1.5)])
    assert posterior.process.parameters == DEFAULT.around_predictor


def test_the_order_of_devices_does_not_matter(predictor: Predictor) -> None:
    new = [seen(predictor, pair(NEW, LEARNED[0], d), 0, 1.5) for d in ("v100", "p100", "rtx-3090")]
    asked = [pair(NEW, LEARNED[1], device) for device in ("v100", "p100", "rtx-3090")]
    answers = []
    for order in (new, new[::-1]):
        posterior = Posterior(predictor)
        for observation in order:
            posterior.observe([observation])
            posterior.predict_many(asked)
        answers.append(posterior.predict_arrays(asked).slowdown)
    np.testing.assert_allclose(*answers, rtol=1e-9)


@pytest.mark.parametrize("partners", [1, 2])
def test_variances_without_observations_are_those_given_the_pairs(
    predictor: Predictor, partners: int
) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 1.5)])
    numbers = posterior._known.of_sets([ColocationSet("v100", tuple(LEARNED))], np.full((1, 4), 0.03))[0]
    prior = posterior._priors.of(posterior.members, numbers)
    assert len(prior.training)
    rows = Rows(numbers[:1], numbers[None, 1 : 1 + partners])
    _, (given,) = prior.process.answer(posterior.members, rows)
    _, (without,) = Prior.nothing(DEFAULT.parameters).process.answer(posterior.members, rows)
    key = (int(numbers[0]), *sorted(numbers[1 : 1 + partners].tolist()))
    (shift,), _ = posterior.state.pair_answers.beside([key])
    assert given < 0.5 * without
    # Intervals narrow by what observations say beyond that.
    assert shift.prior_variance == pytest.approx(0.5 * without, rel=1e-5)
    _, (left,) = posterior.process.answer(posterior.members, rows)
    told = 1 / left - 1 / given
    ratio = posterior.process.variance_ratio
    expected = calibrated(1 / (told + 2 / without), 0.5 * without, ratio)
    assert shift.variance == pytest.approx(expected, rel=1e-3)


def test_intervals_narrow_as_without_the_pairs(predictor: Predictor) -> None:
    asked = pair(LEARNED[0], LEARNED[1])
    widths = []
    for posterior in (Posterior(predictor), without_training(predictor)):
        posterior.observe([seen(predictor, asked, 0, 1.0)] * 16)
        (prediction,) = posterior.predict_many([asked])
        slowdown = prediction.members[0].slowdown
        widths.append(np.log(slowdown.upper / slowdown.lower))
    assert widths[0] == pytest.approx(widths[1], rel=0.1)


def test_intervals_do_not_narrow_without_observations_nearby(predictor: Predictor) -> None:
    posterior, asked = Posterior(predictor), pair(LEARNED[1], LEARNED[2])
    (before,) = predictor.predict_many([asked])
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 1.0)])
    (after,) = posterior.predict_many([asked])
    for was, now in zip(before.members, after.members, strict=True):
        width, then = (q.slowdown.upper / q.slowdown.lower for q in (now, was))
        assert width > 0.97 * then


def test_a_training_pair_that_was_observed_says_nothing(predictor: Predictor) -> None:
    posterior, asked = Posterior(predictor), pair(NEW, LEARNED[0])
    posterior.observe([seen(predictor, asked, 0, 1.2)])
    evidence, start = posterior.process.evidence, posterior._priors.start
    assert evidence.noise[: evidence.training].max() < 1.0
    assert start is not None
    row = evidence.rows.own[0], evidence.rows.partners[0, 0]
    one, other = (replace(start.jobs[start.members.job[k]], solo=LEARNED[0].solo) for k in row)
    posterior.observe([seen(predictor, pair(one, other), 0, 1.2)])
    evidence = posterior.process.evidence
    assert np.flatnonzero(evidence.noise > 1e3).tolist() == [0]
    assert corrected(posterior, pair(one, other)) > 0.9 * np.log(1.2)


def test_only_observations_tell_how_well_they_are_predicted(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 1.5)])
    numbers = posterior.members.setting.argmin(keepdims=True)
    assert posterior._priors.of(posterior.members, numbers).process.variance_ratio == 1.0


def test_influences_are_observations(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair(NEW, LEARNED[0]), 0, 2.0)])
    basis = posterior.basis(pair(replace(NEW, batch_size=256), LEARNED[0]), 0)
    assert basis.observations == 1
    assert [(i.job, i.device) for i in basis.heaviest] == [(str(NEW), "v100")]


def test_cached_variances_are_those_of_the_process(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe(seen(predictor, pair(NEW, LEARNED[k]), 0, 2.0) for k in range(3))
    rows, _ = posterior.rows_of([pair(NEW, LEARNED[k]) for k in range(4)])
    prior, members = Prior.nothing(posterior.config.parameters), posterior.members
    for some in (rows.take(np.arange(3)), rows):
        mean_and_variance = prior.process.answer(members, some)
        np.testing.assert_allclose(prior.variances(members, some), mean_and_variance[1], rtol=1e-12)
        joint = prior.process.joint(members, some)[1]
        np.testing.assert_array_equal(prior.covariance(members, some), joint)
        np.testing.assert_array_equal(prior.covariance(members, some), joint)


def test_the_predictor_is_judged_by_all_architectures_alike() -> None:
    """Of one, there are a hundred rows of lower rank than those of the other two."""
    model = np.repeat([7, 3, 5], [100, 30, 2])
    members = Members(np.zeros((132, 2)), model, *np.zeros((2, 132), np.int64))
    rows = Rows(np.arange(132), np.full((132, 1), -1))
    zero = np.zeros(132)
    evidence = Evidence(members, rows, zero, zero + 0.01, np.arange(132))
    priors = Priors(DEFAULT)
    compared = priors.compared(priors.ignorant, evidence)
    assert np.bincount(model[compared.numbers]).tolist() == [0, 0, 0, 30, 0, 2, 0, 32]
    assert set(range(32)) <= set(compared.numbers.tolist())
