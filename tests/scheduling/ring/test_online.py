from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError
from scheduling.ring.engine import Execution, Gpu, RingRun
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.online import (
    ADMISSIONS,
    BACKFILLS,
    ONLINE_PICKS,
    ORDERS,
    OnlineConfig,
    RingArrival,
    choose,
    run_online,
)
from tests.scheduling.ring.instances import cluster, instances, job, replay

CONFIGS = [OnlineConfig(*c) for c in itertools.product(ORDERS, ONLINE_PICKS, BACKFILLS, ADMISSIONS)]


@settings(max_examples=120, deadline=None)
@given(instances(), st.data(), st.sampled_from(CONFIGS), st.sampled_from([None, 10.0]))
def test_every_job_ends_after_its_arrival_and_the_run_replays(instance, data, config, slot_s):
    place, jobs = instance
    execution = Execution(slot_s=slot_s)
    arrivals = [RingArrival(j, data.draw(st.floats(0, 60))) for j in jobs]
    result = run_online(place, arrivals, config, execution)
    assert {a.job for a in result.schedule.assignments} == {j.name for j in jobs}
    for assignment in result.schedule.assignments:
        assert assignment.start_s >= result.arrivals_s[assignment.job]
    again = replay(place, jobs, result.schedule, execution)
    assert again.makespan_s == pytest.approx(result.schedule.makespan_s, rel=1e-9)
    summary = result.summary()
    assert summary["jobs"] == len(jobs)
    # The mean of equal times is rounded.
    assert summary["mean_queue_s"] <= summary["mean_jct_s"] <= summary["makespan_s"] * (1 + 1e-12)


def test_backfilling_lets_a_short_job_pass_and_reserve_lets_no_long_one():
    place = cluster(4)
    # 3 GPUs are busy for 5 s; the wide job waits for them, a short and a long single-GPU job come behind it.
    jobs = [
        job("busy", 3, 0.05, 0, 100),
        job("wide", 4, 0.05, 0, 100),
        job("short", 1, 0.05, 0, 20),
        job("long", 1, 0.05, 0, 400),
    ]
    arrivals = [RingArrival(j, 0.1 * n) for n, j in enumerate(jobs)]

    def starts(backfill: str) -> dict[str, float]:
        result = run_online(place, arrivals, OnlineConfig(backfill=backfill))
        return {a.job: a.start_s for a in result.schedule.assignments}

    none, free, reserve = starts("none"), starts("any"), starts("reserve")
    assert none["short"] > none["wide"]
    assert free["short"] == pytest.approx(0.2)
    assert free["long"] < free["wide"]
    assert reserve["short"] == pytest.approx(0.2)
    assert reserve["wide"] == pytest.approx(none["wide"])
    assert reserve["long"] > reserve["wide"]


def running(place: RingCluster, jobs: dict[RingJob, list[Gpu]]) -> RingRun:
    run = RingRun(place, Execution())
    for ring, gpus in jobs.items():
        run.start(ring, gpus)
    return run


def test_admission_holds_a_ring_back_that_would_cost_more_than_it_gains():
    place = cluster(2, 2)
    heavy = [job(name, 2, 0.01, 125, 100) for name in "ab"]
    single = job("s", 1, 0.1, 0, 1)
    other = job("t", 1, 0.1, 0, 400)
    run = running(place, {heavy[0]: [(0, 0), (1, 0)], single: [(0, 1)]})
    assert choose([job("n", 1)], run, OnlineConfig()) is not None
    run = running(place, {heavy[0]: [(0, 0), (1, 0)]})
    start = choose([heavy[1]], run, OnlineConfig())
    assert start is not None
    assert start[1] == ((0, 1), (1, 1))
    config = OnlineConfig(admission="cheaper-than-waiting")
    assert choose([heavy[1]], run, config) is None
    assert (
        choose([heavy[1], other], run, OnlineConfig("arrival", "pack", "any", config.admission)) is not None
    )


def test_admission_counts_the_newcomers_own_delay_in_the_literal_form_too():
    place = replace(cluster(2, 2, alpha=0), xi1=0.5)
    # A pair alone has twice the bandwidth of one of two: b loses as many steps' exchange as it has steps.
    run = RingRun(place, Execution(clamp=False))
    run.start(job("a", 2, 0.0, 1250, 20), [(0, 0), (1, 0)])
    config = OnlineConfig(admission="cheaper-than-waiting")
    assert choose([job("b", 2, 0.0, 1250, 100)], run, config) is None


def test_admission_counts_the_work_that_is_left_now():
    """A job that is nearly done is delayed little, so nobody waits for it."""
    run = running(cluster(2, 2), {job("a", 2, 0.2, 125, 100): [(0, 0), (1, 0)]})
    newcomer = job("b", 2, 0.0, 125, 1)
    config = OnlineConfig(admission="cheaper-than-waiting")
    assert choose([newcomer], run, config) is not None
    run.now_s = 0.75 * run.next_exit_s()
    assert choose([newcomer], run, config) is not None


def test_choosing_does_not_change_the_state():
    place = cluster(2, 2, 4)
    run = running(place, {job(name, 2, 0.05, 60, 200): [(0, n), (1, n)] for n, name in enumerate("ab")})
    before = [set(idle) for idle in run.idle]
    assert choose([job("c", 4)], run, OnlineConfig()) == (job("c", 4), tuple((2, g) for g in range(4)))
    assert run.idle == before


def test_invalid_settings():
    with pytest.raises(InputError, match="pick"):
        OnlineConfig(pick="best")
    with pytest.raises(InputError, match="arrival_s"):
        RingArrival(job("a", 1), -1)
    with pytest.raises(InputError, match="each job name once"):
        run_online(cluster(1), [RingArrival(job("a", 1)), RingArrival(job("a", 1))])
    with pytest.raises(InfeasibleError):
        run_online(cluster(1), [RingArrival(job("a", 2))])
    assert run_online(cluster(1), []).summary()["jobs"] == 0
