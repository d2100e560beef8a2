from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError
from scheduling.ring.engine import Execution, RingRun
from scheduling.ring.fabric import Fabric
from scheduling.ring.model import ring_timings
from tests.scheduling.ring.instances import cluster, instances, job

SPLIT_A = ((0, 0), (1, 0))
SPLIT_B = ((0, 1), (1, 1))


def test_rates_change_when_a_neighbour_comes_and_goes():
    # m = 125 MB between two workers: 125 / 1250 = 0.1 s of exchange alone, 0.22 s at p = 2 (alpha 0.2).
    a, b = job("a", 2, 0.1, 125, 100), job("b", 2, 0.1, 125, 10)
    place = cluster(2, 2)
    rest = 0.1 + 62.5 / 20000 + 0.002
    run = RingRun(place)
    run.start(a, SPLIT_A)
    run.advance(5.0)
    run.start(b, SPLIT_B)
    assert run.next_exit_s() == pytest.approx(5 + 10 * (rest + 0.22))
    assert run.leave() == ["b"]
    left = 100 - 5 / (rest + 0.1) - 10
    schedule = run.finish()
    assert schedule.makespan_s == pytest.approx(5 + 10 * (rest + 0.22) + left * (rest + 0.1))


def test_slots_count_whole_iterations():
    # tau = 0.3 + small: 3 iterations in a slot of 1 s, so 10 iterations take 4 slots.
    ring_job = job("a", 1, 0.3, 0, 10)
    run = RingRun(cluster(1), Execution(slot_s=1.0))
    run.start(ring_job, [(0, 0)])
    assert run.finish().makespan_s == 4.0


def test_an_iteration_longer_than_a_slot_is_an_error():
    run = RingRun(cluster(1), Execution(slot_s=1.0))
    run.start(job("a", 1, 1.5), [(0, 0)])
    with pytest.raises(InfeasibleError, match="never ends"):
        run.finish()


@pytest.mark.parametrize(
    "gpus", [[(0, 0)], [(0, 0), (0, 0)], [(0, 0), (0, 9)], [(0, 0), (5, 0)], [(0, 0), (0, 1), (1, 0)]]
)
def test_gangs_that_cannot_start(gpus):
    with pytest.raises(InputError):
        RingRun(cluster(2, 2)).start(job("a", 2), gpus)


def test_a_gpu_runs_one_job_at_a_time():
    run = RingRun(cluster(1))
    run.start(job("a", 1), [(0, 0)])
    with pytest.raises(InputError, match="not idle"):
        run.start(job("b", 1), [(0, 0)])


@settings(max_examples=60, deadline=None)
@given(
    instances(),
    st.randoms(use_true_random=False),
    st.sampled_from([Fabric(), Fabric(2, 2.0), Fabric(2, 4.0, 2)]),
)
def test_running_rates_equal_the_model_at_every_moment(instance, source, fabric):
    """The incremental bookkeeping equals equations 6 to 8 computed afresh; capacities are respected."""
    place, jobs = instance
    run = RingRun(place, Execution(fabric))
    for ring_job in jobs:
        while sum(map(len, run.idle)) < ring_job.gpus:
            run.leave()
        idle = [(s, g) for s, gpus in enumerate(run.idle) for g in sorted(gpus)]
        run.start(ring_job, source.sample(idle, ring_job.gpus))
        fresh = ring_timings(
            place,
            {name: r.job for name, r in run.running.items()},
            {name: r.placement for name, r in run.running.items()},
            fabric=fabric,
        )
        assert {name: r.timing for name, r in run.running.items()} == fresh
        for server, count in enumerate(place.servers):
            used = sum(r.placement.get(server, 0) for r in run.running.values())
            assert used + len(run.idle[server]) == count
    schedule = run.finish()
    assert {a.job for a in schedule.assignments} == {j.name for j in jobs}
    assert run._flows == dict.fromkeys(run._flows, 0)
