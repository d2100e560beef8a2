from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.examples.featurizer import Featurizer
from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes
from predictor.freezing import layer_throughput
from profiling.capture.derive import with_accumulation
from profiling.errors import InputError, LimitError
from profiling.workload import SoloProfile, Workload
from tests.predictor.freezing.graphs import graph

JOB = Workload("synthetic", batch_size=32)


def source(*size: int, **options: float) -> Featurizer:
    made = graph(*size, **options)  # type: ignore[arg-type]
    return Featurizer(lambda _: made)


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 20),
    seed=st.integers(0, 10**6),
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    device=st.sampled_from(["v100", "t4", "a100", "cpu"]),
    kernels=st.floats(0, 100),
)
def test_non_increasing_in_frozen_prefix(
    layers: int, seed: int, gpus: int, device: str, kernels: float
) -> None:
    made = source(layers, seed=seed, kernels=kernels)
    by_prefix = [
        layer_throughput(JOB, device, k, gpus, nodes=max(gpus // 4, 1), featurizer=made)
        for k in range(layers + 1)
    ]
    for before, after in itertools.pairwise(by_prefix):
        assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
        assert after.memory_bytes <= before.memory_bytes * (1 + 1e-12)
    assert by_prefix[0].speedup == pytest.approx(1.0)
    assert all(answer.step_time_s > 0 and answer.exchange_s >= 0 for answer in by_prefix)
    # With everything frozen, a step is a forward pass, and there is nothing to exchange.
    last = by_prefix[-1]
    assert last.exchange_s == last.optimizer_s == last.unfrozen_parameter_ratio == 0.0


def test_backward_pass_saves_no_more_than_the_step_where_the_host_is_slow() -> None:
    # Launches take most of the step, and an exchange between nodes hides behind the backward pass.
    job = Workload.parse("torchvision/mobilenet_v3_small:batch_size=8")
    for gpus, nodes in ((2, 2), (16, 4)):
        answers = [layer_throughput(job, "v100", k, gpus, nodes=nodes) for k in range(0, 88, 3)]
        for before, after in itertools.pairwise(answers):
            assert after.step_time_s <= before.step_time_s
            assert after.forward_s == pytest.approx(before.forward_s)


@pytest.mark.parametrize("rewrapped", [True, False])
def test_inference_updates_and_exchanges_nothing(rewrapped: bool) -> None:
    made, job = source(6), replace(JOB, mode="inference")
    one, *several = (
        layer_throughput(job, "v100", k, gpus, nodes=gpus // 4 or 1, rewrapped=rewrapped, featurizer=made)
        for k, gpus in ((0, 1), (0, 8), (3, 8))
    )
    for answer in several:
        assert answer.optimizer_s == answer.exchange_s == answer.unfrozen_parameter_ratio == 0.0
        assert answer.backward_s == pytest.approx(0.0, abs=1e-12)
        assert answer.step_time_s == pytest.approx(one.step_time_s)
        assert answer.speedup == pytest.approx(1.0)


def test_parts_sum_to_the_step() -> None:
    answer = layer_throughput(JOB, "v100", 2, gpus=4, featurizer=source())
    parts = answer.forward_s + answer.backward_s + answer.optimizer_s + answer.exchange_s + answer.overhead_s
    assert parts == pytest.approx(answer.step_time_s)
    assert answer.samples_per_s == pytest.approx(4 * 32 / answer.step_time_s)
    assert answer.to_json()["frozen_prefix"] == 2


def test_solo_measurement_sets_the_scale() -> None:
    made = source()
    job = Workload("synthetic", batch_size=32, solo=SoloProfile(step_time_s=0.5))
    assert layer_throughput(job, "v100", featurizer=made).step_time_s == pytest.approx(0.5)
    free, anchored = (layer_throughput(j, "v100", 3, featurizer=made) for j in (JOB, job))
    assert anchored.anchored
    assert not free.anchored
    assert anchored.speedup == pytest.approx(free.speedup)
    frozen = Workload("synthetic", batch_size=32, frozen_prefix=3, solo=SoloProfile(step_time_s=0.5))
    assert layer_throughput(frozen, "v100", featurizer=made).step_time_s == pytest.approx(0.5)
    assert layer_throughput(frozen, "v100", 0, featurizer=made).step_time_s > 0.5


def test_a_step_measured_with_another_prefix_is_answered_for_that_prefix() -> None:
    made = source()
    free = [layer_throughput(JOB, "v100", k, featurizer=made) for k in range(7)]
    solo = {0: SoloProfile(step_time_s=0.5), 3: SoloProfile(step_time_s=0.2, memory_bytes=7e9)}
    for own in (0, 2):  # whichever prefix the job is asked with
        job = replace(JOB, frozen_prefix=own)
        points = [layer_throughput(job, "v100", k, measured=solo, featurizer=made) for k in range(7)]
        times = [point.step_time_s for point in points]
        assert [times[0], times[3]] == pytest.approx([0.5, 0.2])
        assert times[2] == pytest.approx(max(0.5 * free[2].step_time_s / free[0].step_time_s, 0.2))
        assert times[5] == pytest.approx(0.2 * free[5].step_time_s / free[3].step_time_s)
        assert times == sorted(times, reverse=True)
        assert points[3].speedup == pytest.approx(2.5)
        assert points[3].memory_bytes == 7e9
        assert points[5].memory_bytes - 7e9 == pytest.approx(free[5].memory_bytes - free[3].memory_bytes)


def test_stated_measurements_take_precedence_over_observed_ones() -> None:
    job = replace(JOB, solo=SoloProfile(step_time_s=0.4))
    solo = {0: SoloProfile(step_time_s=0.5, memory_bytes=7e9)}
    point = layer_throughput(job, "v100", measured=solo, featurizer=source())
    assert point.step_time_s == pytest.approx(0.4)
    assert point.memory_bytes == 7e9


def test_cache_skips_the_frozen_forward_pass() -> None:
    made = source()
    plain = layer_throughput(JOB, "v100", 3, featurizer=made)
    fast = layer_throughput(JOB, "v100", 3, cache=1e15, featurizer=made)
    slow = layer_throughput(JOB, "v100", 3, cache=1e6, featurizer=made)
    assert fast.forward_s < plain.forward_s < slow.forward_s
    assert layer_throughput(JOB, "v100", 0, cache=True, featurizer=made).step_time_s == pytest.approx(
        layer_throughput(JOB, "v100", 0, featurizer=made).step_time_s
    )


def test_freezing_after_wrapping_exposes_the_exchange() -> None:
    made = source()
    again = layer_throughput(JOB, "v100", 4, gpus=16, nodes=4, featurizer=made)
    before = layer_throughput(JOB, "v100", 4, gpus=16, nodes=4, rewrapped=False, featurizer=made)
    assert before.exchange_s > again.exchange_s


@pytest.mark.parametrize(
    "options",
    [
        {"frozen_prefix": -1},
        {"frozen_prefix": 7},
        {"gpus": 0},
        {"gpus": True},
        {"gpus": 2, "nodes": 3},
        {"cache": -1.0},
    ],
)
def test_invalid_numbers_are_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="expected"):
        layer_throughput(JOB, "v100", **options, featurizer=source())  # type: ignore[arg-type]


def test_samples_of_all_passes_of_a_step_count() -> None:
    made = Featurizer(lambda workload: with_accumulation(graph(6), workload.gradient_accumulation))
    one = layer_throughput(JOB, "v100", 0, featurizer=made)
    four = layer_throughput(replace(JOB, gradient_accumulation=4), "v100", 0, featurizer=made)
    assert four.samples_per_s * four.step_time_s == pytest.approx(4 * one.samples_per_s * one.step_time_s)


def test_zoo_model() -> None:
    job = Workload.parse("resnet18-cifar:batch_size=32")
    by_prefix = [layer_throughput(job, "v100", k) for k in (0, 20, 40)]
    assert by_prefix[0].total_layers == 41
    assert by_prefix[0].step_time_s > by_prefix[1].step_time_s > by_prefix[2].step_time_s
    assert by_prefix[0].memory_bytes > by_prefix[1].memory_bytes > by_prefix[2].memory_bytes


def test_memory_equals_the_predictors_and_measurements_are_adjusted() -> None:
    made, heads = source(), HeadCalibration(context_bytes=1e9)
    asked = [layer_throughput(JOB, "v100", k, featurizer=made, heads=heads).memory_bytes for k in (0, 3)]
    predicted = [
        member_memory_bytes(made.job(replace(JOB, frozen_prefix=k), "v100"), SoloProfile(), heads)
        for k in (0, 3)
    ]
    assert asked == predicted
    measured = replace(JOB, solo=SoloProfile(memory_bytes=5e9))
    at_measured, moved = (
        layer_throughput(measured, "v100", k, featurizer=made, heads=heads).memory_bytes for k in (0, 3)
    )
    assert at_measured == 5e9
    assert moved - at_measured == pytest.approx(predicted[1] - predicted[0])


def test_work_grows_with_layers_times_operators_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("predictor.freezing.layer_times"), "_MOST_LOOKS", 6 * 12)
    assert layer_throughput(JOB, "v100", 1, featurizer=source(6)).total_layers == 6
    with pytest.raises(LimitError, match=r"too many layers.*at most 5 for 14 operators, got 7"):
        layer_throughput(JOB, "v100", 1, featurizer=source(7))
