from __future__ import annotations

import pytest

from predictor.answering.transferred import transfer_from, transferred
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

SLICE = "a100:mig=2g"


def carried(predictor: Predictor, options: str, device: str = SLICE, share: float = 1.0) -> Workload:
    job = Workload.parse(f"alpha:batch_size=64{options}")
    return transferred(job, "a100", device, share, predictor.fitted_.model.featurizer)


def test_only_the_busy_part_of_a_step_grows(predictor: Predictor) -> None:
    costs = [
        predictor.fitted_.model.featurizer.job(Workload.parse("alpha:batch_size=64"), d).cost.busy_s
        for d in ("a100", SLICE)
    ]
    ratio = costs[1] / costs[0]
    assert ratio > 1.5
    for busy in (0.0, 0.3, 1.0):
        job = carried(predictor, f",step_time_s=0.5,utilization_ratio={busy},memory_bytes=3e9")
        assert job.solo.step_time_s == pytest.approx(0.5 * (1 - busy + busy * ratio))
        assert job.solo.utilization_ratio == pytest.approx(busy * ratio / (1 - busy + busy * ratio))
        assert job.solo.memory_bytes == 3e9
    share = carried(predictor, ",step_time_s=0.5,utilization_ratio=1", "a100", 0.25)
    assert share.sm_share_ratio == 0.25
    assert (share.solo.step_time_s or 0.0) > 0.5


def test_jobs_without_measurements_and_the_card_itself_stay_as_they_are(predictor: Predictor) -> None:
    assert carried(predictor, "") == Workload.parse("alpha:batch_size=64")
    measured = ",step_time_s=0.5"
    assert carried(predictor, measured, "a100") == Workload.parse(f"alpha:batch_size=64{measured}")
    assert transfer_from(object(), "a100") is None


def test_mig_and_the_whole_card_agree_on_a_measured_job(predictor: Predictor) -> None:
    jobs = tuple(map(Workload.parse, ("alpha:batch_size=64,step_time_s=5,utilization_ratio=0.01", "beta")))
    answer = predictor.predict(ColocationSet("a100", jobs, "mig"))
    assert answer.members[0].slowdown.value < 1.2
