from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from predictor.examples.observations import Observation
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.posterior import Posterior
from predictor.learning.summary import corrections_of
from predictor.predictor import Predictor
from predictor.types import PredictionArrays
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload

JOBS = [Workload.parse(f"{name}:batch_size={batch},step_time_s=0.03") for name in ("alpha", "beta", "gamma") for batch in (16, 32)]  # fmt: skip
PAIR = ColocationSet("v100", (JOBS[0], JOBS[2]))


def pairs_of(jobs: Sequence[Workload], device: str = "v100") -> list[ColocationSet]:
    return [ColocationSet(device, (a, b)) for k, a in enumerate(jobs) for b in jobs[k + 1 :]]


def seen(predictor: Predictor, pair: ColocationSet, member: int, factor: float) -> Observation:
    """A step time for which the excess of the slowdown is `factor` times the predicted one."""
    arrays = predictor.predict_arrays([pair])
    slowdown = 1 + (arrays.slowdown[0, member] - 1) * factor
    return Observation(pair, member, float(arrays.solo_step_time_s[0, member] * slowdown))


def test_no_observations_change_nothing(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    assert posterior.predict(PAIR) == predictor.predict(PAIR)
    np.testing.assert_array_equal(
        posterior.predict_arrays([PAIR]).slowdown, predictor.predict_arrays([PAIR]).slowdown
    )


def test_an_observed_set_is_predicted_nearly_as_observed_and_others_follow(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    before = predictor.predict_arrays(pairs_of(JOBS)).slowdown - 1
    posterior.observe([seen(predictor, PAIR, 0, 2.0)] * 4)
    after = posterior.predict_arrays(pairs_of(JOBS)).slowdown - 1
    change = after / before
    row = pairs_of(JOBS).index(PAIR)
    assert 1.6 < change[row, 0] < 2.05
    other = pairs_of(JOBS).index(ColocationSet("v100", (JOBS[1], JOBS[2])))
    assert 1.0 < change[other, 0] < change[row, 0]


def test_sets_in_two_sharing_modes_confirm_each_other(predictor: Predictor) -> None:
    job = JOBS[0].without_solo()
    pairs = [ColocationSet("v100", (job, JOBS[2]), sharing) for sharing in ("time-slice", "mps")]
    posterior = Posterior(predictor)
    steps = predictor.predict_arrays(pairs).step_time_s[:, 0].tolist()
    posterior.observe(Observation(pair, 0, 10 * step) for pair, step in zip(pairs, steps, strict=True))
    alone = ColocationSet("v100", (job,))
    before, after = (p.predict_arrays([alone]).solo_step_time_s[0, 0] for p in (predictor, posterior))
    assert after == pytest.approx(10 * before, rel=0.05)


def test_intervals_shrink_with_observations(predictor: Predictor) -> None:
    """The pair's own interval shrinks, and none of unrelated sets grows."""
    widths, others = [], []
    before = float(predictor.predict_arrays([PAIR]).slowdown[0, 0])
    other = ColocationSet("k80", (JOBS[3], JOBS[4]))
    for times in (0, 1, 2, 8):
        posterior = Posterior(predictor)
        posterior.observe([seen(predictor, PAIR, 0, before)] * times)
        for asked, into in ((PAIR, widths), (other, others)):
            slow = posterior.predict(asked).members[0].slowdown
            into.append(math.log(slow.upper / slow.value))
    assert widths[0] >= widths[1] > widths[2] > widths[3]
    assert all(later <= others[0] * (1 + 1e-9) for later in others)


def test_a_correction_beyond_the_interval_moves_the_interval(predictor: Predictor) -> None:
    before = predictor.predict(PAIR).members[0].slowdown
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, PAIR, 0, 3 * before.upper)] * 2)
    after = posterior.predict(PAIR).members[0].slowdown
    assert after.value > before.upper
    assert 1.0 <= after.lower < after.value < after.upper


def test_a_step_time_observed_in_sets_is_more_certain_than_its_factors(predictor: Predictor) -> None:
    """Whether the job is slower alone or slows down more remains open."""
    pair = ColocationSet("v100", (JOBS[0].without_solo(), JOBS[2]))
    step = float(predictor.predict_arrays([pair]).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(pair, 0, 1.2 * step)] * 4)
    member = posterior.predict(pair).members[0]
    solo, slow, both = (
        math.log(q.upper / q.value) for q in (member.solo_step_time_s, member.slowdown, member.step_time_s)
    )
    assert both < 0.7 * math.hypot(solo, slow)
    assert both < max(solo, slow)
    # No more so for a job whose solo step time was measured.
    known = posterior.predict(PAIR).members[0]
    assert known.step_time_s.upper / known.step_time_s.value == pytest.approx(
        known.slowdown.upper / known.slowdown.value, rel=0.05
    )


