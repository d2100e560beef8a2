from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.examples.observations import Observation
from predictor.learning.answers import parts
from predictor.learning.answers.parts import PartSlowdowns, slowest_part
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

JOBS = [Workload.parse(f"{name}:batch_size=32,step_time_s=0.03") for name in ("alpha", "beta", "gamma", "delta")]  # fmt: skip


@pytest.fixture
def posterior(predictor: Predictor) -> Posterior:
    """One pair was observed to be three times as slow as predicted, another as predicted."""
    told = []
    for pair, factor in ((JOBS[:2], 3.0), ((JOBS[0], JOBS[2]), 1.0)):
        colocation_set = ColocationSet("v100", tuple(pair))
        step_s = float(predictor.predict_arrays([colocation_set]).step_time_s[0, 0])
        told.append(Observation(colocation_set, 0, step_s * factor))
    posterior = Posterior(predictor)
    posterior.observe(told)
    return posterior


def test_after_observations_no_job_is_faster_than_beside_one_neighbour(posterior: Posterior) -> None:
    for size in (3, 4):
        sets = [ColocationSet("v100", members) for members in combinations(JOBS, size)]
        wholes = posterior.predict_arrays(sets).slowdown
        for members, whole in zip(combinations(JOBS, size), wholes, strict=True):
            for pair in combinations(range(size), 2):
                fewer = ColocationSet("v100", tuple(members[k] for k in pair))
                less = posterior.predict_arrays([fewer]).slowdown[0]
                assert (whole[list(pair)] >= less * (1 - 1e-6)).all()


def test_all_prediction_methods_agree(posterior: Posterior) -> None:
    sets = [
        ColocationSet("v100", tuple(JOBS[:3])),
        ColocationSet("v100", tuple(JOBS[:2])),
        ColocationSet("v100", tuple(JOBS)),
    ]
    arrays = posterior.predict_arrays(sets)
    rows = posterior.predict_rows(posterior.rows(sets), "time-slice")
    np.testing.assert_allclose(rows.slowdown, arrays.slowdown, rtol=1e-5)
    for k, prediction in enumerate(posterior.predict_many(sets)):
        for m, member in enumerate(prediction.members):
            for name in ("slowdown", "step_time_s", "utilization_ratio"):
                assert getattr(member, name).value == pytest.approx(getattr(arrays, name)[k, m], rel=1e-4)
            slow = member.slowdown
            assert slow.lower <= slow.value <= slow.upper
            assert member.throughput_ratio.value == pytest.approx(1 / slow.value)


@pytest.mark.parametrize("factor", [0.8, 2.0])
def test_a_third_job_that_does_next_to_nothing_does_not_dilute_what_was_observed(
    predictor: Predictor, factor: float
) -> None:
    pair = tuple(
        Workload.parse(f"{name}:step_time_s=0.03,utilization_ratio=0.8") for name in ("alpha", "beta")
    )
    idle = Workload.parse("gamma:step_time_s=0.03,utilization_ratio=0.005")
    sets = [ColocationSet("v100", pair), ColocationSet("v100", (*pair, idle))]
    step_s = float(predictor.predict_arrays(sets).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(sets[0], 0, step_s * factor)] * 4)
    beside_one, beside_two = posterior.predict_arrays(sets).slowdown[:, 0]
    assert beside_two == pytest.approx(beside_one, rel=0.02)
    assert posterior.predict(sets[1]).members[0].slowdown.value == pytest.approx(beside_two, rel=1e-4)


