"""Sets that ran although they are predicted not to fit in the device's memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.memory import ran_together
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.devices import get_device
from profiling.workload import ColocationSet, SoloProfile, Workload

ROOM = get_device("v100").memory_bytes


def job(model: str, memory_bytes: float, batch_size: int = 32) -> Workload:
    return Workload(model, batch_size, solo=SoloProfile(memory_bytes=memory_bytes))


BIG = job("alpha", 0.4 * ROOM), job("beta", 0.5 * ROOM), job("gamma", 0.2 * ROOM)


def the_set(*jobs: Workload, sharing: str = "time-slice", device: str = "v100") -> ColocationSet:
    return ColocationSet(device, jobs, sharing)


def after(predictor: Predictor, ran: ColocationSet, times: int = 3) -> Posterior:
    step_s = float(predictor.predict_arrays([ran]).step_time_s[0, 0])
    posterior = Posterior(predictor)
    posterior.observe([Observation(ran, 0, step_s)] * times)
    return posterior


def fits(posterior: Posterior, *sets: ColocationSet) -> list[bool]:
    """By all three entry points."""
    arrays, answers = posterior.predict_arrays(sets), posterior.predict_many(sets)
    for k, each in enumerate(sets):
        row = posterior.predict_rows(posterior.rows([each]), each.sharing)
        width = len(each.workloads)
        np.testing.assert_allclose(row.memory_bytes[0], arrays.memory_bytes[k, :width])
        assert row.fits[0] == arrays.fits[k] == answers[k].fits
        assert row.memory_upper_bytes[0] == pytest.approx(arrays.memory_upper_bytes[k])
        assert answers[k].total_memory_bytes.upper == pytest.approx(arrays.memory_upper_bytes[k])
        assert answers[k].total_memory_bytes.value <= answers[k].total_memory_bytes.upper
        assert [m.memory_bytes.value for m in answers[k].members] == pytest.approx(
            arrays.memory_bytes[k, :width].tolist()
        )
    return [bool(fit) for fit in arrays.fits]


def test_a_set_that_ran_fits_in_any_order_and_so_do_its_parts(predictor: Predictor) -> None:
    whole, parts = the_set(*BIG), (the_set(*BIG[1:]), the_set(BIG[1], BIG[0]))
    assert not predictor.predict_arrays([whole]).fits[0]
    posterior = after(predictor, whole)
    assert fits(posterior, whole, the_set(*BIG[::-1]), *parts, the_set(*BIG, sharing="mps")) == [True] * 5
    answer = posterior.predict(whole)
    assert answer.total_memory_bytes.upper == ROOM
    assert answer.reasons[0] == "fits: at most 16.00 GiB of 16.00 GiB device memory"
    assert answer.reasons[-1] == "observed to run together on v100, although predicted not to fit"
    (alone,) = posterior.predict_many([the_set(BIG[0])])
    assert "although predicted not to fit" not in " ".join(alone.reasons)


def test_so_does_a_set_with_smaller_batches_or_more_frozen_layers(predictor: Predictor) -> None:
    posterior = after(predictor, the_set(*BIG))
    small = replace(BIG[0], batch_size=8), replace(BIG[1], frozen_prefix=1), replace(BIG[2], mode="inference")
    assert fits(posterior, the_set(*small), the_set(BIG[1], small[2], BIG[0])) == [True] * 2
    how = "observed to run together on v100, although predicted not to fit"
    jobs = " and ".join(str(each.without_solo()) for each in BIG)
    assert posterior.predict(the_set(*small)).reasons[-1] == f"{jobs} {how}"
    larger = replace(BIG[0], batch_size=64, frozen_prefix=2), *small[1:]
    assert fits(posterior, the_set(*larger)) == [False]


def test_nothing_follows_for_larger_sets_or_elsewhere(predictor: Predictor) -> None:
    posterior = after(predictor, the_set(*BIG))
    others = (
        the_set(*BIG, BIG[2]),
        the_set(BIG[1], BIG[1], BIG[2]),
        the_set(BIG[0], BIG[1], job("gamma", 0.2 * ROOM, batch_size=64)),
        the_set(*BIG, device="p100"),
        the_set(*BIG[:2], job("delta", 0.2 * ROOM)),
    )
    assert fits(posterior, *others) == [False] * 5


@pytest.mark.parametrize(("share", "times", "expected"), [(0.4, 2, False), (0.4, 3, True), (1.6, 9, False)])
def test_it_must_be_seen_often_and_be_plausible(
    predictor: Predictor, share: float, times: int, expected: bool
) -> None:
    ran = the_set(job("alpha", share * ROOM), job("beta", 2 * share * ROOM))
    assert fits(after(predictor, ran, times), ran) == [expected]


def test_a_job_alone(predictor: Predictor) -> None:
    ran = the_set(job("alpha", 1.2 * ROOM))
    assert fits(after(predictor, ran), ran) == [True]
    assert after(predictor, ran).predict(ran).reasons[-1] == (
        "observed to run on v100, although predicted not to fit"
    )


def test_a_mig_partition_says_nothing_of_the_whole_card(predictor: Predictor) -> None:
    a100 = get_device("a100").memory_bytes
    jobs = job("alpha", 0.6 * a100), job("beta", 0.6 * a100)
    posterior = after(predictor, the_set(*jobs, sharing="mig", device="a100"))
    assert fits(posterior, the_set(*jobs, device="a100")) == [False]
    posterior = after(predictor, the_set(*jobs, device="a100"))
    assert fits(posterior, the_set(*jobs, device="a100"), the_set(*jobs, sharing="mig", device="a100")) == [
        True,
        False,
    ]


def test_later_observations_count_too(predictor: Predictor) -> None:
    whole, other = the_set(*BIG), the_set(BIG[1], BIG[1], BIG[2])
    posterior = after(predictor, whole)
    assert fits(posterior, whole, other) == [True, False]
    more = posterior.extended([Observation(other, 0, 0.1)] * 3)
    assert fits(more, whole, other) == [True, True]
    assert fits(posterior, whole, other) == [True, False]


def test_observations_count_together_whatever_their_specs_stated(predictor: Predictor) -> None:
    whole = the_set(*BIG)
    stated = [
        the_set(replace(BIG[0], solo=replace(BIG[0].solo, step_time_s=step_s)), *BIG[1:], sharing=sharing)
        for step_s, sharing in ((0.03, "time-slice"), (0.04, "mps"))
    ]
    posterior = Posterior(predictor)
    posterior.observe([Observation(each, 1, 0.1) for each in (whole, *stated[:1])])
    assert fits(posterior, whole, *stated) == [False] * 3
    assert fits(posterior.extended([Observation(stated[1], 1, 0.1)]), whole, *stated) == [True] * 3


def test_of_what_the_predictor_was_trained_on_only_that_it_ran_is_taken_in(predictor: Predictor) -> None:
    whole, small = the_set(*BIG), the_set(job("alpha", 0.1 * ROOM), job("beta", 0.1 * ROOM))
    learned = [Observation(each, 0, 7.0) for each in (whole, small) for _ in range(3)]
    unknown = Observation(the_set(Workload("unknown"), BIG[0]), 0, 0.1)
    posterior = Posterior(predictor).extended([], ran=[*learned, unknown])
    assert not len(posterior)
    for corrected in (posterior, posterior.over(predictor), posterior.extended([])):
        assert fits(corrected, whole, small) == [True, True]
        assert not corrected.knows_nothing
        after, before = (each.predict_arrays([whole, small]) for each in (corrected, predictor))
        np.testing.assert_array_equal(after.step_time_s, before.step_time_s)
        values, plain = (each.predict(small).members[0].step_time_s for each in (corrected, predictor))
        assert (values.lower, values.upper) == pytest.approx((plain.lower, plain.upper))
    assert posterior.unobserved().knows_nothing


def test_sets_are_named_anew_only_if_others_were_observed_often(predictor: Predictor) -> None:
    whole = the_set(*BIG)
    posterior = after(predictor, whole)
    assert fits(posterior, whole) == [True]
    rooms = posterior.state.ran_out.ran._rooms
    more = posterior.extended([Observation(whole, 0, 0.1)]).extended([Observation(whole, 0, 0.1)])
    assert fits(more, whole) == [True]
    assert more.state.ran_out.ran._rooms is rooms
    assert more.extended([Observation(the_set(*BIG[:2]), 0, 0.1)] * 3).state.ran_out.ran._rooms is not rooms


def test_parts_of_large_sets_are_found_without_naming_all_of_them(predictor: Predictor) -> None:
    jobs = [job("alpha", ROOM / 9, batch_size=size) for size in range(1, 16)]
    whole = the_set(*jobs, jobs[0])  # of 65 535 parts
    posterior = after(predictor, whole)
    sets = (whole, the_set(*jobs[3:]), the_set(*jobs[:10], jobs[0]))
    assert fits(posterior, *sets) == [True] * 3
    others = (
        the_set(*jobs, *jobs[:2]),
        the_set(*jobs[:10], jobs[1]),
        the_set(*jobs[:10], job("beta", ROOM / 9)),
        the_set(*jobs[3:], device="k80"),
    )
    assert fits(posterior, *others) == [False] * 4
    assert len(posterior.state.ran_out.ran._rooms[0]) == 0


@pytest.mark.parametrize("named", [1, 2, 8])
def test_how_many_parts_are_named_changes_nothing(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(ran_together, "MOST_NAMED", named)
    alone = job("delta", 1.2 * ROOM)
    posterior = after(predictor, the_set(*BIG, BIG[2]))
    posterior.observe([Observation(the_set(alone), 0, 0.1)] * 3)
    sets = the_set(*BIG), the_set(*BIG[1:], BIG[2]), the_set(*BIG[::-1], BIG[2]), the_set(alone)
    assert fits(posterior, *sets) == [True] * 4
    assert fits(posterior, the_set(*BIG, BIG[1]), the_set(alone, BIG[2])) == [False] * 2
