"""Sets that ran out of memory although they are predicted to fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.examples.out_of_memory import OutOfMemory
from predictor.learning.memory import ran_out
from predictor.learning.memory.ran_out import RanOut
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.devices import get_device
from profiling.workload import ColocationSet, SoloProfile
from tests.predictor.learning.memory.test_ran_together import ROOM, fits, job, the_set

A, B, C = job("alpha", 0.3 * ROOM), job("beta", 0.3 * ROOM), job("gamma", 0.1 * ROOM)


def after(predictor: Predictor, *sets: ColocationSet) -> Posterior:
    posterior = Posterior(predictor)
    posterior.observe(map(OutOfMemory, sets))
    return posterior


def ran(predictor: Predictor, colocation_set: ColocationSet, times: int = 3) -> list[Observation]:
    step_s = float(predictor.predict_arrays([colocation_set]).step_time_s[0, 0])
    return [Observation(colocation_set, 0, step_s)] * times


def test_such_a_set_does_not_fit_in_any_order_nor_does_what_contains_it(predictor: Predictor) -> None:
    pair = the_set(A, B)
    assert predictor.predict_arrays([pair]).fits[0]
    posterior = after(predictor, pair)
    assert not posterior.knows_nothing
    assert fits(posterior, pair, the_set(B, A), the_set(B, A, sharing="mps"), the_set(A, C, B)) == [False] * 4
    answer = posterior.predict(pair)
    assert answer.total_memory_bytes.value == ROOM
    how = "ran out of memory together on v100, although predicted to take at most"
    assert answer.reasons[0] == f"does not fit: {how} 9.81 GiB of 16.00 GiB device memory"
    assert posterior.predict(the_set(A, C, B)).reasons[0].startswith(f"does not fit: {A} and {B} {how}")


def test_nothing_else_is_said(predictor: Predictor) -> None:
    posterior = after(predictor, the_set(A, B), the_set(C, C))
    others = (
        the_set(A),
        the_set(A, A),
        the_set(A, C),
        the_set(A, replace(B, batch_size=16)),
        the_set(A, replace(B, batch_size=64, frozen_prefix=1)),
        the_set(replace(A, batch_size=64), replace(B, batch_size=16)),
        the_set(A, replace(B, optimizer="adam")),
        the_set(A, B, device="v100-32gb"),
    )
    assert fits(posterior, *others) == [True] * len(others)
    before, now = (each.predict_arrays(others) for each in (predictor, posterior))
    np.testing.assert_array_equal(now.memory_bytes, before.memory_bytes)
    np.testing.assert_allclose(now.step_time_s, before.step_time_s, rtol=1e-12)
    assert fits(posterior, the_set(C, A, C)) == [False]


def test_nor_does_one_with_larger_batches_or_fewer_frozen_layers(predictor: Predictor) -> None:
    frozen = replace(A, frozen_prefix=2)
    posterior = after(predictor, the_set(frozen, B), the_set(C, C))
    larger = the_set(replace(B, batch_size=64), A), the_set(C, frozen, replace(B, gradient_accumulation=2))
    assert fits(posterior, *larger) == [False] * 2
    assert (
        posterior.predict(larger[0])
        .reasons[0]
        .startswith(
            f"does not fit: {frozen} and {B} ran out of memory together on v100, although predicted to take"
        )
    )
    # Two of one network, one of which is smaller than either reported.
    of_one = the_set(replace(C, batch_size=8), replace(C, batch_size=128))
    assert fits(posterior, of_one, the_set(C, *of_one.workloads)) == [True, False]
    # What was seen to run often is believed about smaller ones, too.
    assert fits(posterior.extended(ran(predictor, larger[0])), the_set(frozen, B), larger[0]) == [True] * 2


def test_a_share_of_the_multiprocessors_needs_no_less_memory(predictor: Predictor) -> None:
    limited = the_set(replace(A, sm_share_ratio=0.5), B, sharing="mps")
    larger = the_set(C, *limited.workloads, sharing="mps")
    for reported, other in ((the_set(A, B), limited), (limited, the_set(A, B))):
        posterior = after(predictor, reported)
        assert fits(posterior, other, larger) == [False] * 2
        assert fits(posterior.extended(ran(predictor, other)), reported, other) == [True] * 2


def test_sets_of_one_call_are_looked_up_together(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = after(predictor, the_set(A, B), the_set(C, C), the_set(B))
    asked = [the_set(A), the_set(A, B), the_set(C), the_set(*[C] * 10), the_set(B, C, A)]
    asked += [the_set(*[C] * 5), the_set(C, B, C)]
    one_by_one = [posterior.predict(each) for each in asked]
    calls, contained = [], RanOut._contained
    monkeypatch.setattr(RanOut, "_contained", lambda *a: calls.append(1) or contained(*a))  # type: ignore[func-returns-value]
    answers = posterior.predict_many(asked)
    assert len(calls) == 1
    assert [each.fits for each in answers] == [True, False, True, False, False, False, False]
    assert [each.reasons[0] for each in answers] == [each.reasons[0] for each in one_by_one]
    small = posterior.predict_many(asked[:3] + asked[4:])
    assert [each.reasons[0] for each in small] == [
        each.reasons[0] for each in one_by_one[:3] + one_by_one[4:]
    ]


def test_a_job_alone(predictor: Predictor) -> None:
    posterior = after(predictor, the_set(A))
    assert fits(posterior, the_set(A), the_set(A, C), the_set(C)) == [False, False, True]
    assert (
        posterior.predict(the_set(A))
        .reasons[0]
        .startswith("does not fit: ran out of memory on v100, although")
    )


def test_a_slice_and_its_card_have_different_memory(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    a100, mig = the_set(A, device="a100"), the_set(A, device="a100", sharing="mig")
    in_slice = [the_set(A, device="a100:mig=4g", sharing=sharing) for sharing in ("mig", "time-slice")]
    asked = (a100, mig, *in_slice)
    # What does not fit on a card does not fit on its slices.
    whole = after(predictor, a100)
    assert fits(whole, *asked, the_set(A, device="a100-80gb:mig=4g")) == [False, False, False, False, True]
    together = the_set(C, A, device="a100", sharing="mig")
    assert fits(whole, together, replace(together, workloads=(C, C))) == [False, True]
    assert fits(after(predictor, replace(together, sharing="time-slice")), together) == [True]
    monkeypatch.setattr(ran_out, "MOST_NAMED", 1)
    assert fits(whole, together, replace(together, workloads=(C, C))) == [False, True]
    assert fits(after(predictor, replace(together, sharing="time-slice")), together) == [True]
    monkeypatch.undo()
    assert (
        whole.predict(together)
        .reasons[0]
        .startswith(f"does not fit: {A} ran out of memory on a100, although predicted to fit MIG ")
    )
    assert (
        whole.predict(in_slice[1]).reasons[0].startswith("does not fit: ran out of memory on a100, although")
    )
    assert whole.predict(in_slice[1]).total_memory_bytes.value == get_device("a100:mig=4g").memory_bytes
    assert fits(
        whole.extended(ran(predictor, in_slice[1])), *asked[2:], the_set(A, C, device="a100:mig=3g")
    ) == [
        True,
        True,
        False,
    ]
    posterior = after(predictor, in_slice[0])
    others = (the_set(A, device=f"a100:mig={part}g") for part in (3, 2, 7))
    assert fits(posterior, *others) == [False, False, True]
    assert fits(posterior, *asked) == [True, True, False, False]
    assert fits(posterior.extended(ran(predictor, in_slice[0])), *asked) == [True] * 4


def test_whatever_specs_state(predictor: Predictor) -> None:
    posterior = after(predictor, the_set(replace(A, solo=SoloProfile()), B))
    assert fits(posterior, the_set(A, replace(B, solo=replace(B.solo, step_time_s=0.1)))) == [False]


def test_a_set_that_ran_often_fits(predictor: Predictor) -> None:
    pair, more = the_set(A, B), the_set(A, B, C)
    posterior = after(predictor, pair)
    posterior.observe(ran(predictor, pair, 2))
    assert fits(posterior, pair, more) == [False, False]
    assert fits(posterior.extended(ran(predictor, pair, 1)), pair, more) == [True, True]
    # So it does as a part of another that ran; a third set does not.
    seen = posterior.extended(ran(predictor, more))
    assert fits(seen, pair, more, the_set(A, B, C, C)) == [True] * 3
    only_more = after(predictor, more).extended(ran(predictor, pair))
    assert fits(only_more, pair, more) == [True, False]


def test_reports_may_come_in_any_order_and_again(predictor: Predictor) -> None:
    sets = the_set(A, B), the_set(B, C), the_set(B, A)
    one = after(predictor, *sets, *sets)
    other = after(predictor, sets[1]).extended([OutOfMemory(sets[0])])
    assert len(one.ran_out) == len(other.ran_out) == 2
    asked = (*sets, the_set(A, C))
    assert fits(one, *asked) == fits(other, *asked) == [False] * 3 + [True]


def test_another_model_knows_it_too(predictor: Predictor) -> None:
    pair = the_set(A, B)
    posterior = after(predictor, pair).over(predictor)
    assert fits(posterior, pair, the_set(A)) == [False, True]


def test_sets_of_unknown_jobs_are_passed_over(predictor: Predictor) -> None:
    posterior = Posterior(predictor)
    unknown: list[Any] = [OutOfMemory(the_set(A, job("no-such-model", 1e9)))]
    assert posterior.take([*unknown, OutOfMemory(the_set(A, B))]) == 1
    assert fits(posterior, the_set(A, B), the_set(A)) == [False, True]


@pytest.mark.parametrize(("size", "named"), [(3, 8), (3, 3), (9, 8)])
def test_large_sets(predictor: Predictor, size: int, named: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ran_out, "MOST_NAMED", named)
    small = [job("alpha", 0.01 * ROOM, 8 + k) for k in range(size)]
    posterior = after(predictor, the_set(*small))
    assert fits(posterior, the_set(*small[::-1], C), the_set(*small[1:], C)) == [False, True]
    larger = [replace(each, batch_size=12) for each in small]
    assert fits(posterior, the_set(*larger, C), the_set(*larger[1:], C)) == [size > 5, True]


def test_no_job_stands_for_two(predictor: Predictor) -> None:
    small, frozen = replace(C, batch_size=16), replace(C, batch_size=64, frozen_prefix=2)
    posterior = after(predictor, the_set(small, frozen))
    # The largest needs more than either, but the other needs less than both.
    both = replace(C, batch_size=64), replace(C, batch_size=8)
    others = [job("alpha", 0.01 * ROOM, 64 + k) for k in range(7)]
    assert fits(posterior, the_set(*both), the_set(*both, *others)) == [True, True]
