from __future__ import annotations

from typing import Any, cast

import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.ring.online import OnlineConfig, RingArrival, run_online
from scheduling.ring.simulation import RingTruth, ring_policy
from scheduling.simulator.engine import simulate
from tests.scheduling.ring.instances import cluster, mix

WORKLOAD = Workload.parse("resnet18-cifar:batch_size=64")
NO_BELIEF = cast(Any, None)  # ring policies predict nothing beside the contention model


def nodes(servers: tuple[int, ...]) -> ClusterSnapshot:
    return ClusterSnapshot(
        tuple(
            Node(f"n{s}", tuple(Gpu(f"{s}-{g}", "v100") for g in range(count)))
            for s, count in enumerate(servers)
        )
    )


@pytest.mark.parametrize(
    "config",
    [
        OnlineConfig(),
        OnlineConfig("narrowest", "pack", "any"),
        OnlineConfig("least-work", "whole-or-wait", "reserve"),
        OnlineConfig("arrival", "pack", "reserve", "cheaper-than-waiting"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_simulator_with_ring_truth_equals_the_ring_loop(config, seed):
    place, rings = cluster(4, 2, 8, 4), mix(seed, 40)
    by_name = {ring.name: ring for ring in rings}
    arrivals = [RingArrival(ring, 0.9 * n) for n, ring in enumerate(rings)]
    jobs = [
        TraceJob(one.job.name, WORKLOAD, one.job.iterations, one.arrival_s, one.job.gpus) for one in arrivals
    ]
    expected = run_online(place, arrivals, config)
    result = simulate(
        jobs,
        nodes(place.servers),
        ring_policy(place, by_name, config),
        RingTruth(place, by_name),
        NO_BELIEF,
    )
    ends = {state.id: state.finished_s for state in result.jobs}
    assert ends == pytest.approx({one.job: one.end_s for one in expected.schedule.assignments}, rel=1e-6)
    split = any(len(one.placement) > 1 for one in expected.schedule.assignments)
    assert split == (config.pick == "pack")


def test_a_job_without_a_ring_description_is_named():
    place = cluster(2)
    rings = {ring.name: ring for ring in mix(0, 2, widest=1)}
    jobs = [TraceJob(name, WORKLOAD, 10) for name in rings]
    with pytest.raises(InputError, match="no ring description"):
        simulate(jobs, nodes((2,)), ring_policy(place, rings), RingTruth(place, {}), NO_BELIEF)
