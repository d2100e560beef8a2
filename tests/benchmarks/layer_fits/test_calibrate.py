from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.layer_fits.calibrate import START, MeasuredGraph, calibrate, predicted_s
from benchmarks.layer_fits.fit import Rows
from predictor.freezing.allreduce import Exchange
from predictor.freezing.layer_times import FrameworkCosts
from profiling.devices import get_device
from profiling.errors import InputError
from tests.predictor.freezing.graphs import graph

V100 = get_device("v100")


def test_recovers_the_overheads_of_a_framework() -> None:
    real = replace(START, device_factor=1.6, optimizer_launch_s=6e-5)
    measured = []
    for seed in (0, 1):
        made = graph(10, seed=seed)
        blank = MeasuredGraph(made, Rows.of(np.arange(10), 32, np.ones(10)), update_kernels=4.0)
        times = predicted_s(blank, V100, real)
        measured.append(MeasuredGraph(made, Rows.of(np.arange(10), 32, times), 4.0))
    overheads = calibrate(measured, V100)
    for network in measured:
        error = predicted_s(network, V100, overheads) / network.rows.step_time_s - 1
        assert np.abs(error).mean() < 0.03
    with pytest.raises(InputError, match="nothing to calibrate"):
        calibrate([], V100)


def test_invalid_settings_are_rejected() -> None:
    for options in ({"device_factor": 0.0}, {"launch_s": -1.0}):
        with pytest.raises(InputError, match="out of range"):
            FrameworkCosts(**options)
    with pytest.raises(InputError, match="out of range"):
        Exchange(overlap_ratio=1.5)
