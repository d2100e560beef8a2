"""A posterior does not depend on how its observations arrived: in what order, in which copy, by which thread."""

from __future__ import annotations

import numpy as np

from predictor.examples.observations import Observation
from predictor.gaussian_process.pair_table import PairBlocks
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.observed import set_of
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.learning.test_posterior import JOBS, PAIR, pairs_of, seen


def test_order_and_batching_of_observations_do_not_matter(predictor: Predictor) -> None:
    rng = np.random.default_rng(0)
    told = [seen(predictor, pair, m, float(rng.uniform(0.5, 2))) for pair in pairs_of(JOBS) for m in (0, 1)]
    first, second = Posterior(predictor), Posterior(predictor)
    first.observe(told)
    for k in rng.permutation(len(told)):
        second.observe([told[k]])
        second.predict_arrays([PAIR])
    third = Posterior(predictor).extended(told[:7]).extended(told[7:])
    asked = pairs_of(JOBS)
    for other in (second, third):
        np.testing.assert_allclose(
            first.predict_arrays(asked).slowdown, other.predict_arrays(asked).slowdown, rtol=1e-6
        )


def test_extended_leaves_the_original_unchanged(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    other = posterior.extended([seen(predictor, PAIR, 0, 3.0)])
    assert (len(posterior), len(other)) == (0, 1)
    assert posterior.predict_arrays([PAIR]).slowdown[0, 0] < other.predict_arrays([PAIR]).slowdown[0, 0]


def test_a_copy_goes_its_own_way_though_it_had_nothing_to_add(predictor: Predictor) -> None:
    first, both = JOBS[0], [seen(predictor, PAIR, m, 2.0) for m in (0, 1)]
    three = ColocationSet("v100", (first, JOBS[2], JOBS[4]))
    posterior, expected = Posterior(predictor), Posterior(predictor)
    posterior.observe(both)
    expected.observe(both)
    _ = posterior.state
    copy = posterior.extended([Observation(ColocationSet("v100", (first,)), 0, 0.05)])
    posterior.observe([seen(predictor, pair, 0, 5.0) for pair in pairs_of(JOBS)])
    posterior.predict(three)
    assert copy.predict(three).members == expected.predict(three).members


def test_the_first_answers_as_before_when_a_copy_is_told_of_jobs_alone(predictor: Predictor) -> None:
    """Of which the first had observed many sets; its rows are not overwritten."""
    jobs = [Workload.parse(f"{name}:batch_size={size}") for name in ("alpha", "beta") for size in range(1, 9)]
    rng = np.random.default_rng(2)
    told = [seen(predictor, p, m, float(rng.uniform(0.5, 2))) for p in pairs_of(jobs) for m in (0, 1)]
    posterior, other = (Posterior(predictor, PosteriorConfig(most_rows=8)) for _ in range(2))
    for each in (posterior, other):
        each.observe(told)
        each.predict_arrays([PAIR])
    inducing = {posterior.observed.keys[row] for row in posterior.process.used}
    alone = next(w for w in jobs if all(w not in (own, *others) for _, _, own, others in inducing))
    posterior.extended([Observation(ColocationSet("v100", (alone,)), 0, 0.05)])
    asked = pairs_of(jobs)
    ends = (
        [
            (m.step_time_s.lower, m.step_time_s.value, m.step_time_s.upper)
            for p in predictions
            for m in p.members
        ]
        for predictions in (posterior.predict_many(asked), other.predict_many(asked))
    )
    # Their sums may differ in the last bit, and what is kept of pairs is rounded to single precision.
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_a_job_alone_may_displace_a_set_from_the_sample(predictor: Predictor) -> None:
    jobs = [Workload.parse(f"{name}:batch_size={size}") for name in ("alpha", "beta") for size in range(1, 9)]
    told = [seen(predictor, pair, 0, 1.5) for pair in pairs_of(jobs)]
    config = PosteriorConfig(most_rows=4, most_observed=30)
    posterior = Posterior(predictor, config)
    posterior.observe(told)
    for job in jobs:
        alone = ColocationSet("v100", (job,))
        step = float(predictor.predict_arrays([alone]).step_time_s[0, 0])
        told.append(Observation(alone, 0, 1.2 * step))
        posterior = posterior.extended(told[-1:])
    at_once = Posterior(predictor, config)
    at_once.observe(told)
    asked = pairs_of(jobs)
    np.testing.assert_allclose(
        posterior.predict_arrays(asked).step_time_s, at_once.predict_arrays(asked).step_time_s, rtol=1e-6
    )


def test_a_set_may_enter_the_sample_by_being_observed_often(predictor: Predictor) -> None:
    """What was observed of its jobs alone, while it was not in the sample, counts for it, too."""
    jobs = [Workload.parse(f"{name}:batch_size={size}") for name in ("alpha", "beta") for size in range(1, 9)]
    alone = [Observation(ColocationSet("v100", (job,)), 0, 0.07) for job in jobs]
    told = [*alone, *(seen(predictor, pair, 0, 1.5) for pair in pairs_of(jobs))]
    config = PosteriorConfig(most_rows=32, most_observed=60)
    posterior = Posterior(predictor, config).extended(told)
    left = np.setdiff1d(np.arange(len(posterior.observed)), posterior.state.kept)
    often = [Observation(set_of(posterior.observed.keys[row]), 0, 0.5) for row in left[:8]]
    at_once = Posterior(predictor, config)
    at_once.observe([*told, *often * 5])
    posterior = posterior.extended(often * 5)
    asked = pairs_of(jobs)
    answers = [each.predict_arrays(asked).step_time_s for each in (posterior, at_once)]
    np.testing.assert_allclose(*answers, rtol=1e-6)
    step_s = posterior.predict_arrays([one.colocation_set for one in often]).step_time_s[:, 0]
    np.testing.assert_allclose(step_s, 0.5, rtol=0.03)


def test_a_thread_that_knows_fewer_jobs_than_another_is_answered(predictor: Predictor) -> None:
    """It read the members before the other one added some."""
    posterior = Posterior(predictor)
    job = JOBS[0].without_solo()
    posterior.observe([seen(predictor, ColocationSet("v100", (job, JOBS[2])), 0, 2.0)])
    blocks, few = PairBlocks(posterior.process), posterior.members
    more = ColocationSet("v100", tuple(Workload.parse(f"beta:batch_size={size}") for size in (3, 5)))
    posterior.predict_arrays([more])
    count = len(posterior.members)
    assert count > len(few)
    blocks.of_sets(posterior.members, np.array([[count - 2, count - 1]]))
    expected = posterior.process.table(few, few)[[[0, 1]], [[1, 0]]]
    np.testing.assert_allclose(blocks.of_sets(few, np.array([[0, 1]])), expected)


def test_errors_of_solo_step_times_are_computed_anew_only_if_a_job_that_counts_is_observed(
    predictor: Predictor,
) -> None:
    jobs = [Workload.parse(f"{name}:batch_size={size}") for name in ("alpha", "beta") for size in range(1, 9)]
    pairs = [ColocationSet("v100", pair) for pair in zip(jobs[::2], jobs[1::2], strict=True)]
    told = [seen(predictor, pair, m, 1.5) for pair in pairs for m in (0, 1)]
    config = PosteriorConfig(most_rows=4)
    posterior, at_once = Posterior(predictor, config), Posterior(predictor, config)
    posterior.observe(told[:8])
    kept = []
    for observation in told[8:]:
        before = posterior.state.solo
        posterior = posterior.extended([observation])
        kept.append(posterior.state.solo is before)
    assert any(kept)
    assert not all(kept)
    at_once.observe(told)
    asked = pairs_of(jobs)
    np.testing.assert_allclose(
        posterior.predict_arrays(asked).step_time_s, at_once.predict_arrays(asked).step_time_s, rtol=1e-9
    )
