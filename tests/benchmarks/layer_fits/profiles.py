"""Small profiles for the tests of the fits."""

from __future__ import annotations

import numpy as np

from benchmarks.layer_fits.profile import LayerProfile


def profile(layers: int = 12, seed: int = 0) -> LayerProfile:
    draw = np.random.default_rng(seed).uniform(0.1, 1.0, size=(3, layers))
    return LayerProfile("synthetic", draw[0] * 1e9, draw[1] * 1e7, draw[2] * 1e6)
