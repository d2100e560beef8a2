from __future__ import annotations

import pytest

from predictor.answering.transferred import as_uncertain, transfer_from, transferred
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
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


def test_a_measured_utilisation_alone_says_how_much_of_the_predicted_step_grows(predictor: Predictor) -> None:
    (step_s, busy_s), (_, more_s) = (
        (cost.step_time_s, cost.busy_s)
        for d in ("a100", SLICE)
        for cost in [predictor.fitted_.model.featurizer.job(Workload.parse("alpha:batch_size=64"), d).cost]
    )
    for busy in (0.0, 0.3, 1.0):
        job = carried(predictor, f",utilization_ratio={busy}")
        assert job.solo.step_time_s == pytest.approx(step_s * (1 - busy + busy * more_s / busy_s))
        jobs = (Workload.parse(f"alpha:batch_size=64,utilization_ratio={busy}"), Workload("beta"))
        answer = predictor.predict(ColocationSet("a100", jobs, "mig"))
        device = answer.reasons[0].split("alpha on ")[1].split(",")[0]
        alone = ColocationSet(device, (carried(predictor, f",utilization_ratio={busy}", device),))
        assert answer.members[0].step_time_s.value == pytest.approx(
            predictor.predict(alone).members[0].step_time_s.value
        )


def test_what_was_carried_over_is_no_more_certain_than_on_the_card(predictor: Predictor) -> None:
    job = Workload.parse("alpha:batch_size=64,utilization_ratio=0.3")
    on_card, on_slice = (
        predictor.predict(ColocationSet(d, (w,)))
        for d, w in (("a100", job), (SLICE, carried(predictor, ",utilization_ratio=0.3")))
    )
    before = on_card.members[0].step_time_s
    after = as_uncertain(on_slice, "a100", [before]).members[0].step_time_s
    assert after.lower / after.value < before.lower / before.value
    assert after.upper / after.value > before.upper / before.value
    unchanged = as_uncertain(on_card, "a100", [before]).members[0].step_time_s
    assert (unchanged.lower, unchanged.upper) == pytest.approx((before.lower, before.upper))


def test_jobs_without_measurements_and_the_card_itself_stay_as_they_are(predictor: Predictor) -> None:
    assert carried(predictor, "") == Workload.parse("alpha:batch_size=64")
    measured = ",step_time_s=0.5"
    assert carried(predictor, measured, "a100") == Workload.parse(f"alpha:batch_size=64{measured}")
    assert transfer_from(object(), "a100") is None


def test_what_was_observed_in_the_place_itself_is_not_carried_over(predictor: Predictor) -> None:
    job = Workload.parse("alpha:batch_size=64")
    posterior = Posterior(predictor)
    posterior.observe(
        [
            Observation(ColocationSet("a100", (job,)), 0, 0.5, utilization_ratio=0.5),
            Observation(ColocationSet(SLICE, (job,), "mig"), 0, 0.7),
        ]
    )
    told, transfer = posterior.told("a100", "time-slice", job), transfer_from(posterior, "a100")
    assert transfer is not None
    assert transfer(told, "a100", 1.0) == told
    assert transfer(told, SLICE, 1.0).solo.step_time_s == pytest.approx(0.7, rel=0.01)
    other = transfer(told, "a100:mig=3g", 1.0)
    assert other == transferred(told, "a100", "a100:mig=3g", 1.0, predictor.fitted_.model.featurizer)
    assert transfer(told, SLICE, 0.5).solo.step_time_s != pytest.approx(0.7, rel=0.01)
    stated = Workload.parse("alpha:batch_size=64,step_time_s=0.4")  # on the whole card
    assert transfer(stated, SLICE, 1.0).solo.step_time_s == pytest.approx(0.7, rel=0.01)
    answer = predictor.predict(ColocationSet(SLICE, (transfer(told, SLICE, 1.0),)))
    assert as_uncertain(answer, "a100", [None]) == answer


def test_mig_and_the_whole_card_agree_on_a_measured_job(predictor: Predictor) -> None:
    jobs = tuple(map(Workload.parse, ("alpha:batch_size=64,step_time_s=5,utilization_ratio=0.01", "beta")))
    answer = predictor.predict(ColocationSet("a100", jobs, "mig"))
    assert answer.members[0].slowdown.value < 1.2
