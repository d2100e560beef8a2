from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InputError
from scheduling.ring.duty import duty_cycle_timings
from scheduling.ring.fit import LinkSample, fit_link
from scheduling.ring.model import ring_timing, ring_timings
from tests.scheduling.ring.instances import cluster, job


@settings(max_examples=30, deadline=None)
@given(st.floats(10, 5000), st.floats(0, 1), st.floats(0.0001, 0.01))
def test_fit_recovers_the_parameters(bandwidth, alpha, xi2):
    place = replace(cluster(4, 4), inter_bandwidth=bandwidth, alpha=alpha, xi2=xi2, reduce_speed=1e15)
    samples = []
    for size, contention in [(5, 1), (50, 1), (50, 2), (20, 3)]:
        ring_job = job("a", 4, 0.1, size)
        time_s = ring_timing(place, ring_job, {0: 2, 1: 2}, contention).iteration_time_s
        samples.append(LinkSample(4, size, 2, contention, 0.1, time_s))
    fit = fit_link(samples)
    assert fit.inter_bandwidth == pytest.approx(bandwidth, rel=1e-4)
    assert fit.alpha == pytest.approx(alpha, rel=1e-3, abs=1e-4)
    assert fit.xi2 == pytest.approx(xi2, rel=1e-3, abs=1e-6)


def test_fit_refuses_uninformative_samples():
    sample = LinkSample(2, 10, 2, 1, 0.1, 0.2)
    with pytest.raises(InputError, match="three samples"):
        fit_link([sample])
    with pytest.raises(InputError, match="above the compute time"):
        fit_link([sample, sample, replace(sample, iteration_time_s=0.05)])


@pytest.mark.parametrize("compute_s", [0.001, 0.1, 10.0])
def test_duty_cycles_lie_between_alone_and_the_paper(compute_s):
    place = cluster(2, 2)
    jobs = {name: job(name, 2, compute_s, 125) for name in "ab"}
    placed = {name: {0: 1, 1: 1} for name in "ab"}
    alone = ring_timing(place, jobs["a"], placed["a"], 1).iteration_time_s
    paper = ring_timings(place, jobs, placed)["a"].iteration_time_s
    time_s = duty_cycle_timings(place, jobs, placed)["a"].iteration_time_s
    assert alone < time_s < paper
    share = (time_s - alone) / (paper - alone)
    assert share == pytest.approx({0.001: 0.97, 0.1: 0.62, 10.0: 0.01}[compute_s], abs=0.04)


def test_one_job_alone_has_no_rival():
    place, alone = cluster(2, 2), job("a", 2, 0.1, 125)
    timing = duty_cycle_timings(place, {"a": alone}, {"a": {0: 1, 1: 1}})["a"]
    assert timing.contention == pytest.approx(1)
    assert duty_cycle_timings(place, {"a": alone}, {"a": {0: 2}})["a"].contention == 0
