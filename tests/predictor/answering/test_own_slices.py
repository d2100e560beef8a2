"""Sets under MIG on a whole card: each job alone on a slice."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from predictor.answering.own_slices import OwnSlices
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.devices import mig_layout
from profiling.workload import ColocationSet, Workload

JOBS = tuple(map(Workload.parse, ("alpha:batch_size=64", "beta:batch_size=16", "alpha:batch_size=8")))
LARGE = Workload.parse("alpha:memory_bytes=22e9")


def mig(*jobs: Workload, device: str = "a100") -> ColocationSet:
    return ColocationSet(device, jobs, "mig")


def relative(predictor: Predictor, jobs: tuple[Workload, ...], device: str) -> dict[str, list[float]]:
    """Slowdown of each job alone on every slice."""
    layout = mig_layout(device)
    places = {profile.short: layout.device(profile) for profile in layout.profiles}
    sets = [ColocationSet(d, (job,)) for d in (device, *places.values()) for job in jobs]
    step_s = predictor.predict_arrays(sets).step_time_s[:, 0].reshape(-1, len(jobs))
    return dict(zip(places, np.maximum(step_s[1:] / step_s[0], 1.0).tolist(), strict=True))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("device", ["a100", "h100"])
def test_the_partition_with_the_highest_total_speed(predictor: Predictor, device: str, count: int) -> None:
    jobs = JOBS[:count]
    slower = relative(predictor, jobs, device)
    most = max(
        sum(1.0 / slower[profile.short][k] for k, profile in enumerate(chosen))
        for partition in mig_layout(device).maximal
        for chosen in permutations(partition.profiles, count)
    )
    answer = predictor.predict(mig(*jobs, device=device))
    assert answer.fits
    assert sum(1.0 / m.slowdown.value for m in answer.members) == pytest.approx(most)
    for k, (job, member) in enumerate(zip(jobs, answer.members, strict=True)):
        on = answer.reasons[0].split(f"{job.model} on {device}:mig=")[1 if k < 2 else 2].split(",")[0]
        assert member.slowdown.value == pytest.approx(slower[on][k])
        assert member.step_time_s.value == pytest.approx(slower[on][k] * member.solo_step_time_s.value)


def test_all_ways_of_asking_agree(predictor: Predictor) -> None:
    sets = [mig(*JOBS[:2]), mig(*JOBS), mig(JOBS[0]), ColocationSet("a100", JOBS[:2], "mps")]
    arrays = predictor.predict_arrays(sets)
    posterior = Posterior(predictor).predict_arrays(sets)
    for k, one in enumerate(sets):
        count = len(one.workloads)
        step_s = [m.step_time_s.value for m in predictor.predict(one).members]
        row = predictor.predict_rows(predictor.rows([one]), one.sharing).step_time_s[0, :count]
        for found in (row, arrays.step_time_s[k, :count], posterior.step_time_s[k, :count]):
            np.testing.assert_allclose(found, step_s, rtol=1e-6)
    assert arrays.slowdown[2, 0] == 1.0


def test_they_agree_after_feedback(predictor: Predictor) -> None:
    """Even where a job has a smaller slice in a pair than beside two others."""
    posterior = Posterior(predictor)
    step_s = float(predictor.predict_arrays([mig(JOBS[2])]).step_time_s[0, 0])
    observed = [Observation(mig(JOBS[2]), 0, 5.0 * step_s), Observation(mig(*JOBS[:2]), 1, 0.5)]
    posterior.observe(observed)
    sets = [mig(*jobs) for count in (1, 2, 3) for jobs in permutations(JOBS, count)]
    arrays, rows = posterior.predict_arrays(sets), posterior.predict_rows(posterior.rows(sets), "mig")
    mixed = posterior.predict_arrays([*sets, ColocationSet("a100", JOBS, "mps")])
    for k, prediction in enumerate(posterior.predict_many(sets)):
        count = len(prediction.members)
        step_times_s = [m.step_time_s.value for m in prediction.members]
        for found in (arrays, rows, mixed):
            np.testing.assert_allclose(found.step_time_s[k, :count], step_times_s, rtol=1e-5)


def test_stated_step_times_are_those_of_the_whole_card(predictor: Predictor) -> None:
    busy, idle = (
        predictor.predict(
            mig(Workload.parse(f"alpha:batch_size=64,step_time_s=0.5,utilization_ratio={u}"), JOBS[1])
        )
        for u in (1.0, 0.02)
    )
    assert [a.members[0].solo_step_time_s.value for a in (busy, idle)] == [0.5, 0.5]
    # A job that waits most of the time loses little on a slice.
    assert busy.members[0].slowdown.value > 1.5
    assert idle.members[0].slowdown.value < 1.2


def test_a_job_that_fits_no_slice_beside_another(predictor: Predictor) -> None:
    """Two jobs leave 20 GB each at most, although the card has room for both."""
    asked = mig(LARGE, Workload.parse("beta:memory_bytes=1e9"))
    answer = predictor.predict(asked)
    assert not answer.fits
    assert answer.reasons[0].startswith("does not fit")
    assert not predictor.predict_arrays([asked]).fits[0]
    assert predictor.predict(ColocationSet("a100", asked.workloads, "mps")).fits


def test_a_slice_is_not_cut_again(predictor: Predictor) -> None:
    one = ColocationSet("a100:mig=3g", JOBS[:1], "mig")
    assert predictor.predict(one).members[0].slowdown.value == 1.0


@pytest.mark.parametrize(("device", "count"), [("v100", 2), ("a100:mig=3g", 2), ("a100", 8)])
def test_without_a_slice_for_each_job_they_do_not_fit(predictor: Predictor, device: str, count: int) -> None:
    arrays = predictor.predict_arrays([mig(*JOBS[1:2] * count, device=device), mig(JOBS[1], device=device)])
    assert arrays.fits.tolist() == [False, True]
    assert (arrays.slowdown[0] > 1.0).all()


def test_jobs_fit_by_their_memory_on_the_slice(predictor: Predictor) -> None:
    """A process holds memory for each thread of the device, so less on a slice than on the whole card."""
    answers = []
    for batch in range(16, 1024, 16):
        job = Workload("alpha", batch)
        alone, seven = predictor.predict_many([ColocationSet("a100:mig=1g", (job,)), mig(*[job] * 7)])
        assert alone.fits == seven.fits
        answers.append(alone.fits)
    assert True in answers
    assert False in answers


def test_a_cache_that_another_thread_replaces_answers_all_the_same(predictor: Predictor) -> None:
    class Replaced(OwnSlices):
        _cuts = property(lambda _: {}, lambda _, _cuts: None)  # type: ignore[assignment]

    fitted, table = predictor.fitted_, predictor.table_
    rows = table.rows([(job, "a100", "mig") for job in JOBS])
    made = [kind(table, fitted.heads, fitted.model.featurizer) for kind in (OwnSlices, Replaced)]
    assert made[0].cut(rows) == made[1].cut(rows) is not None
