from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layer_fits.fit import ROOFS, LayerTimeModel, Rows
from benchmarks.layer_fits.profile import LayerProfile
from predictor.freezing.allreduce import Exchange
from profiling.errors import InputError
from tests.benchmarks.layer_fits.profiles import profile


def truth(seed: int = 0, exchange: Exchange | None = None) -> LayerTimeModel:
    weights = np.random.default_rng(seed).uniform(0.0, 0.02, size=(1, 5))
    return LayerTimeModel(profile(seed=seed), weights, (ROOFS[9],), exchange or Exchange())


def rows_of(model: LayerTimeModel, gpus: tuple[int, ...] = (1,)) -> Rows:
    k, b, n = (v.ravel() for v in np.meshgrid(range(0, 12, 2), (4, 8, 16, 32), gpus, indexing="ij"))
    nodes = np.ceil(n / 4)
    return Rows.of(k, b, model.step_time_s(k, b, n, nodes), n, nodes)


def test_recovers_a_model_of_the_same_form() -> None:
    model = truth(3)
    fitted = LayerTimeModel.fit(model.profile, rows_of(model))
    k, b = np.array([1, 5, 9]), np.array([6.0, 12.0, 24.0])
    np.testing.assert_allclose(fitted.compute_s(k, b), model.compute_s(k, b), rtol=0.03)


def test_fits_the_exchange_of_several_gpus() -> None:
    model = truth(3, Exchange(0.1, 0.01, 0.0, 0.6, 0.1, 1.1, 0.02))
    rows = rows_of(model, (1, 2, 4, 8, 16))
    fitted = LayerTimeModel.fit(model.profile, rows)
    error = (
        fitted.step_time_s(rows.frozen_prefix, rows.batch_size, rows.gpus, rows.nodes) / rows.step_time_s - 1
    )
    assert np.abs(error).mean() < 0.03


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gpus=st.sampled_from([1, 2, 8, 16]), overlap=st.floats(0, 1))
def test_step_time_never_increases_with_the_prefix(seed: int, gpus: int, overlap: float) -> None:
    generator = np.random.default_rng(seed)
    shape = profile(seed=seed)
    rows = Rows.of(
        generator.integers(0, 12, 30), generator.choice([4, 8, 64], 30), generator.uniform(0.01, 1, 30)
    )
    fitted = LayerTimeModel.fit(shape, rows)
    exchange = Exchange(*generator.uniform(0, 0.3, 3), overlap_ratio=overlap)
    model = LayerTimeModel(shape, fitted.weights, fitted.roofs, exchange, rewrapped=True)
    times = model.step_time_s(np.arange(12), 16.0, gpus, max(gpus // 4, 1))
    assert np.all(np.diff(times) <= 1e-12)
    assert np.all(times >= 0)


def test_too_few_rows_are_rejected() -> None:
    with pytest.raises(InputError, match="at least 4 steps on one GPU"):
        LayerTimeModel.fit(profile(), Rows.of([0, 1], 8, 0.1))
    with pytest.raises(InputError, match="above 0"):
        Rows.of([0], 8, 0.0)
    with pytest.raises(InputError, match="finite numbers"):
        LayerProfile("x", np.ones(3), np.ones(2), np.ones(3))


def test_profile_of_published_shares() -> None:
    profile = LayerProfile.from_shares(
        "x", np.array([1.0, 0.5, 0.6]), np.array([1, 1, 0.5]), np.array([1, 0.2, 0])
    )
    np.testing.assert_allclose(profile.flops, [0.5, 0.0, 0.5])
