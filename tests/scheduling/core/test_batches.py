from __future__ import annotations

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.batches import BatchRange
from scheduling.core.job import TraceJob

OWN = Workload("a", batch_size=32)
RANGE = BatchRange((16, 32, 64, 128), 512, 96.0)


def test_progress_by_hand() -> None:
    # One GPU: 64 samples in 1.5 s are worth (96 + 32) / (96 + 64) = .8 each, 2 * .8 / 1.5 = 1.0667 own steps per
    # second; 128 in 2.5 s are worth 4 * (128 / 224) / 2.5 = .914, and 32 in 1 s exactly 1.
    assert RANGE.progress(OWN, 1, [1], [0.7, 1.0, 1.5, 2.5], 0.9) == pytest.approx([2 * 0.8 / 1.5])
    # Two GPUs with 64 each: 2 ** .9 times as many samples as one, worth 128 / 224.
    assert RANGE.progress(OWN, 1, [2], [0.7, 1.0, 1.5, 2.5], 0.9) == pytest.approx(
        [max(2**0.9 * 128 / 160, 2**0.9 * 2 / 1.5 * 128 / 224)]
    )


def test_a_single_size_without_noise_does_not_tune() -> None:
    only = BatchRange((32,), 10**6, 1e12)
    assert only.progress(OWN, 2, [1, 2, 4], [0.5], 0.9) == pytest.approx(
        [(k / 2) ** 0.9 / 0.5 for k in (1, 2, 4)]
    )


def test_the_total_batch_stays_within_its_range() -> None:
    steps = [1.0, 1.0, 1.0, 1.0]  # the largest batch is the best throughout
    wide = BatchRange((16, 32, 64, 128), 64, 1e9)
    assert wide.progress(OWN, 1, [1], steps, 1.0) == pytest.approx([2.0])
    # On half of its GPUs 32 each would be less than its own 64, which 64 on the one are.
    assert wide.progress(OWN, 2, [1], steps, 1.0) == pytest.approx([1.0])
    # Where not enough fits, the largest that does.
    short = [1.0, 1.0, np.inf, np.inf]
    assert wide.progress(OWN, 2, [1], short, 1.0) == pytest.approx([0.5])


def test_invalid_ranges() -> None:
    for sizes, noise in (((), 1.0), ((32, 16), 1.0), ((0, 16), 1.0), ((16,), 0.0), ((16,), float("nan"))):
        with pytest.raises(InputError):
            BatchRange(sizes, 64, noise)
    with pytest.raises(InputError, match="its own batch"):
        TraceJob("j", Workload("a", batch_size=8), 1.0, batches=RANGE)
