from __future__ import annotations

import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.traces.elastic import with_ranges

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


def test_a_range_of_the_trace_stays() -> None:
    own = TraceJob("own", Workload("a"), 10.0, gpus=2, min_gpus=2, max_gpus=2)
    assert with_ranges([own], 1.0, most=8) == [own]
    with pytest.raises(InputError, match="share"):
        with_ranges(TRACE, 1.5, most=8)
