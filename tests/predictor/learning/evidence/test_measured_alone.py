from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from threading import Thread
from typing import Any

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.measured_alone import MeasuredAlone
from predictor.learning.posterior import Posterior
from predictor.learning.summary import alone_of, corrections_of
from predictor.predictor import Predictor
from profiling.devices import get_device
from profiling.workload import STEP_TIMES_S, ColocationSet, SoloProfile, Workload

SLOW, OTHER, THIRD = (Workload(name, 16) for name in ("alpha", "beta", "gamma"))
ALONE, PAIR = ColocationSet("v100", (SLOW,)), ColocationSet("v100", (SLOW, OTHER))


def told(predictor: Predictor, factor: float, count: int = 1, sharing: str = "time-slice") -> Posterior:
    """`SLOW` alone takes this many times as long as predicted."""
    alone = ColocationSet("v100", (SLOW,), sharing)
    step_s = factor * float(predictor.predict_arrays([alone]).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(alone, 0, step_s)] * count)
    return posterior


def stated(predictor: Predictor, step_time_s: float) -> Workload:
    return replace(SLOW, solo=SoloProfile(step_time_s=step_time_s))


@pytest.mark.parametrize("factor", [0.02, 0.7, 2.0, 12.0, 50.0])
@pytest.mark.parametrize("count", [1, 16])
def test_a_solo_step_time_that_was_observed_is_used(predictor: Predictor, factor: float, count: int) -> None:
    posterior = told(predictor, factor, count)
    before, after = (p.predict_arrays([ALONE, PAIR]) for p in (predictor, posterior))
    step_s = factor * before.solo_step_time_s[0, 0]
    np.testing.assert_allclose(after.solo_step_time_s[:, 0], step_s, rtol=0.006)
    job = stated(predictor, step_s)
    expected = predictor.predict_arrays([ColocationSet("v100", (job,)), ColocationSet("v100", (job, OTHER))])
    # The other job is like the observed one, and moves with it if it is believed to say something of others.
    busy = expected.utilization_ratio * expected.solo_step_time_s / after.solo_step_time_s
    np.testing.assert_allclose(after.utilization_ratio, busy, rtol=0.05)
    np.testing.assert_allclose(after.slowdown, expected.slowdown, rtol=0.02)
    solo = posterior.predict(ALONE).members[0].solo_step_time_s
    assert solo.value == pytest.approx(step_s, rel=0.006)
    assert solo.lower < step_s < solo.upper < 1.1 * solo.value


def test_a_job_that_waits_for_its_input_leaves_the_device_to_its_neighbour(predictor: Predictor) -> None:
    beside = predictor.predict_arrays([PAIR]).slowdown[0, 1]
    assert told(predictor, 20.0).predict_arrays([PAIR]).slowdown[0, 1] < beside


def test_all_prediction_methods_agree(predictor: Predictor) -> None:
    posterior = told(predictor, 5.0)
    sets = [PAIR, ColocationSet("v100", (OTHER, THIRD, SLOW)), ColocationSet("v100", (OTHER, THIRD))]
    rows = posterior.rows(sets)
    for _ in range(2):  # the second time all rows are known
        arrays, of_rows = posterior.predict_arrays(sets), posterior.predict_rows(rows, "time-slice")
        np.testing.assert_allclose(of_rows.step_time_s, arrays.step_time_s)
    for k, prediction in enumerate(posterior.predict_many(sets)):
        assert [m.job for m in prediction.members] == [str(w) for w in sets[k].workloads]
        steps = [m.step_time_s.value for m in prediction.members]
        np.testing.assert_allclose(steps, arrays.step_time_s[k, : len(steps)], rtol=1e-5)
        replaced = [
            r
            for r in prediction.reasons
            if "step time (observed once) alone on v100 replaced the prediction" in r
        ]
        assert len(replaced) == (SLOW in sets[k].workloads)


def test_a_step_time_in_the_spec_takes_precedence(predictor: Predictor) -> None:
    posterior, job = told(predictor, 5.0), stated(predictor, 0.123)
    assert posterior.predict_arrays([ColocationSet("v100", (job,))]).solo_step_time_s[0, 0] == 0.123
    assert "replaced" not in " ".join(posterior.predict(ColocationSet("v100", (job, OTHER))).reasons)


