from __future__ import annotations

from dataclasses import replace

import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.traces.elastic import with_batches, with_ranges

TRACE = [TraceJob(f"j{k}", Workload("a"), 10.0, float(k), gpus=(1, 2, 3, 8)[k % 4]) for k in range(200)]


def test_a_share_of_the_jobs_gets_a_range() -> None:
    drawn = with_ranges(TRACE, 0.5, most=16, seed=1)
    assert drawn == with_ranges(TRACE, 0.5, most=16, seed=1)
    elastic = [job for job in drawn if job.max_gpus is not None]
    assert 70 < len(elastic) < 130
    for job in elastic:
        assert job.min_gpus is not None
        assert job.max_gpus is not None
        assert 1 <= job.min_gpus <= job.gpus <= job.max_gpus <= 16
    assert {job.gpus for job in elastic} == {1, 2, 3, 8}
    assert with_ranges(TRACE, 0.0, most=16) == TRACE


def test_ranges_in_the_trace_are_kept() -> None:
    own = TraceJob("own", Workload("a"), 10.0, gpus=2, min_gpus=2, max_gpus=2)
    assert with_ranges([own], 1.0, most=8) == [own]
    with pytest.raises(InputError, match="share"):
        with_ranges(TRACE, 1.5, most=8)


def test_drawn_tunable_batches() -> None:
    def doubled(workload: Workload, largest: int) -> list[int]:
        assert workload.batch_size == 32
        return [size for size in (16, 32, 64, 128, 256) if size <= largest]

    trace = [replace(job, workload=Workload("a", batch_size=32)) for job in TRACE]
    drawn = with_batches(trace, 0.5, doubled, seed=1)
    assert drawn == with_batches(trace, 0.5, doubled, seed=1)
    tunable = [job for job in drawn if job.batches is not None]
    assert 70 < len(tunable) < 130
    for job in tunable:
        assert job.batches is not None
        total = 32 * job.gpus
        assert job.batches.largest in {4 * total, 8 * total, 16 * total, 32 * total}
        assert total <= job.batches.noise_scale <= 64 * total
    assert (
        with_batches(drawn, 1.0, lambda *_: [], seed=2) == drawn
    )  # existing ranges are kept, and jobs without a choice get none
    assert with_batches(TRACE, 1.0, doubled) == TRACE  # no batch of their own
    with pytest.raises(InputError):
        with_batches(trace, 1.5, doubled)
