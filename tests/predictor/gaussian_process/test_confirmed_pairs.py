"""A pair that was often observed to be far from predicted: believed about itself, and about nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.gaussian_process.confirmed_pairs import ConfirmedPairs
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.job_keys import keys_of
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.gaussian_process.test_process import MEMBERS, rows_of

FIRST, SECOND, *OTHERS = (
    Workload.parse(spec)
    for spec in (
        "alpha:batch_size=16,step_time_s=0.02",
        "beta:batch_size=16,step_time_s=0.03",
        "gamma:batch_size=16,step_time_s=0.03",
        "delta:batch_size=16,step_time_s=0.04",
    )
)
PAIR = ColocationSet("v100", (FIRST, SECOND))
ELSEWHERE = [ColocationSet("v100", (FIRST, other)) for other in OTHERS]


def told(
    predictor: Predictor, times: int, far: float, pair: ColocationSet = PAIR, most_rows: int = 512
) -> Posterior:
    """Other pairs run as predicted, and the pair's first job `far` times as long, `times` observed."""
    posterior = Posterior(predictor, PosteriorConfig(most_rows=most_rows))
    observations = [Observation(s, 0, step_s(predictor, s)) for s in ELSEWHERE]
    observations += [Observation(pair, 0, far * step_s(predictor, pair))] * times
    posterior.observe(observations)
    return posterior


def step_s(predictor: Predictor | Posterior, colocation_set: ColocationSet, member: int = 0) -> float:
    return predictor.predict(colocation_set).members[member].step_time_s.value


@pytest.mark.parametrize("most_rows", [512, 2])
@pytest.mark.parametrize("far", [6.0, 20.0])
def test_what_was_observed_often_of_a_pair_is_answered_about_it(
    predictor: Predictor, far: float, most_rows: int
) -> None:
    posterior = told(predictor, 8, far, most_rows=most_rows)
    step = posterior.predict(PAIR).members[0].step_time_s
    observed = far * step_s(predictor, PAIR)
    assert step.value == pytest.approx(observed, rel=0.02)
    assert step.lower > 0.8 * observed
    assert step.upper < 1.25 * observed
    assert posterior.predict_arrays([PAIR]).step_time_s[0, 0] == pytest.approx(step.value, rel=1e-5)


@pytest.mark.parametrize("most_rows", [512, 2])
def test_a_set_of_pairs_that_were_observed_often_is_as_certain(predictor: Predictor, most_rows: int) -> None:
    other = ColocationSet("v100", (FIRST, OTHERS[1]))
    together = ColocationSet("v100", (FIRST, SECOND, OTHERS[1]))
    posterior = told(predictor, 8, 20.0, most_rows=most_rows)
    posterior = posterior.extended([Observation(other, 0, 20.0 * step_s(predictor, other))] * 8)
    assert len(posterior.process.confirmed) == 2
    slowdown = posterior.predict(together).members[0].slowdown
    assert slowdown.upper / slowdown.value < 1.25


def test_a_single_observation_far_off_is_not_believed(predictor: Predictor) -> None:
    assert step_s(told(predictor, 1, 20.0), PAIR) == pytest.approx(step_s(predictor, PAIR), rel=0.05)


@pytest.mark.parametrize("far", [6.0, 20.0])
def test_it_says_nothing_about_other_pairs(predictor: Predictor, far: float) -> None:
    posterior, plain = told(predictor, 50, far), told(predictor, 0, far)
    swapped = ColocationSet("v100", (SECOND, OTHERS[0]))
    for one in (*ELSEWHERE, swapped, replace(PAIR, device="p100")):
        assert step_s(posterior, one) == pytest.approx(step_s(plain, one), rel=0.02)
    assert step_s(posterior, PAIR, 1) == pytest.approx(step_s(plain, PAIR, 1), rel=0.02)


def test_of_a_job_whose_solo_step_time_is_predicted_the_step_is_as_observed(predictor: Predictor) -> None:
    unknown = replace(FIRST, solo=replace(FIRST.solo, step_time_s=None))
    pair = ColocationSet("v100", (unknown, SECOND))
    elsewhere = [ColocationSet("v100", (unknown, other)) for other in OTHERS]
    posterior = Posterior(predictor)
    observed = 15.0 * step_s(predictor, pair)
    posterior.observe([Observation(s, 0, step_s(predictor, s)) for s in elsewhere] * 3)
    posterior.observe([Observation(pair, 0, observed)] * 8)
    step = posterior.predict(pair).members[0].step_time_s
    assert step.value == pytest.approx(observed, rel=0.1)
    assert step.upper / step.lower < 2.0


