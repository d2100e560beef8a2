"""Memory of jobs of which another batch size or frozen prefix was observed alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from predictor import load_predictor
from predictor.examples.observations import Observation
from predictor.fitted.device_memory import optimizer_temporary_bytes
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.devices import get_device
from profiling.workload import ColocationSet, SoloProfile, Workload

BATCHES = (8, 16, 32, 64, 128)


def job(batch_size: int, frozen_prefix: int = 0, **options: object) -> Workload:
    return Workload("beta", batch_size, frozen_prefix=frozen_prefix, **options)  # type: ignore[arg-type]


def alone(workload: Workload, device: str = "v100") -> ColocationSet:
    return ColocationSet(device, (workload,))


def memory(predictor: Predictor | Posterior, *jobs: Workload, device: str = "v100") -> list[float]:
    arrays = predictor.predict_arrays([alone(workload, device) for workload in jobs])
    return [float(value) for value in arrays.memory_bytes[:, 0]]


def state_bytes(predictor: Predictor, workload: Workload, device: str = "v100") -> float:
    return predictor.fitted_.model.featurizer.job(workload, device).demand.state_bytes


def off(predictor: Predictor, workload: Workload, factor: float) -> Observation:
    """Its memory besides state is `factor` times the predicted."""
    (predicted,), state = memory(predictor, workload), state_bytes(predictor, workload)
    step_s = float(predictor.predict_arrays([alone(workload)]).step_time_s[0, 0])
    return Observation(alone(workload), 0, step_s, memory_bytes=state + factor * (predicted - state))


def seen(predictor: Predictor, *observations: Observation) -> Posterior:
    posterior = Posterior(predictor)
    posterior.observe(observations)
    return posterior


def factors(predictor: Predictor, posterior: Posterior, *jobs: Workload) -> list[float]:
    """How many times as much memory besides state each takes as the predictor says."""
    state = [state_bytes(predictor, workload) for workload in jobs]
    pairs = zip(memory(posterior, *jobs), memory(predictor, *jobs), state, strict=True)
    return [(now - known) / (before - known) for now, before, known in pairs]


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_other_batch_sizes_are_off_by_the_same_factor(predictor: Predictor, factor: float) -> None:
    posterior = seen(predictor, off(predictor, job(32), factor))
    assert factors(predictor, posterior, *map(job, BATCHES)) == pytest.approx([factor] * 5, rel=0.01)
    assert factors(predictor, posterior, job(64, gradient_accumulation=2)) == pytest.approx(
        [factor], rel=0.01
    )
    unrelated = job(64, precision="amp"), job(64, mode="inference"), Workload("alpha", 64)
    assert memory(posterior, *unrelated) == memory(predictor, *unrelated)
    assert memory(posterior, job(64), device="p100") == memory(predictor, job(64), device="p100")


def test_what_is_stated_stays(predictor: Predictor) -> None:
    posterior = seen(predictor, off(predictor, job(32), 1.5))
    assert memory(posterior, job(64, solo=SoloProfile(memory_bytes=3e9))) == [3e9]


def test_between_two_observed_batch_sizes(predictor: Predictor) -> None:
    posterior = seen(predictor, off(predictor, job(16), 1.2), off(predictor, job(128), 1.6))
    first, second, between, _, last = factors(predictor, posterior, *map(job, BATCHES))
    assert first == pytest.approx(1.2, rel=0.01)
    assert second == pytest.approx(1.2, rel=0.01)
    assert 1.2 < between < 1.6
    assert last == pytest.approx(1.6, rel=0.01)


@pytest.mark.parametrize(
    "observed", [((32, 0, 0.9), (32, 3, 0.8)), ((16, 2, 1.5),), ((64, 0, 0.6),), ((32, 0, 0.7), (64, 0, 0.8))]
)
def test_memory_grows_with_the_batch_and_falls_with_the_frozen_prefix(
    predictor: Predictor, observed: tuple[tuple[int, int, float], ...]
) -> None:
    posterior = seen(predictor, *(off(predictor, job(b, k), factor) for b, k, factor in observed))
    table = np.array([memory(posterior, *(job(b, k) for b in BATCHES)) for k in range(4)])
    for fewer, more in pairwise(table):
        assert (more <= fewer * (1 + 1e-9)).all()
    assert (np.diff(table, axis=1) >= 0.0).all()


def test_a_larger_batch_than_the_observed_one_does_not_fit(predictor: Predictor) -> None:
    batch = max(2**k for k in range(4, 20) if predictor.predict(alone(job(2 ** (k + 1)))).fits)
    large, twice, factor = job(batch), alone(job(2 * batch)), 2.9
    posterior = seen(predictor, off(predictor, large, factor))
    answer, arrays = posterior.predict(twice), posterior.predict_arrays([twice])
    assert not answer.fits
    assert not arrays.fits[0]
    assert any(reason.startswith("does not fit") for reason in answer.reasons)
    assert any("memory follows from that observed alone of a job" in reason for reason in answer.reasons)
    assert not any("memory follows" in reason for reason in posterior.predict(alone(large)).reasons)


def test_all_prediction_methods_agree(predictor: Predictor) -> None:
    posterior = seen(predictor, off(predictor, job(32), 1.5), off(predictor, job(64, 2), 0.8))
    sets = [ColocationSet("v100", (job(b, k), Workload("alpha", 16))) for b in BATCHES for k in (0, 1, 2)]
    arrays = posterior.predict_arrays(sets)
    rows = posterior.predict_rows(posterior.rows(sets), "time-slice")
    answers = posterior.predict_many(sets)
    for name in ("memory_bytes", "memory_upper_bytes", "fits"):
        np.testing.assert_array_equal(getattr(arrays, name), getattr(rows, name))
    np.testing.assert_allclose(
        [[m.memory_bytes.value for m in a.members] for a in answers], arrays.memory_bytes
    )
    np.testing.assert_allclose([a.total_memory_bytes.upper for a in answers], arrays.memory_upper_bytes)


def test_neither_order_nor_number_of_calls_matters(predictor: Predictor) -> None:
    observations = [
        off(predictor, job(16), 1.3),
        off(predictor, job(64), 1.1),
        off(predictor, job(32, 2), 0.8),
    ]
    asked = [job(b, k) for b in BATCHES for k in (0, 1, 2, 3)]
    expected = memory(seen(predictor, *observations), *asked)
    for some in permutations(observations):
        posterior = Posterior(predictor)
        for observation in some:
            posterior = posterior.extended([observation])
            memory(posterior, *asked[::2])
        assert memory(posterior, *asked) == expected


def test_implausible_memory_says_nothing_of_other_jobs(predictor: Predictor) -> None:
    asked = job(16), job(64), job(128, 2)
    for observation in (off(predictor, job(32), 4.0), off(predictor, job(32), 0.2)):
        assert memory(seen(predictor, observation), *asked) == memory(predictor, *asked)


def test_nor_does_that_of_a_framework_that_reserves_the_device(predictor: Predictor) -> None:
    room = get_device("v100").memory_bytes
    batch = next(2**k for k in range(6, 20) if memory(predictor, job(2**k))[0] > 0.4 * room)
    for framework, carries in (("torch", True), ("tensorflow", False)):
        large = job(batch, framework=framework)
        observation = replace(off(predictor, large, 1.0), memory_bytes=0.95 * room)
        smaller = replace(large, batch_size=batch // 2)
        now, before = memory(seen(predictor, observation), smaller), memory(predictor, smaller)
        assert (now != before) == carries


def test_it_is_said_whether_memory_follows(predictor: Predictor) -> None:
    posterior = seen(predictor, off(predictor, job(32), 1.5))

    def follows(workload: Workload, device: str = "v100") -> bool:
        return any(
            "its memory follows" in reason for reason in posterior.predict(alone(workload, device)).reasons
        )

    assert follows(job(64, 2))
    assert not follows(job(64), "p100")
    assert not follows(job(64, solo=SoloProfile(memory_bytes=3e9)))


def test_an_optimizer_that_allocates_less_makes_no_larger_batch_smaller() -> None:
    predictor = load_predictor()
    small, large = (Workload("roberta-large-qnli", size) for size in (1, 16))
    (predicted, then), captured = (
        memory(predictor, small, large),
        predictor.fitted_.model.featurizer.job(small, "v100"),
    )
    peak = (
        predicted - optimizer_temporary_bytes(captured) + captured.demand.activation_bytes
    )  # of `fused=True`
    assert peak < 0.95 * predicted
    posterior = seen(predictor, Observation(alone(small), 0, 0.1, memory_bytes=peak))
    assert memory(posterior, small, large) == pytest.approx([peak, then], rel=0.01)  # told to 1 %