def test_slices_are_not_mistaken_for_the_whole_gpu(predictor: Predictor) -> None:
    alone = ColocationSet("a100", (SLOW,), "mps")
    measured = MeasuredAlone().observed([Observation(alone, 0, 0.1)])
    assert measured.about("a100", "mps", SLOW) == measured.about("a100", "time-slice", SLOW) is not None
    assert measured.about("a100:mig=7g", "mig", SLOW) is None is measured.about("p100", "mps", SLOW)
    in_a_slice = MeasuredAlone().observed([Observation(replace(alone, sharing="mig"), 0, 0.1)])
    assert in_a_slice.about("a100", "mig", SLOW) is not None
    assert in_a_slice.about("a100", "time-slice", SLOW) is None


def test_a_job_alone_on_a_card_to_be_partitioned_runs_as_observed_on_the_card(predictor: Predictor) -> None:
    posterior, sets = Posterior(predictor), [ColocationSet("a100", (SLOW,), mode) for mode in ("mps", "mig")]
    for step_s in (0.1, 0.2):  # what was told of both is forgotten
        posterior.observe([Observation(sets[0], 0, step_s)])
        one, other = posterior.predict_arrays(sets).step_time_s[:, 0]
        assert one == other
        assert [m.step_time_s for m in posterior.predict(sets[1]).members] == [
            m.step_time_s for m in posterior.predict(sets[0]).members
        ]
    job = posterior.told("a100", "mig", SLOW)
    pairs = [ColocationSet("a100", (own, OTHER), "mig") for own in (SLOW, job)]
    found, stated_there = posterior.predict_arrays(pairs).step_time_s
    np.testing.assert_array_equal(found, stated_there)
    posterior.observe([Observation(sets[1], 0, 0.4)])  # on some slice, which is nearer
    one, other = posterior.predict_arrays(sets).step_time_s[:, 0]
    assert one < 0.2 < other


@pytest.mark.parametrize(("seen", "asked"), [("mig", "time-slice"), ("time-slice", "mig"), ("mig", "mps")])
def test_alone_on_a_named_slice_all_modes_are_the_same(predictor: Predictor, seen: str, asked: str) -> None:
    posterior = Posterior(predictor)
    observed = ColocationSet("a100:mig=3g", (SLOW,), seen)
    step_s = 2.0 * float(predictor.predict_arrays([observed]).step_time_s[0, 0])
    posterior.observe([Observation(observed, 0, step_s, utilization_ratio=0.3)])
    one, other = (posterior.predict(replace(observed, sharing=mode)).members[0] for mode in (seen, asked))
    assert one == other
    assert other.utilization_ratio.value == pytest.approx(0.3)
    half = replace(SLOW, sm_share_ratio=0.5)  # takes no less time in any mode
    on_half = [ColocationSet("a100:mig=3g", (half,), mode) for mode in (seen, asked)]
    assert posterior.predict_arrays(on_half).step_time_s.min() >= one.step_time_s.value


def test_what_was_found_of_other_jobs_is_kept(predictor: Predictor) -> None:
    """Telling members after each observation gives what telling them after all of them gives."""
    posterior, none = Posterior(predictor), MeasuredAlone()
    jobs, known = (SLOW, OTHER, THIRD), posterior._known
    posterior.predict_arrays([ColocationSet(d, jobs, m) for d in ("v100", "p100") for m in ("mps", "mig")])
    posterior._known.of_sets(
        [ColocationSet("v100", jobs, "mps"), ColocationSet("v100", jobs, "mig"), ColocationSet("p100", jobs)],
        np.full((3, 3), 0.1),
    )
    measured, observations = none, []
    for k, job in enumerate((SLOW, OTHER, SLOW, stated(predictor, 0.2))):
        observations.append(Observation(ColocationSet("v100", (job,)), 0, 0.1 + k, memory_bytes=10**9))
        measured = measured.observed(observations[-1:])
        one = measured.told_members(known, predictor)
        other = none.observed(observations).told_members(known, predictor)
        assert one.tolist() == other[: len(one)].tolist()
        assert (one != np.arange(len(one))).any()


