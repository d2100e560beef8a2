"""Arrivals scaled to an offered load."""

from __future__ import annotations

from itertools import pairwise

import pytest

from profiling.errors import InputError
from scheduling.core.job import TraceJob
from scheduling.traces.load import at_load, offered_load
from tests.scheduling.tables import JOBS

TRACE = [TraceJob(f"job-{k}", JOBS[k], 100.0, 50.0 + 100.0 * k, gpus=1 + k % 2) for k in range(5)]


def test_load_is_work_over_capacity() -> None:
    # 1 + 2 + 1 + 2 + 1 GPUs for 100 steps of 2 s, on 4 GPUs within 400 s
    assert offered_load(TRACE, 4, lambda _: 2.0) == pytest.approx(1400 / 1600)
    scaled = at_load(TRACE, 0.5, 4, lambda _: 2.0)
    assert offered_load(scaled, 4, lambda _: 2.0) == pytest.approx(0.5)
    assert scaled[0].submit_s == 0.0
    assert [j.iterations for j in scaled] == [j.iterations for j in TRACE]
    gaps = [b.submit_s - a.submit_s for a, b in pairwise(scaled)]
    assert gaps == pytest.approx([175.0] * 4)


def test_traces_without_a_load() -> None:
    with pytest.raises(InputError, match="above 0"):
        at_load(TRACE, 0.0, 4, lambda _: 1.0)
    with pytest.raises(InputError, match="over time"):
        at_load(TRACE[:1], 0.5, 4, lambda _: 1.0)
