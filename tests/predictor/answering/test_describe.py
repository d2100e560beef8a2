from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from predictor.fitted.intervals import NEW_DEVICE_LOG_ERROR
from predictor.predictor import Predictor
from predictor.types import Prediction
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload


def predicted(predictor: Predictor, device: str, *specs: str) -> Prediction:
    return predictor.predict(ColocationSet(device, tuple(map(Workload.parse, specs))))


@pytest.mark.parametrize(
    ("device", "spec", "expected"),
    [
        ("v100", "alpha", []),
        ("a100:mig=3g", "alpha", []),
        ("v100", "alpha:precision=amp", ["step times in amp were never measured on v100"]),
        ("h100", "alpha:precision=fp8", ["step times in fp8 were never measured on any GPU type"]),
        ("h100", "alpha", ["step times were never measured on this GPU type (h100)"]),
        ("h100", "alpha:step_time_s=0.02", []),
    ],
)
def test_unmeasured_step_times_are_stated(
    predictor: Predictor, device: str, spec: str, expected: list[str]
) -> None:
    answer = predicted(predictor, device, spec)
    assert list(answer.never_measured) == expected
    assert set(expected) <= set(answer.reasons)


def test_they_are_stated_once_for_a_set(predictor: Predictor) -> None:
    never = predicted(predictor, "h100", "alpha", "beta").never_measured
    assert len([text for text in never if text.startswith("step times")]) == 1


@pytest.mark.parametrize(
    ("device", "sharing", "options"),
    [
        ("h100", "time-slice", ""),
        ("p100", "mps", ""),
        ("v100", "time-slice", ":precision=amp"),
        ("v100", "time-slice", ":mode=inference"),
        ("v100", "time-slice", ":framework=tensorflow"),
    ],
)
def test_slowdowns_are_less_certain_where_something_was_never_measured(
    predictor: Predictor, device: str, sharing: str, options: str
) -> None:
    jobs = tuple(Workload.parse(f"{model}{options}") for model in ("alpha", "beta"))
    answer = predictor.predict(ColocationSet(device, jobs, sharing))
    intervals = predictor.fitted_.intervals
    assert answer.never_measured
    for member in answer.members:
        slow = member.slowdown
        width = float(intervals.half_width(np.log(slow.value), "graph")) * intervals.device_factor["graph"]
        assert math.log(slow.upper / slow.value) == pytest.approx(width)


def test_a_third_job_without_work_does_not_make_slowdowns_of_two_more_certain(predictor: Predictor) -> None:
    alone = "step_time_s=0.05,utilization_ratio"
    busy = (f"alpha:{alone}=0.9", f"beta:{alone}=0.8")
    answer = predicted(predictor, "v100", *busy, f"gamma:{alone}=0.001")
    for member in answer.members:
        slow = member.slowdown
        width = float(predictor.fitted_.intervals.half_width(np.log(slow.value), "solo"))
        assert math.log(slow.upper / slow.value) == pytest.approx(width, rel=0.01)


@pytest.mark.parametrize("options", ["batch_size=8", "batch_size=8,data_on_device=true"])
def test_step_times_in_fp8_are_less_certain(predictor: Predictor, options: str) -> None:
    amp, fp8 = (
        predicted(predictor, "h100", f"alpha:{options},precision={p}").members[0].solo_step_time_s
        for p in ("amp", "fp8")
    )
    assert fp8.upper / fp8.value > 1.05 * amp.upper / amp.value


@pytest.mark.parametrize("options", ["batch_size=8", "batch_size=8,data_on_device=true"])
@pytest.mark.parametrize("device", ["h100", "cpu"])
def test_step_times_on_an_unmeasured_type_are_less_certain(
    predictor: Predictor, options: str, device: str
) -> None:
    """Other processors were measured, but `cpu` is a core of any."""
    known, new = (
        predicted(predictor, name, f"alpha:{options}").members[0].solo_step_time_s
        for name in ("v100", device)
    )
    assert predictor.fitted_.model.featurizer.cost_model.has_measured(device) == (device == "cpu")
    assert math.log(new.upper / new.value) > math.log(known.upper / known.value)


def test_precision_of_resident_data_matters(predictor: Predictor) -> None:
    """The host's part, which dominates otherwise, does not depend on the precision."""
    widths = [
        (q := predicted(predictor, "v100", f"alpha:precision={p},{o}").members[0].solo_step_time_s).upper
        / q.value
        for o in ("data_on_device=true", "data_on_device=false")
        for p in ("fp32", "amp")
    ]
    assert widths[1] > 1.2 * widths[0]
    assert widths[3] == pytest.approx(widths[2])


@pytest.mark.parametrize("resident", ["true", "false"])
def test_a_precision_measured_nowhere_widens_intervals_once(predictor: Predictor, resident: str) -> None:
    def variance(device: str, precision: str) -> float:
        job = f"alpha:precision={precision},data_on_device={resident}"
        step_s = predicted(predictor, device, job).members[0].solo_step_time_s
        return math.log(step_s.upper / step_s.value) ** 2

    for device in ("rtx-4090", "h100"):
        added = variance(device, "fp8") - variance(device, "amp")
        assert added == pytest.approx(NEW_DEVICE_LOG_ERROR**2)