def test_the_order_of_observations_does_not_matter(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    for observation in (
        *[Observation(PAIR, 0, 9.0 * step_s(predictor, PAIR))] * 4,
        *(Observation(s, 0, step_s(predictor, s)) for s in ELSEWHERE),
    ):
        posterior = posterior.extended([observation])
    assert step_s(posterior, PAIR) == pytest.approx(step_s(told(predictor, 4, 9.0), PAIR), rel=1e-6)


def stating(step_time_s: float | None) -> ColocationSet:
    """The pair with another solo step time of its first job, or none."""
    first = replace(FIRST, solo=replace(FIRST.solo, step_time_s=step_time_s))
    return replace(PAIR, workloads=(first, SECOND))


def told_times(predictor: Predictor, times: dict[float, tuple[int, float]]) -> list[Observation]:
    """By the pair's stated solo step time: how often it was observed, and how many times as long as predicted."""
    return [
        Observation(stating(solo_s), 0, far * step_s(predictor, stating(solo_s)))
        for solo_s, (count, far) in times.items()
        for _ in range(count)
    ]


def test_one_pair_whatever_solo_step_times_were_stated(predictor: Predictor) -> None:
    """What was observed most often of it is believed, in any order."""
    observed = told_times(predictor, {0.02: (3, 20.0), 0.024: (16, 1.0)})
    for observations in (observed, observed[::-1]):
        posterior = told(predictor, 0, 1.0).extended(observations)
        for asked in (PAIR, stating(0.024)):
            assert step_s(posterior, asked) == pytest.approx(step_s(predictor, asked), rel=0.02)


def test_two_far_spellings_of_a_pair_give_one_answer_in_any_order(predictor: Predictor) -> None:
    observed = told_times(predictor, {0.02: (4, 6.0), 0.024: (5, 20.0)})
    one, other = (told(predictor, 0, 1.0).extended(some) for some in (observed, observed[::-1]))
    assert len(one.process.confirmed) == 1
    for asked in (PAIR, stating(0.024)):
        assert step_s(one, asked) == pytest.approx(step_s(other, asked), rel=1e-6)
    assert step_s(one, stating(0.024)) == pytest.approx(20.0 * step_s(predictor, stating(0.024)), rel=0.02)


def test_observations_that_state_different_solo_step_times_are_counted_together(predictor: Predictor) -> None:
    observed = told_times(predictor, {0.02 + k * 1e-5: (1, 20.0) for k in range(4)})
    posterior = told(predictor, 0, 1.0).extended(observed)
    assert step_s(posterior, PAIR) == pytest.approx(20.0 * step_s(predictor, PAIR), rel=0.02)


def test_a_slowdown_by_a_stated_solo_step_time_does_not_vouch_for_a_predicted_one(
    predictor: Predictor,
) -> None:
    unknown = stating(None).workloads[0]
    elsewhere = [ColocationSet("v100", (unknown, other)) for other in OTHERS]
    seen = [Observation(s, 0, 1.1 * step_s(predictor, s)) for s in elsewhere]
    step, slow, solo = (
        math.log(quantity.upper / quantity.value)
        for member in [told(predictor, 8, 10.0).extended(seen).predict(stating(None)).members[0]]
        for quantity in (member.step_time_s, member.slowdown, member.solo_step_time_s)
    )
    assert slow < 0.1
    assert step > 0.5 * solo


@pytest.mark.parametrize("most_rows", [512, 2])
def test_the_pair_is_named_as_what_its_answer_stands_on(predictor: Predictor, most_rows: int) -> None:
    posterior = told(predictor, 8, 6.0, most_rows=most_rows)
    basis = posterior.basis(PAIR, 0)
    assert basis.observations >= 8
    assert basis.heaviest[0].partners == (str(SECOND),)
    assert basis.heaviest[0].weight > 0.9
    assert any("observations correct its slowdown" in reason for reason in posterior.predict(PAIR).reasons)


def test_pairs_are_found_by_their_jobs() -> None:
    rows = rows_of([(2, 1), (0, 3), (6, 7), (2, 5), (0, 1, 2)])
    count, noise = len(rows), np.array([1.0, 1.0, 1.0, 0.1, 1.0])
    evidence = Evidence(
        MEMBERS, rows, np.arange(count) + 1.0, np.full(count, 0.1), np.arange(count),
        count=np.array([3.0, 2.0, 16.0, 16.0, 16.0]), steep=2.0,
    )  # fmt: skip
    pairs = ConfirmedPairs.of(evidence, noise, lambda row: np.zeros(len(row)))
    # Twice is not often, the fourth was not discounted, the last is not a pair.
    assert sorted(pairs.row.tolist()) == [0, 2]
    own, partner = np.array([2, 6, 2, 0, 1, 2]), np.array([1, 7, 5, 3, 2, -1])
    place = pairs.places(MEMBERS, own, partner)
    assert (place >= 0).tolist() == [True, True, False, False, False, False]
    assert pairs.owner[place[:2]].tolist() == keys_of(MEMBERS, own[:2]).tolist()
    np.testing.assert_allclose(pairs.effect[place[:2]], [0.9 * 1.0, 0.9 * 3.0])
    table = np.zeros((len(MEMBERS), len(MEMBERS)))
    pairs.added_to(table, MEMBERS, MEMBERS)
    assert [tuple(cell) for cell in np.argwhere(table)] == [(2, 1), (6, 7)]
    assert math.isclose(table[6, 7], 2.7)
