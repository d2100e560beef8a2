from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.shares import beside_shares, remaining_contention, unlimited
from predictor.answering.transferred import transferred
from predictor.predictor import Predictor
from profiling.workload import STEP_TIMES_S, ColocationSet, SoloProfile, Workload

JOB, OTHER = Workload("alpha", 32), Workload("beta", 32)


def steps(predictor: Predictor, *members: Workload, device: str = "v100") -> Floats:
    return predictor.predict_arrays([ColocationSet(device, members, "mps")]).step_time_s[0]


def limited(job: Workload, share: float) -> Workload:
    return replace(job, sm_share_ratio=share)


def test_a_neighbours_share_makes_no_job_slower(predictor: Predictor) -> None:
    before = steps(predictor, JOB, OTHER)[0]
    for share in (0.9, 0.5, 0.2, 0.05):
        assert steps(predictor, JOB, limited(OTHER, share))[0] <= before * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 4])
def test_shares_are_not_counted_twice(predictor: Predictor, count: int) -> None:
    together, whole = steps(predictor, *[JOB] * count)[0], steps(predictor, JOB)[0]
    for share in (1.0, 0.8, 1 / count, 0.1):
        alone = steps(predictor, limited(JOB, share))[0]
        shared = steps(predictor, *[limited(JOB, share)] * count)
        assert max(alone, whole) <= shared[0] <= alone + together - whole + 1e-12
        np.testing.assert_allclose(shared, shared[0])
        # Half of what neighbours take is not of the multiprocessors, down to the smallest share measured.
        part = 0.5 * min(share / 0.14, 1.0) + 0.5 * share
        np.testing.assert_allclose(shared[0], alone + part * (together - whole), rtol=1e-6)


def test_limiting_a_job_makes_it_no_faster(predictor: Predictor) -> None:
    before = 0.0
    for share in (1.0, 0.8, 0.5, 0.2, 0.05):
        step_s = steps(predictor, limited(JOB, share), OTHER)[0]
        assert step_s >= before * (1 - 1e-9)
        before = step_s


def test_one_more_neighbour_with_a_small_share_makes_no_job_faster(predictor: Predictor) -> None:
    two = steps(predictor, JOB, OTHER)
    three = steps(predictor, JOB, OTHER, limited(OTHER, 0.05))
    assert (three[:2] >= two * (1 - 1e-9)).all()


def test_a_measured_step_is_that_under_the_share(predictor: Predictor) -> None:
    measured = replace(limited(JOB, 0.3), solo=SoloProfile(0.05))
    arrays = predictor.predict_arrays([ColocationSet("v100", (measured, OTHER), "mps")])
    assert arrays.solo_step_time_s[0, 0] == pytest.approx(0.05)
    featurizer = predictor.fitted_.model.featurizer
    whole, ratio = unlimited(measured, "v100", featurizer)
    assert 0 < ratio < 1
    assert whole.sm_share_ratio == 1.0
    assert whole.solo.step_time_s == pytest.approx(0.05 * ratio)
    assert unlimited(JOB, "v100", featurizer) == (JOB, 1.0)


@pytest.mark.parametrize("solo", [(0.05, None, 0.4, 0.2), (0.05, None, None, None), (None, None, 0.4, 0.2)])
def test_measurements_carried_over_to_a_share_and_back(
    predictor: Predictor, solo: tuple[float | None, ...]
) -> None:
    featurizer, whole = predictor.fitted_.model.featurizer, replace(JOB, solo=SoloProfile(*solo))
    back, ratio = unlimited(transferred(whole, "v100", "v100", 0.2, featurizer), "v100", featurizer)
    assert ratio < 1
    # If only the utilisation was measured, the predicted step is carried over.
    step_s = solo[0] or featurizer.job(JOB, "v100").cost.step_time_s
    whole = replace(whole, solo=replace(whole.solo, step_time_s=step_s))
    for name in ("step_time_s", "utilization_ratio", "memory_bandwidth_ratio"):
        before, after = (getattr(job.solo, name) for job in (whole, back))
        assert after == (None if before is None else pytest.approx(before))


def test_the_shortest_step_under_a_share(predictor: Predictor) -> None:
    job = replace(limited(JOB, 0.05), solo=SoloProfile(STEP_TIMES_S[0]))
    assert steps(predictor, job, OTHER)[0] >= STEP_TIMES_S[0]


@pytest.mark.parametrize("measured_s", [None, 0.5])
def test_utilisation_is_that_under_the_share(predictor: Predictor, measured_s: float | None) -> None:
    job = replace(limited(Workload("delta", 32), 0.02), solo=SoloProfile(measured_s))
    cost = predictor.fitted_.model.featurizer.job(job, "v100").cost
    busy = min(cost.busy_s / (measured_s or cost.step_time_s), 1.0)
    asked = [ColocationSet("v100", members, "mps") for members in ((job,), (job, job))]
    arrays, answers = predictor.predict_arrays(asked), predictor.predict_many(asked)
    np.testing.assert_allclose(arrays.utilization_ratio[:, 0], busy / arrays.slowdown[:, 0])
    assert answers[0].members[0].utilization_ratio.value == pytest.approx(busy)
    assert answers[0].total_utilization_ratio.value == pytest.approx(busy)
    of_both = sum(m.utilization_ratio.value for m in answers[1].members)
    assert answers[1].total_utilization_ratio.value == pytest.approx(min(1 - (1 - busy) ** 2, of_both))


def test_a_share_that_nothing_enforces_is_pointed_out(predictor: Predictor) -> None:
    def told(job: Workload, sharing: str) -> bool:
        answer = predictor.predict(ColocationSet("v100", (job,), sharing))
        return any("only MPS" in reason for reason in answer.reasons)

    assert told(limited(JOB, 0.3), "time-slice")
    assert not told(limited(JOB, 0.3), "mps")
    assert not told(JOB, "time-slice")


def test_a_neighbour_with_almost_no_multiprocessors_costs_almost_nothing() -> None:
    shares = np.array([1.0, 0.5, 0.14, 0.07, 0.01])
    remaining = [float(beside_shares(np.array([[1.0, s]]), np.ones((1, 2), bool))[0, 0]) for s in shares]
    assert remaining[:3] == pytest.approx([1.0, 0.75, 0.57])
    assert remaining[3] == pytest.approx(0.285)
    assert remaining[4] < 0.05


def test_each_neighbour_counts_by_its_own_share() -> None:
    remaining = beside_shares(np.array([[0.3, 1.0, 0.01]]), np.ones((1, 3), bool))[0]
    of_little = remaining_contention(np.array(0.01))
    assert of_little < 0.05
    np.testing.assert_allclose(remaining, [(1 + of_little) / 2, (0.65 + of_little) / 2, (0.65 + 1) / 2])


def test_a_third_job_with_almost_no_multiprocessors_narrows_no_interval(predictor: Predictor) -> None:
    def narrowed(share: float) -> float:
        jobs = (JOB, replace(JOB, precision="amp"), limited(JOB, share))
        pair, three = (predictor.predict(ColocationSet("v100", jobs[:n], "mps")).members[0] for n in (2, 3))
        floor = predictor.fitted_.intervals.floor
        of_pair, of_three = (
            np.log(m.slowdown.upper / m.slowdown.value) / (floor + np.log(m.slowdown.value))
            for m in (pair, three)
        )
        return float(of_three / of_pair)

    assert narrowed(1.0) < 0.85
    assert narrowed(0.01) > 0.93
