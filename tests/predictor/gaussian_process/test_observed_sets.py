from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.observed_sets import names_of
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload
from tests.predictor.learning.agreement import arrays_that_agree

JOBS = [Workload.parse(f"{name}:batch_size={batch},step_time_s=0.03") for name in ("alpha", "beta", "gamma") for batch in (16, 32)]  # fmt: skip
TRIPLE = ColocationSet("v100", (JOBS[0], JOBS[2], JOBS[4]))


def observed(
    predictor: Predictor, asked: ColocationSet, excess: float, times: int = 1
) -> tuple[list[Observation], list[float]]:
    """Observations of all members with `excess` times the predicted one, and their step times."""
    slowdown = 1 + excess * (predictor.predict_arrays([asked]).slowdown[0] - 1)
    steps = [0.03 * s for s in slowdown.tolist()]
    return [Observation(asked, m, step) for m, step in enumerate(steps)] * times, steps


def pairs_as_predicted(predictor: Predictor, times: int = 5) -> list[Observation]:
    pairs = [ColocationSet("v100", pair) for pair in combinations(JOBS, 2)]
    return [o for pair in pairs for o in observed(predictor, pair, 1.0, times)[0]]


@pytest.mark.parametrize("excess", [0.7, 1.3, 3.0])
@pytest.mark.parametrize("with_pairs", [False, True])
@pytest.mark.parametrize("most", [512, 8])
def test_a_set_observed_often_is_answered_as_observed(
    predictor: Predictor, excess: float, with_pairs: bool, most: int
) -> None:
    observations, steps = observed(predictor, TRIPLE, excess, 4)
    posterior = Posterior(predictor, PosteriorConfig(most_rows=most))
    posterior.observe([*observations, *(pairs_as_predicted(predictor) if with_pairs else [])])
    np.testing.assert_allclose(posterior.predict_arrays([TRIPLE]).step_time_s[0], steps, rtol=0.03)
    for member, step in zip(posterior.predict(TRIPLE).members, steps, strict=True):
        assert member.step_time_s.value == pytest.approx(step, rel=0.03)
        assert member.step_time_s.lower < step < member.step_time_s.upper < 1.3 * step


def test_pairs_that_were_observed_keep_their_answers(predictor: Predictor) -> None:
    known = pairs_as_predicted(predictor)
    posterior = Posterior(predictor)
    posterior.observe(known)
    others = [ColocationSet("v100", some) for some in combinations(JOBS, 2)]
    before = posterior.predict_arrays(others).slowdown
    posterior.observe(observed(predictor, TRIPLE, 3.0, 4)[0])
    np.testing.assert_allclose(posterior.predict_arrays(others).slowdown, before, rtol=0.03)


def test_a_single_observation_that_contradicts_all_pairs_is_discounted(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe(pairs_as_predicted(predictor))
    before = posterior.predict_arrays([TRIPLE]).slowdown
    posterior.observe(observed(predictor, TRIPLE, 30.0)[0])
    np.testing.assert_allclose(posterior.predict_arrays([TRIPLE]).slowdown, before, rtol=0.1)


def test_a_pair_is_no_slower_than_an_observed_set_that_contains_it(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe(observed(predictor, TRIPLE, 3.0, 4)[0])
    whole = posterior.predict_arrays([TRIPLE]).slowdown[0]
    for a, b in combinations(range(3), 2):
        pair = ColocationSet("v100", (TRIPLE.workloads[a], TRIPLE.workloads[b]))
        slowdown = posterior.predict_arrays([pair]).slowdown[0]
        assert (slowdown <= whole[[a, b]] * (1 + 1e-9)).all()
        single = [m.slowdown.value for m in posterior.predict(pair).members]
        np.testing.assert_allclose(single, slowdown, rtol=1e-6)


def test_all_methods_agree(predictor: Predictor) -> None:
    rng = np.random.default_rng(2)
    posterior = Posterior(predictor)
    sets = [ColocationSet("v100", some) for k in (2, 3, 4) for some in combinations(JOBS, k)]
    sets.append(ColocationSet("v100", (JOBS[0], JOBS[0], JOBS[1])))
    for asked in sets[::2]:
        posterior.observe(
            observed(predictor, asked, float(rng.lognormal(0, 0.5)), int(rng.integers(1, 5)))[0]
        )
    arrays_that_agree(posterior, sets)


def test_order_and_spelling_do_not_matter(predictor: Predictor) -> None:
    observations, steps = observed(predictor, TRIPLE, 2.0, 4)
    shuffled = replace(TRIPLE, workloads=TRIPLE.workloads[::-1])
    posterior = Posterior(predictor)
    posterior.observe([*observations, *pairs_as_predicted(predictor)])
    np.testing.assert_allclose(posterior.predict_arrays([shuffled]).step_time_s[0], steps[::-1], rtol=0.02)


def test_a_solo_step_time_that_is_stated_later_counts_for_sets_of_three(predictor: Predictor) -> None:
    plain = replace(TRIPLE, workloads=(JOBS[0].without_solo(), *TRIPLE.workloads[1:]))
    solo_s = 2.0 * float(predictor.predict_arrays([plain]).solo_step_time_s[0, 0])
    told = replace(JOBS[0].without_solo(), solo=SoloProfile(step_time_s=solo_s))
    asked = replace(TRIPLE, workloads=(told, *TRIPLE.workloads[1:]))
    slowdown = 1 + 1.5 * (predictor.predict_arrays([asked]).slowdown[0] - 1)
    steps = slowdown * [solo_s, 0.03, 0.03]
    posterior = Posterior(predictor)
    posterior.observe([Observation(plain, m, float(step)) for m, step in enumerate(steps)] * 4)
    np.testing.assert_allclose(posterior.predict_arrays([asked]).step_time_s[0], steps, rtol=0.03)
    values = [member.step_time_s.value for member in posterior.predict(asked).members]
    np.testing.assert_allclose(values, steps, rtol=0.03)


def test_an_implausible_set_bounds_no_pair(predictor: Predictor) -> None:
    """However often it was observed."""
    posterior = Posterior(predictor)
    pairs = pairs_as_predicted(predictor)
    asked = ColocationSet("v100", TRIPLE.workloads[:2])
    posterior.observe(o for o in pairs if o.colocation_set != asked)
    before = posterior.predict_arrays([asked]).slowdown
    posterior.observe(Observation(TRIPLE, m, 0.03 * 1.0001) for m in range(3) for _ in range(16))
    np.testing.assert_allclose(posterior.predict_arrays([asked]).slowdown, before, rtol=0.02)
    np.testing.assert_allclose(posterior.predict_arrays([TRIPLE]).slowdown, 1.0, rtol=0.02)


def test_members_of_different_sets_have_different_names() -> None:
    numbers = np.arange(7)
    members = Members(np.zeros((7, 1)), job=numbers, setting=np.zeros(7, np.int64))
    sets = [
        (own, others) for own in range(7) for size in range(1, 5) for others in combinations(range(7), size)
    ]
    own = np.array([own for own, _ in sets])
    partners = np.array([[*others, *[-1] * (4 - len(others))] for _, others in sets])
    assert len(np.unique(names_of(members, own, partners))) == len(sets)
    assert (names_of(members, own, partners[:, ::-1]) == names_of(members, own, partners)).all()
