from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.errors import InputError
from scheduling.ring.fabric import Fabric
from scheduling.ring.model import (
    RingCluster,
    RingJob,
    check_placement,
    iterations_per_slot,
    ring_timing,
    ring_timings,
    sharing_cost,
)

CLUSTER = RingCluster(1250, 50000, 20000, 0.2, 1, 0.001, (4, 4, 8))
JOB = RingJob("a", 4, 100, 0.0002, 64, 0.02, 1000)
TWO = {"a": JOB, "b": replace(JOB, name="b")}


def test_one_server_has_no_contention():
    timing = ring_timings(CLUSTER, TWO, {"a": {0: 4}})["a"]
    assert (timing.contention, timing.bandwidth) == (0, 50000)
    assert timing.iteration_time_s == pytest.approx(0.04055, abs=1e-12)


def test_split_alone():
    timing = ring_timings(CLUSTER, TWO, {"a": {0: 2, 1: 2}})["a"]
    assert (timing.contention, timing.bandwidth) == (1, 1250)
    assert timing.iteration_time_s == pytest.approx(0.15855, abs=1e-12)


def test_two_split_jobs_on_the_same_servers():
    for timing in ring_timings(CLUSTER, TWO, {"a": {0: 2, 1: 2}, "b": {0: 2, 1: 2}}).values():
        assert timing.contention == 2
        assert timing.bandwidth == pytest.approx(568.1818181818)
        assert timing.iteration_time_s == pytest.approx(0.30255, abs=1e-12)


def test_contention_is_the_worst_server_of_the_job_and_whole_jobs_do_not_count():
    jobs = {
        name: RingJob(name, gpus, 100, 0, 1, 0.1, 10)
        for name, gpus in [("a", 4), ("b", 2), ("c", 2), ("w", 2)]
    }
    timings = ring_timings(
        CLUSTER, jobs, {"a": {0: 2, 1: 1, 2: 1}, "b": {1: 1, 2: 1}, "c": {0: 1, 2: 1}, "w": {2: 2}}
    )
    assert {name: timing.contention for name, timing in timings.items()} == {"a": 3, "b": 3, "c": 3, "w": 0}


def test_literal_k_below_one_gives_more_than_the_link_and_clamped_k_does_not():
    half = replace(CLUSTER, xi1=0.5)
    placed = {"a": {0: 2, 1: 2}}
    assert ring_timings(half, TWO, placed)["a"].bandwidth == 1250
    assert ring_timings(half, TWO, placed, clamp=False)["a"].bandwidth == pytest.approx(1250 / 0.4)
    with pytest.raises(InputError, match="not positive"):
        ring_timing(replace(half, alpha=1), JOB, {0: 2, 1: 2}, 1, clamp=False)


def test_one_gpu_moves_nothing():
    timing = ring_timing(CLUSTER, RingJob("s", 1, 100, 0.001, 10, 0.02, 5), {0: 1}, 0)
    assert timing.iteration_time_s == pytest.approx(0.031)


def test_iterations_per_slot_is_the_floor():
    timing = ring_timing(CLUSTER, JOB, {0: 4}, 0)
    assert iterations_per_slot(timing, 1.0) == 24
    assert iterations_per_slot(replace(timing, iteration_time_s=0.1), 1.0) == 10
    assert iterations_per_slot(replace(timing, iteration_time_s=1.5), 1.0) == 0


@given(st.floats(0, 2), st.floats(1, 50), st.floats(0, 5))
def test_sharing_cost_grows_with_contenders_and_loss(alpha, k, more):
    assert sharing_cost(alpha, k + more) >= sharing_cost(alpha, k) >= k
    assert sharing_cost(alpha, 1) == 1


def test_fabric_of_server_uplinks_is_the_default_and_leaves_add_contention():
    jobs = {str(n): RingJob(str(n), 2, 100, 0, 1, 0.1, 10) for n in range(4)}
    cluster = replace(CLUSTER, servers=(8,) * 8)
    # Four rings, each over its own two servers, all from leaf 0 to leaf 1.
    placed = {str(n): {n: 1, n + 4: 1} for n in range(4)}

    def contention(fabric: Fabric) -> set[float]:
        return {t.contention for t in ring_timings(cluster, jobs, placed, fabric=fabric).values()}

    assert contention(Fabric()) == {1}
    assert contention(Fabric(servers_per_leaf=4)) == {1}
    assert contention(Fabric(servers_per_leaf=4, oversubscription=4)) == {4}
    near = {str(n): {n: 1, (n + 1) % 4: 1} for n in range(4)}
    inside = ring_timings(cluster, jobs, near, fabric=Fabric(servers_per_leaf=4, oversubscription=4))
    assert {timing.contention for timing in inside.values()} == {2}


def test_rails_multiply_bandwidth_and_remove_contention():
    jobs = {"a": RingJob("a", 8, 100, 0, 1, 0.1, 10), "b": RingJob("b", 8, 100, 0, 1, 0.1, 10)}
    cluster = replace(CLUSTER, servers=(8, 8))
    placed = {"a": {0: 4, 1: 4}, "b": {0: 4, 1: 4}}
    one_rail = ring_timings(cluster, jobs, placed)["a"]
    eight_rails = ring_timings(cluster, jobs, placed, fabric=Fabric(rails=8))["a"]
    assert (one_rail.contention, eight_rails.contention) == (2, 1)
    assert eight_rails.bandwidth == pytest.approx(4 * 1250)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ({"a": {0: 2}}, "not placed completely"),
        ({"a": {0: 5}}, "not placed completely"),
        ({"a": {9: 4}}, "names server 9"),
        ({"z": {0: 4}}, "job 'z'"),
        ({"a": {0: 4}, "b": {0: 4}}, "over its capacity"),
    ],
)
def test_invalid_placements(placement, words):
    with pytest.raises(InputError, match=words):
        check_placement(CLUSTER, TWO, placement)


@pytest.mark.parametrize(
    "change",
    [{"inter_bandwidth": 0}, {"alpha": -1}, {"xi1": 0}, {"xi1": 1.1}, {"xi2": float("nan")}, {"servers": ()}],
)
def test_invalid_clusters(change):
    with pytest.raises(InputError):
        replace(CLUSTER, **change)


def test_more_gpus_than_a_scheduler_can_list_are_refused():
    with pytest.raises(InputError, match="at most 100000 GPUs"):
        replace(CLUSTER, servers=(1_000_000,) * 1000)