def test_pairs_are_cached_and_reset(posterior: Posterior, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = ("time-slice", "mps", "time-slice")
    sets = [ColocationSet("v100", tuple(JOBS[k:]), mode) for k, mode in enumerate(modes)]
    # If MPS was never observed, the same jobs time-sliced are predicted, too.
    posterior = posterior.extended([Observation(ColocationSet("v100", tuple(JOBS[:2]), "mps"), 0, 0.05)])
    first = posterior.predict_many(sets)
    # Known pairs are not predicted again.
    monkeypatch.setattr(posterior.predictor, "predict_arrays", None)
    assert posterior.predict_many(sets) == first
    monkeypatch.undo()
    monkeypatch.setattr(parts, "_KEPT", 4)
    forgetful = posterior.over(posterior.predictor)
    for one, alone in zip(sets, first, strict=True):
        again = forgetful.predict_many([one])[0]
        assert [m.slowdown.value for m in again.members] == pytest.approx(
            [m.slowdown.value for m in alone.members]
        )


def test_a_fourth_job_makes_no_other_faster(predictor: Predictor) -> None:
    """The third is beside the first what it was observed to be; the fourth, beside the first, next to nothing."""
    told, posterior = [], Posterior(predictor)
    for other, factor in ((1, 3.0), (2, 3.0), (3, 0.05)):
        pair = ColocationSet("v100", (JOBS[0], JOBS[other]))
        arrays = predictor.predict_arrays([pair])
        slowdown = 1 + factor * (arrays.slowdown[0, 0] - 1)
        told += [Observation(pair, 0, float(arrays.solo_step_time_s[0, 0] * slowdown))] * 4
    posterior.observe(told)
    three, four = (ColocationSet("v100", tuple(JOBS[:size])) for size in (3, 4))
    less, more = (posterior.predict_arrays([each]).slowdown[0, 0] for each in (three, four))
    assert more >= less * (1 - 1e-6)
    rows = posterior.predict_rows(posterior.rows([four]), "time-slice")
    for value in (rows.slowdown[0, 0], posterior.predict(four).members[0].slowdown.value):
        assert value == pytest.approx(more, rel=1e-5)


def corrected(slowdown: Floats, numbers: Integers) -> Floats:
    """Another correction for each member."""
    return np.where(numbers >= 0, slowdown + 0.1 * numbers, 1.0)


def test_a_member_is_at_least_as_slow_as_beside_any_one_neighbour() -> None:
    """Of four sets, the second is a pair and the third runs on slices of its own."""
    draw = np.random.default_rng(3)
    numbers = np.array([[4, 0, 2], [1, 3, -1], [2, 0, 1], [3, 1, 4]])
    mig = np.array([False, False, True, False])
    whole, beside = draw.uniform(1.0, 3.0, (4, 3)), draw.uniform(1.0, 3.0, (4, 3, 3))

    def slowdown_of(chosen: Integers, places: Integers) -> Floats:
        first, second = places.T
        return np.stack([beside[chosen, first, second], beside[chosen, second, first]], 1)

    expected = corrected(whole, numbers)
    for s, m, k in [(s, m, k) for s in (0, 3) for m in range(3) for k in range(3) if m != k]:
        expected[s, m] = max(expected[s, m], beside[s, m, k] + 0.1 * numbers[s, m])
    assert (expected > corrected(whole, numbers)).any()
    np.testing.assert_allclose(slowest_part(whole, numbers, slowdown_of, corrected, mig[:, None]), expected)
    some = [0, 1, 3]
    np.testing.assert_allclose(
        slowest_part(whole[some], numbers[some], lambda c, p: slowdown_of(np.array(some)[c], p), corrected, mig[some][:, None]),
        expected[some],
    )  # fmt: skip


class Asked:
    """A predictor with one answer that remembers the sets it was asked for."""

    def __init__(self) -> None:
        self.sets: list[ColocationSet] = []

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> SimpleNamespace:
        self.sets += sets
        return SimpleNamespace(slowdown=np.tile([1.5, 2.5], (len(sets), 1)))


def test_only_pairs_of_larger_sets_without_slices_are_asked_for() -> None:
    asked, three = Asked(), tuple(JOBS[:3])
    pairs = PartSlowdowns(asked, corrected)
    sets = [
        ColocationSet("v100", three),
        ColocationSet("a100", three, "mig"),
        ColocationSet("v100", three[:2]),
    ]
    slowest = pairs.slowest(sets, [(0, 1, 2), (3, 4, 5), (6, 7)])
    # The second of a pair is slower; the third member is the second of both of its pairs.
    assert slowest == pytest.approx([1.5, 2.6, 2.7, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert asked.sets == [ColocationSet("v100", pair) for pair in combinations(three, 2)]


def test_pairs_are_asked_for_once_until_the_cache_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_KEPT", 12)
    asked, one = Asked(), [ColocationSet("v100", tuple(JOBS[:3]))]
    pairs = PartSlowdowns(asked, corrected)
    for numbers, new in (((0, 1, 2), 3), ((2, 1, 0), 0), ((0, 1, 3), 2), ((4, 5, 6), 3), ((0, 1, 2), 3)):
        before = len(asked.sets)
        pairs.slowest(one, [numbers])
        assert len(asked.sets) - before == new, numbers


def test_a_cache_that_another_thread_replaces_answers_all_the_same() -> None:
    class Replaced(PartSlowdowns):
        _known = property(lambda _: {}, lambda _, _known: None)  # type: ignore[assignment]

    predictor = SimpleNamespace(
        predict_arrays=lambda sets: SimpleNamespace(slowdown=np.full((len(sets), 2), 1.5))
    )
    pairs = Replaced(predictor, lambda slowdown, _numbers: slowdown)
    assert pairs.slowest([ColocationSet("v100", tuple(JOBS[:3]))], [[0, 1, 2]]) == [1.5] * 3
