from __future__ import annotations

from benchmarks.layer_fits.winograd import Winograd
from tests.benchmarks.layer_fits.test_memory_fit import convolutions


def test_counts_transformed_tiles() -> None:
    found = Winograd.of(convolutions(2, samples=8, channels=128))
    # The first convolution's input is not an operator's output: not known, not transformed. ReLUs are none.
    assert found.channels.tolist() == [0, 0, 128, 0]
    assert found.flops[2] == 2 * 36 * 8 * 16 * 128 * 128
    assert found.tile_bytes[2] == 4 * 36 * 8 * 16 * 256
    assert found.used(256.0).sum() == 0
    assert found.used().sum() == 1