@pytest.mark.parametrize("share", [0.5, 0.8, 3.0])
def test_a_measured_step_that_contradicts_the_data_sheet_is_reported(
    predictor: Predictor, share: float
) -> None:
    job = Workload.parse("alpha:batch_size=64")
    step_s = share * predictor.fitted_.model.featurizer.job(job, "v100").cost.floor_s
    answer = predicted(predictor, "v100", f"alpha:batch_size=64,step_time_s={step_s}")
    assert any("check its unit" in reason for reason in answer.reasons) == (share < 0.6)


@pytest.mark.parametrize(("share", "is_reported"), [(1e-9, True), (0.9, True), (1.0, False)])
def test_measured_memory_below_the_jobs_state_is_reported(
    predictor: Predictor, share: float, is_reported: bool
) -> None:
    job = Workload.parse("alpha:batch_size=64")
    state_bytes = predictor.fitted_.model.featurizer.job(job, "v100").demand.state_bytes
    answer = predicted(predictor, "v100", f"alpha:batch_size=64,memory_bytes={share * state_bytes!r}")
    assert any("its measured memory" in reason for reason in answer.reasons) == is_reported


def test_a_predicted_step_of_more_than_two_weeks_is_refused(predictor: Predictor) -> None:
    job = "alpha:batch_size=1000000000,sm_share_ratio=0.02"
    with pytest.raises(
        InputError, match=r"alpha: a step would take .* s on v100.*two weeks.*lower its batch size"
    ):
        predicted(predictor, "v100", job)
    stated = predicted(predictor, "v100", f"{job},step_time_s=1e6")
    assert stated.members[0].solo_step_time_s.value == pytest.approx(1e6)


@pytest.mark.parametrize("device", ["v100", "h100"])
def test_lower_ends_respect_the_data_sheet_and_the_step_alone(predictor: Predictor, device: str) -> None:
    job = Workload("alpha", 4096)
    alone, together = predictor.predict_many([ColocationSet(device, (job,) * k) for k in (1, 2)])
    cost = predictor.fitted_.model.featurizer.job(job, device).cost
    assert 0.65 * cost.floor_s <= alone.members[0].step_time_s.lower <= alone.members[0].step_time_s.value
    assert together.members[0].step_time_s.lower >= together.members[0].solo_step_time_s.lower


@pytest.mark.parametrize(("factor", "is_reported"), [(1000.0, True), (50.0, False), (1.0, False)])
def test_a_measured_step_in_milliseconds_is_reported(
    predictor: Predictor, factor: float, is_reported: bool
) -> None:
    job = Workload.parse("alpha:batch_size=64")
    step_s = factor * predictor.fitted_.model.featurizer.job(job, "v100").cost.step_time_s
    answer = predicted(predictor, "v100", f"alpha:batch_size=64,step_time_s={step_s}")
    assert any("check that it is in seconds" in reason for reason in answer.reasons) == is_reported


@pytest.mark.parametrize(
    ("device", "share", "said"),
    [
        ("mi300x", "", "has no MPS"),
        ("k80", ":sm_share_ratio=0.5", "only from Volta on"),
        ("v100", ":sm_share_ratio=0.5", ""),
    ],
)
def test_what_a_device_lacks_of_mps_is_stated(
    predictor: Predictor, device: str, share: str, said: str
) -> None:
    jobs = (Workload.parse(f"alpha{share}"), Workload.parse("beta"))
    reasons = predictor.predict(ColocationSet(device, jobs, "mps")).reasons
    assert any(said in reason for reason in reasons if "MPS" in reason or not said)
    assert bool(said) or not any("has no MPS" in r or "only from Volta" in r for r in reasons)


@pytest.mark.parametrize(("device", "sharing"), [("v100", "time-slice"), ("v100", "mps"), ("a100", "mig")])
def test_a_device_is_busy_only_while_one_of_its_jobs_is(
    predictor: Predictor, device: str, sharing: str
) -> None:
    for specs in combinations(
        ("alpha", "beta:batch_size=4", "gamma:utilization_ratio=0.9,step_time_s=0.3", "delta"), 3
    ):
        answer = predictor.predict(ColocationSet(device, tuple(map(Workload.parse, specs)), sharing))
        shares = [m.utilization_ratio.value for m in answer.members]
        total = answer.total_utilization_ratio
        assert max(shares) <= total.value <= sum(shares) * (1 + 1e-9)
        assert total.lower <= total.value <= total.upper <= 1


@pytest.mark.parametrize(
    "options", ["", ":optimizer=adam", ":memory_bytes=9e9", ":memory_bytes=17e9", ":memory_bytes=1e6"]
)
def test_the_memory_of_a_job_alone_is_that_of_its_set(predictor: Predictor, options: str) -> None:
    answer = predicted(predictor, "v100", f"alpha{options}")
    own, total = answer.members[0].memory_bytes, answer.total_memory_bytes
    assert (own.value, own.lower, own.upper) == pytest.approx((total.value, total.lower, total.upper))
    assert answer.fits == (own.upper <= get_device("v100").memory_bytes)