def test_an_unmeasured_solo_step_time_is_learned(predictor: Predictor) -> None:
    job = Workload("alpha", 16)
    alone = ColocationSet("v100", (job,))
    posterior = Posterior(predictor)
    before = predictor.predict_arrays([alone]).solo_step_time_s[0, 0]
    posterior.observe([Observation(alone, 0, float(before * 1.5))] * 8)
    after = posterior.predict_arrays([alone]).solo_step_time_s[0, 0]
    assert after == pytest.approx(before * 1.5, rel=0.05)
    # One that was measured is believed.
    measured = ColocationSet("v100", (JOBS[0],))
    assert posterior.predict_arrays([measured]).solo_step_time_s[0, 0] == pytest.approx(0.03)
    narrow = posterior.predict(alone).members[0].solo_step_time_s
    wide = predictor.predict(alone).members[0].solo_step_time_s
    assert narrow.upper / narrow.value < wide.upper / wide.value


@pytest.mark.parametrize("factor", [1 / 3, 0.5, 2.0, 3.0])
def test_repeated_observations_are_approached_without_overshoot(predictor: Predictor, factor: float) -> None:
    """Also if the solo step time was predicted, so that either may be wrong."""
    pair = ColocationSet("v100", (JOBS[0].without_solo(), JOBS[2]))
    before = float(predictor.predict_arrays([pair]).step_time_s[0, 0])
    off = []
    for count in (1, 2, 4, 8, 16):
        posterior = Posterior(predictor)
        posterior.observe([Observation(pair, 0, before * factor)] * count)
        after = float(posterior.predict_arrays([pair]).step_time_s[0, 0])
        off.append(abs(math.log(after / (before * factor))))
    assert off[0] < 0.06
    assert off[-1] < 0.005
    assert all(later <= earlier + 0.003 for earlier, later in pairwise(off))


@pytest.mark.parametrize("stated", [True, False])
def test_absurd_observations_of_one_job_affect_only_that_job(predictor: Predictor, stated: bool) -> None:
    """A thousand step times of one job, hundreds of times too long, among normal ones of other jobs."""
    jobs = JOBS if stated else [job.without_solo() for job in JOBS]
    poisoned, *rest = jobs
    rng = np.random.default_rng(0)
    others = pairs_of(rest)
    good = [seen(predictor, s, m, rng.uniform(0.9, 1.2)) for s in others[::2] for m in (0, 1)]
    sets = [ColocationSet("v100", (poisoned, other)) for other in rest]
    before, after = Posterior(predictor), Posterior(predictor)
    for posterior in (before, after):
        posterior.observe(good)
    after.observe([seen(predictor, sets[k % len(sets)], 0, 300.0) for k in range(1000)])
    a, b = (posterior.predict_arrays(others).step_time_s for posterior in (before, after))
    np.testing.assert_allclose(b, a, rtol=0.02)


@pytest.mark.parametrize("factor", [0.001, 30.0])
def test_an_absurd_observation_does_not_change_the_solo_step_time(
    predictor: Predictor, factor: float
) -> None:
    """And all prediction methods agree."""
    jobs = [Workload.parse(f"{name}:batch_size=16") for name in ("alpha", "beta", "gamma")]
    pair, alone = ColocationSet("v100", (jobs[0], jobs[1])), ColocationSet("v100", (jobs[0],))
    step_s = factor * float(predictor.predict_arrays([pair]).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(pair, 0, step_s)])
    assert posterior.process.own_effects, "it counts as absurd"
    for asked in (pair, alone, ColocationSet("v100", tuple(jobs)), ColocationSet("v100", (jobs[2], jobs[1]))):
        told, arrays = posterior.predict(asked), posterior.predict_arrays([asked])
        for name in ("solo_step_time_s", "slowdown", "step_time_s", "utilization_ratio"):
            values = [getattr(member, name).value for member in told.members]
            np.testing.assert_allclose(values, getattr(arrays, name)[0, : len(values)], rtol=1e-5)
        solo_s = predictor.predict_arrays([asked]).solo_step_time_s
        np.testing.assert_allclose(arrays.solo_step_time_s, solo_s, rtol=0.1)
    assert posterior.predict(alone).members[0].slowdown.value == 1.0
    assert posterior.predict(pair).members[0].step_time_s.value < 1.1 * max(step_s, 1.0)


def test_reasons_name_the_observations(predictor: Predictor) -> None:
    base = Posterior(predictor)
    pairs = [ColocationSet("v100", (JOBS[0], JOBS[2])), ColocationSet("v100", (JOBS[4], JOBS[3]))]
    for pair in pairs:
        other = base.extended([seen(predictor, pair, 0, 2.0)] * 4)
        (reason,) = [text for text in other.predict(pair).reasons if "observations" in text][:1]
        assert f"most of all {pair.workloads[0]} beside {pair.workloads[1]}" in reason


