from __future__ import annotations

from benchmarks.layer_fits.winograd import Winograd
from tests.benchmarks.layer_fits.test_memory_fit import convolutions


def test_counts_transformed_tiles() -> None:
    winograd = Winograd.of(convolutions(2, samples=8, channels=128))
    # The first convolution's input is not an operator's output: not known, not transformed. ReLUs are none.
    assert winograd.channels.tolist() == [0, 0, 128, 0]
    assert winograd.tile_bytes[2] == 4 * 36 * 8 * 16 * 256
    assert winograd.used(256.0).sum() == 0
    assert winograd.used(128.0).sum() == 1