def test_members_that_another_thread_adds_meanwhile_are_told_later(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = told(predictor, 5.0)
    known, measured, added = posterior._known, posterior.measured, (SLOW, "v100", "mps")
    keys = known.keys()

    def with_another() -> Any:
        known.numbers([added], [0.1])
        return keys

    with monkeypatch.context() as patch:
        patch.setattr(known, "keys", with_another)
        measured.told_members(known, predictor)
    (number,) = known.numbers([added])
    now = measured.told_members(known, predictor)[number]
    assert known.keys()[now][0].solo.step_time_s is not None


def test_an_observation_that_another_thread_adds_meanwhile_counts() -> None:
    """A thread that answers is interrupted while it keeps what to tell of a job, by one that observes the same job."""
    first, second = (
        Observation(ColocationSet("v100", (SLOW,)), 0, step_time_s) for step_time_s in (1.0, 9.0)
    )
    measured, later, threads = MeasuredAlone().observed([first]), list[MeasuredAlone](), list[Thread]()

    class Interrupted(dict[Any, Any]):
        def __setitem__(self, job: Any, told: Any) -> None:
            super().__setitem__(job, told)
            threads.append(Thread(target=lambda: later.append(measured.observed([second]))))
            threads[0].start()
            threads[0].join(0.1)

    measured._told = Interrupted()
    assert measured.told("v100", "time-slice", SLOW).solo.step_time_s == pytest.approx(1.0)
    threads[0].join()
    assert later[0].told("v100", "time-slice", SLOW).solo.step_time_s == pytest.approx(5.0, rel=0.01)


def test_it_applies_to_every_sharing_mode_and_to_no_other_job(predictor: Predictor) -> None:
    posterior = told(predictor, 30.0, sharing="mps")
    before, after = (p.predict_arrays([ALONE]).solo_step_time_s[0, 0] for p in (predictor, posterior))
    assert after == pytest.approx(30 * before, rel=0.02)
    others = [ColocationSet("v100", (OTHER, THIRD)), ColocationSet("p100", (SLOW, OTHER))]
    np.testing.assert_allclose(
        posterior.predict_arrays(others).step_time_s, predictor.predict_arrays(others).step_time_s, rtol=0.01
    )


def test_observations_in_sets_are_combined_with_it_in_any_order(predictor: Predictor) -> None:
    alone, pair = predictor.predict_arrays([ALONE, PAIR]).step_time_s[:, 0]
    observations = [Observation(PAIR, 0, float(30 * pair)), Observation(ALONE, 0, float(30 * alone))]
    first, second = Posterior(predictor), Posterior(predictor)
    first.observe(observations)
    second = second.extended(observations[1:]).extended(observations[:1])
    job = stated(predictor, float(30 * alone))
    expected = predictor.predict_arrays([ColocationSet("v100", (job, OTHER))])
    for posterior in (first, second):
        answer = posterior.predict_arrays([PAIR])
        assert answer.slowdown[0, 0] == pytest.approx(pair / alone, rel=0.05)
        assert answer.slowdown[0, 1] == pytest.approx(expected.slowdown[0, 1], rel=0.05)
        assert answer.step_time_s[0, 0] == pytest.approx(30 * pair, rel=0.05)


@pytest.mark.parametrize("most_rows", [3, 512])
def test_predictions_do_not_depend_on_the_order_of_observations(predictor: Predictor, most_rows: int) -> None:
    config = PosteriorConfig(most_rows=most_rows)
    jobs = (SLOW, OTHER, THIRD)
    pairs = [ColocationSet("v100", pair) for pair in permutations(jobs, 2)]
    beside = predictor.predict_arrays(pairs).step_time_s[:, 0]
    observed = [Observation(s, 0, 1.2 * float(step)) for s, step in zip(pairs, beside, strict=True)]
    alone = [
        Observation(s, 0, factor * float(predictor.predict_arrays([s]).step_time_s[0, 0]))
        for s, factor in ((ALONE, 2.0), (ColocationSet("v100", (OTHER,)), 0.8), (ALONE, 2.2))
    ]
    at_once, in_turn = Posterior(predictor, config), Posterior(predictor, config)
    at_once.observe([*alone, *observed])
    for each in [*observed[:4], *alone[:2], *observed[4:], alone[2]]:
        in_turn = in_turn.extended([each])
    np.testing.assert_allclose(
        in_turn.predict_arrays(pairs).step_time_s, at_once.predict_arrays(pairs).step_time_s, rtol=1e-6
    )


def test_memory_and_utilisation_observed_with_it_are_used_too(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    taken = [(0.05, 2e9, 0.2), (0.05, 2e9, 0.3), (0.05, 2e9, 0.3), (0.05, None, None)]
    posterior.observe([Observation(ALONE, 0, *values) for values in taken])
    assert len(posterior) == 4
    answer = posterior.predict(PAIR)
    job = replace(SLOW, solo=SoloProfile(step_time_s=0.05, memory_bytes=2e9, utilization_ratio=0.3))
    expected = predictor.predict(ColocationSet("v100", (job, OTHER)))
    assert answer.members[0].memory_bytes.value == pytest.approx(2e9, rel=0.006)
    assert answer.members[0].slowdown.value == pytest.approx(expected.members[0].slowdown.value, rel=0.02)
    assert answer.members[1].slowdown.value == pytest.approx(expected.members[1].slowdown.value, rel=0.05)
    assert any(
        "alpha: its step time (observed 4 times), memory (3 times) and utilisation (3 times) alone on v100 replaced"
        in reason
        for reason in answer.reasons
    )


def test_observed_utilisation_is_used_if_only_the_step_time_is_stated(predictor: Predictor) -> None:
    posterior, job = Posterior(predictor), stated(predictor, 0.05)
    posterior.observe([Observation(ColocationSet("v100", (job,)), 0, 0.06)])
    assert (len(posterior), posterior.revision) == (0, 0), "it adds nothing to the SPEC"
    posterior.observe([Observation(ColocationSet("v100", (job,)), 0, 0.06, utilization_ratio=0.3)])
    assert (len(posterior), posterior.revision) == (1, 1)
    asked = ColocationSet("v100", (job, OTHER))
    full = replace(job, solo=replace(job.solo, utilization_ratio=0.3))
    expected = predictor.predict_arrays([ColocationSet("v100", (full, OTHER))])
    for same in (posterior, posterior.over(predictor)):
        np.testing.assert_allclose(same.predict_arrays([asked]).step_time_s, expected.step_time_s)
        rows = same.rows([asked])
        np.testing.assert_allclose(same.predict_rows(rows, "time-slice").step_time_s, expected.step_time_s)


def test_observed_memory_and_utilisation_are_listed_by_job(predictor: Predictor) -> None:
    job = stated(predictor, 0.05)
    posterior = Posterior(predictor)
    assert alone_of(posterior) == []
    posterior.observe(
        [
            Observation(ALONE, 0, 0.05, memory_bytes=2e9, utilization_ratio=0.4),
            Observation(ColocationSet("v100", (job,)), 0, 0.05, memory_bytes=2e9),
            Observation(ColocationSet("p100", (job,), "mig"), 0, 0.05, utilization_ratio=0.5),
        ]
    )
    before = predictor.predict_arrays([ALONE])
    rows = alone_of(posterior)
    memory, busy, elsewhere = rows
    assert [row["quantity"] for row in rows] == ["memory_bytes", "utilization_ratio", "utilization_ratio"]
    assert (memory["device"], memory["sharing"], memory["job"], memory["count"]) == (
        "v100",
        "time-slice",
        str(SLOW),
        2,
    )
    assert memory["value"] == pytest.approx(2e9, rel=0.006)
    assert memory["factor"] == pytest.approx(2e9 / before.memory_bytes[0, 0], rel=0.006)
    assert (busy["count"], busy["value"]) == (1, pytest.approx(0.4))
    assert busy["factor"] == pytest.approx(0.4 / before.utilization_ratio[0, 0])
    assert (elsewhere["device"], elsewhere["sharing"], elsewhere["count"]) == ("p100", "mig", 1)
    (step,) = corrections_of(posterior)
    assert (step["job"], step["beside"], step["count"]) == (str(SLOW), [], 1)


@pytest.mark.parametrize("step_time_s", STEP_TIMES_S)
def test_rounding_stays_within_the_range_of_step_times(step_time_s: float) -> None:
    measured = MeasuredAlone().observed([Observation(ALONE, 0, step_time_s)])
    assert measured.told("v100", "time-slice", SLOW).solo.step_time_s == step_time_s


@pytest.mark.parametrize("share", [0.95, 0.97, 0.985, 0.993, 0.9975, 1.0])
def test_a_job_that_ran_alone_on_a_device_fits_there(predictor: Predictor, share: float) -> None:
    posterior = Posterior(predictor)
    taken = share * get_device("v100").memory_bytes
    posterior.observe([Observation(ALONE, 0, 0.05, memory_bytes=taken)])
    arrays, answer = posterior.predict_arrays([ALONE]), posterior.predict(ALONE)
    assert arrays.fits[0]
    assert answer.fits
    assert arrays.memory_bytes[0, 0] == pytest.approx(taken, rel=0.006)
    assert posterior.predict_rows(posterior.rows([ALONE]), "time-slice").fits[0]
    assert not posterior.predict(PAIR).fits


def test_predictions_agree_if_only_unstated_quantities_were_observed(predictor: Predictor) -> None:
    """In any order: the job's step time is still predicted, and its features are known."""
    pairs = [ColocationSet("v100", pair) for pair in permutations((SLOW, OTHER, THIRD), 2)]
    steps = predictor.predict_arrays(pairs).step_time_s[:, 0].tolist()
    beside = [Observation(s, 0, 1.5 * step) for s, step in zip(pairs[:3], steps, strict=False)]
    job = ColocationSet("v100", (stated(predictor, 0.05),))
    rest = Observation(job, 0, 0.05, memory_bytes=2e9, utilization_ratio=0.3)
    answers = [
        Posterior(predictor).extended(first).extended(then).predict_arrays(pairs).step_time_s
        for first, then in ((beside, [rest]), ([rest], beside))
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6)
    own = replace(SLOW, solo=SoloProfile(memory_bytes=2e9, utilization_ratio=0.3))
    posterior = Posterior(predictor)
    posterior.observe([*beside, rest])
    assert posterior.process.evidence.members.place[:, -1].max() == 0.0, "no job's features are unknown"
    assert posterior.predict(PAIR).members[0].job == str(SLOW) != str(own)


@pytest.mark.parametrize("place", ["known", "told"])
def test_concurrent_threads_number_rows_once(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    posterior = told(predictor, 5.0)
    rows, state = posterior.rows([PAIR]), posterior.state
    holder, name = (posterior._known, "numbers") if place == "known" else (state.measured, "told")
    real = getattr(holder, name)

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(holder, name, real)
        posterior.predict_rows(rows, "time-slice")
        return real(*args)

    monkeypatch.setattr(holder, name, interrupted)
    posterior.predict_rows(rows, "time-slice")
    assert getattr(holder, name) == real, "it was interrupted"
    count = len(predictor.table_.keys)
    assert max(len(posterior._known._of_row), len(posterior.state.told_table._row)) <= count
    sets = [ColocationSet("v100", (replace(SLOW, batch_size=93), replace(THIRD, batch_size=94), SLOW))]
    of_rows = posterior.predict_rows(posterior.rows(sets), "time-slice")
    np.testing.assert_allclose(of_rows.step_time_s, posterior.predict_arrays(sets).step_time_s)


def test_what_was_observed_with_each_frozen_prefix(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    frozen, larger = replace(SLOW, frozen_prefix=2), replace(SLOW, batch_size=32)
    for job, device, step_s in (
        (SLOW, "v100", 0.2),
        (frozen, "v100", 0.1),
        (larger, "v100", 0.3),
        (SLOW, "k80", 0.9),
    ):
        posterior.observe([Observation(ColocationSet(device, (job,)), 0, step_s)])
    for asked in (SLOW, frozen, stated(predictor, 0.7)):
        found = posterior.measured.by_prefix("v100", "mps", asked)
        assert {k: solo.step_time_s for k, solo in found.items()} == {
            0: pytest.approx(0.2, rel=0.01),
            2: pytest.approx(0.1, rel=0.01),
        }
    assert not posterior.measured.by_prefix("v100", "mig", SLOW)