def test_a_stalled_step_among_normal_ones_is_ignored(predictor: Predictor) -> None:
    honest, spoiled = Posterior(predictor), Posterior(predictor)
    told = [seen(predictor, pair, m, 1.2) for pair in pairs_of(JOBS) for m in (0, 1)]
    honest.observe(told)
    spoiled.observe([*told[1:], seen(predictor, pairs_of(JOBS)[0], 0, 200.0)])
    asked = pairs_of(JOBS)
    np.testing.assert_allclose(
        spoiled.predict_arrays(asked).step_time_s, honest.predict_arrays(asked).step_time_s, rtol=0.05
    )


def test_cached_rows_and_sets_give_equal_predictions(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair, 0, 1.7) for pair in pairs_of(JOBS)[:5]])
    asked = [*pairs_of(JOBS), ColocationSet("v100", tuple(JOBS[:3])), ColocationSet("v100", (JOBS[0],))]
    rows = posterior.rows(asked)
    kept, arrays = posterior.predict_rows(rows, "time-slice"), posterior.predict_arrays(asked)
    np.testing.assert_allclose(kept.step_time_s, arrays.step_time_s)
    described = [m.step_time_s.value for p in posterior.predict_many(asked) for m in p.members]
    np.testing.assert_allclose(described, arrays.step_time_s[arrays.mask], rtol=1e-6)


def test_batched_sets_of_several_sizes_equal_single_predictions(predictor: Predictor) -> None:
    posterior, fresh = Posterior(predictor), Posterior(predictor)
    for told in (posterior, fresh):
        told.observe([seen(predictor, PAIR, 0, 2.0)])
    # Of all members, the one that was met last is of the device that has more of them.
    for device, sets in (("k80", (JOBS[:3], JOBS[1:4])), ("v100", (JOBS[:4], JOBS[2:]))):
        posterior.predict_many([ColocationSet(device, tuple(jobs)) for jobs in sets])
    mixed = [ColocationSet("k80", (JOBS[0], JOBS[1], JOBS[3])), ColocationSet("k80", tuple(JOBS[:4]))]
    together, alone = posterior.predict_many(mixed), [fresh.predict(one) for one in mixed]
    for a, b in zip(together, alone, strict=True):
        for one, other in zip(a.members, b.members, strict=True):
            assert one.slowdown.value == pytest.approx(other.slowdown.value, rel=1e-6)
            assert one.slowdown.upper == pytest.approx(other.slowdown.upper, rel=1e-6)


def test_inducing_rows_approximate_all_rows(predictor: Predictor) -> None:
    rng = np.random.default_rng(1)
    told = [seen(predictor, pair, m, float(rng.uniform(0.8, 1.6))) for pair in pairs_of(JOBS) for m in (0, 1)]
    exact, fewer = Posterior(predictor), Posterior(predictor, PosteriorConfig(most_rows=20))
    for posterior in (exact, fewer):
        posterior.observe(told)
    asked = pairs_of(JOBS)
    a, b = exact.predict_arrays(asked).slowdown - 1, fewer.predict_arrays(asked).slowdown - 1
    assert float(np.abs(np.log(a / b)).mean()) < 0.1


def test_reasons_state_the_evidence(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, PAIR, 0, 2.0)] * 3)
    answer = posterior.predict(PAIR)
    (reason,) = [r for r in answer.reasons if "3 observations correct" in r and r.startswith("alpha")]
    # What the predictor itself says comes first; this one says what became of it.
    was, now = predictor.predict(PAIR).members[0].slowdown.value, answer.members[0].slowdown.value
    assert f"alpha: {was:.2f}x slowdown (" in answer.reasons[1]
    assert f"its slowdown from {was:.2f}x to {now:.2f}x and its step time by " in reason
    assert str(JOBS[2]) in reason
    assert "v100" in reason
    basis = posterior.basis(PAIR, 0)
    assert basis.observations == 3
    assert basis.heaviest[0].weight > 0


class Plain:
    """A predictor without graphs: jobs are told apart by name."""

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        size = max(len(s.workloads) for s in sets)
        mask = np.array([[m < len(s.workloads) for m in range(size)] for s in sets])
        shared: NDArray[np.float64] = np.where(mask & (mask.sum(1, keepdims=True) > 1), 1.5, 1.0)
        ones, count = np.ones(mask.shape), len(sets)
        return PredictionArrays(
            mask, ones, shared, shared, ones * 0, ones * 0, np.zeros(count), np.ones(count, bool)
        )


