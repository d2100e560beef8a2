from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.shares import beside_shares, unlimited
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload

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