def test_works_with_any_set_predictor() -> None:
    posterior = Posterior(Plain())
    posterior.observe([Observation(PAIR, 0, 2.0)])
    arrays = posterior.predict_arrays([PAIR, ColocationSet("v100", tuple(JOBS[4:]))])
    assert arrays.slowdown[0, 0] > 1.5
    assert arrays.slowdown[1] == pytest.approx([1.5, 1.5], rel=0.1)
    with pytest.raises(InputError):
        posterior.rows([PAIR])


@pytest.mark.parametrize(
    "wrong", [{"most_rows": 0}, {"most_observed": 1.5}, {"repeats": True}, {"learn_solo": "no"}]
)
def test_invalid_configurations_are_rejected(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=rf"posterior\.{name} is out of range"):
        PosteriorConfig(**wrong)


def test_solo_observations_of_stated_step_times_change_nothing(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([Observation(ColocationSet("v100", (JOBS[0],)), 0, 0.09)])
    assert (len(posterior), posterior.revision) == (0, 0)
    assert replace(posterior.predict(PAIR)) == predictor.predict(PAIR)


def test_without_learning_of_solo_steps_they_stay_as_predicted(predictor: Predictor) -> None:
    posterior, job = Posterior(predictor, PosteriorConfig(learn_solo=False)), Workload("alpha", 16)
    posterior.observe([Observation(ColocationSet("v100", (job,)), 0, 0.5)])
    assert (len(posterior), posterior.revision) == (0, 0)
    pair = ColocationSet("v100", (job, JOBS[2]))
    before = predictor.predict_arrays([pair])
    posterior.observe([Observation(pair, 0, 2.0 * float(before.step_time_s[0, 0]))] * 4)
    after = posterior.predict_arrays([pair])
    assert after.solo_step_time_s.tolist() == before.solo_step_time_s.tolist()
    assert after.slowdown[0, 0] > 1.5 * before.slowdown[0, 0]


def test_the_same_observations_over_another_predictor(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    posterior.observe([seen(predictor, pair, 0, 1.7) for pair in pairs_of(JOBS)[:5]])
    again = posterior.over(predictor)
    asked = pairs_of(JOBS)
    assert len(again) == len(posterior)
    np.testing.assert_allclose(again.predict_arrays(asked).slowdown, posterior.predict_arrays(asked).slowdown)


def test_unpredictable_observations_are_left_out(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    unknown = Observation(ColocationSet("abacus", (JOBS[0], JOBS[2])), 0, 0.1)
    assert posterior.take([seen(predictor, PAIR, 0, 2.0), unknown]) == 1
    assert len(posterior) == 1


@pytest.mark.parametrize(
    ("plain", "full"),
    [
        ("resnet18-cifar", "resnet18-cifar:batch_size=128,optimizer=momentum"),
        ("lstm-wikitext2:step_time_s=0.1", "LSTM:batch_size=20,step_time_s=0.1"),
        ("graph:" + "0" * 64, "graph:" + "0" * 64 + ":batch_size=8"),
    ],
)
def test_two_spellings_of_a_job_are_observed_as_one(plain: str, full: str) -> None:
    spellings, other = tuple(map(Workload.parse, (plain, full))), Workload("other")
    predictor = Plain()
    at_once, in_turn = Posterior(predictor), Posterior(predictor)
    observations = [
        Observation(ColocationSet("v100", (w, other)), member, step)
        for step in (0.11, 0.3, 0.13)
        for w in spellings
        for member in (0, 1)
    ]
    at_once.observe(observations)
    for observation in observations:
        in_turn = in_turn.extended([observation])
    for posterior in (at_once, in_turn):
        assert [(row["count"], row["step_time_s"]) for row in corrections_of(posterior)] == [
            (6, pytest.approx(0.13))
        ] * 2
        sets = [ColocationSet("v100", (w, other)) for w in spellings]
        arrays = posterior.predict_arrays(sets)
        np.testing.assert_allclose(arrays.step_time_s[0], arrays.step_time_s[1])
        assert len(posterior.over(predictor)) == len(posterior) == 12


def test_all_sets_of_a_job_count_for_its_solo_step_time(predictor: Predictor) -> None:
    jobs = [job.without_solo() for job in JOBS]
    posterior = Posterior(predictor)
    for partner in (jobs[2], jobs[5]):
        posterior.observe([seen(predictor, ColocationSet("v100", (jobs[0], partner)), 0, 3.0)])
    basis = posterior.basis(ColocationSet("v100", (jobs[0],)), 0)
    assert basis.observations == 2
    other = posterior.basis(ColocationSet("v100", (jobs[0], jobs[4])), 0)
    assert {influence.partners for influence in other.heaviest} == {(str(jobs[2]),), (str(jobs[5]),)}
    (reason,) = [r for r in posterior.predict(ColocationSet("v100", (jobs[0],))).reasons if "correct" in r]
    assert "2 observations correct its step time" in reason
