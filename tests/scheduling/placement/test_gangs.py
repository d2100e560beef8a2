from __future__ import annotations

import numpy as np
import pytest

from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.gang_sharing import share_gangs
from scheduling.placement.gangs import Pool, usable_gpus, usable_types
from scheduling.policies import get_policy
from scheduling.ring.scatter import RingScatter
from scheduling.simulator.engine import simulate
from tests.scheduling.tables import GIB, JOBS, table

GANG, LIGHT, HEAVY = JOBS[0], JOBS[1], JOBS[2]


def _table() -> TablePredictor:
    """Beside LIGHT the gang keeps .9 of its speed, beside HEAVY .4; one step per second alone."""
    solo = {("v100", job): Solo(1.0) for job in JOBS}
    ratios = {}
    for other, (own, kept) in ((LIGHT, (0.9, 0.8)), (HEAVY, (0.4, 0.5))):
        members = tuple(sorted((GANG, other), key=str))
        ratios["v100", members] = (own, kept) if members[0] == GANG else (kept, own)
    return TablePredictor(solo, ratios)


def _state(tenants: list[object], per_node: int = 2) -> SchedulingSnapshot:
    count = -(-len(tenants) // per_node)
    nodes = [{"name": "n", "count": count, "gpus": [{"device": "v100", "count": per_node}]}]
    state = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": nodes}))
    for gpu, workload in enumerate(tenants):
        if workload is not None:
            job = JobState(TraceJob(f"t{gpu}", workload, 100.0), 100 + gpu, 100.0, gpus=(gpu,))  # type: ignore[arg-type]
            state.running[job.number] = job
            state.occupy(job)
    return state


def _gang(count: int) -> JobState:
    return JobState(TraceJob("gang", GANG, 50.0, gpus=count), 0, 50.0)


def test_a_gang_shares_where_its_slowest_member_is_fastest() -> None:
    state, gang = _state([HEAVY, LIGHT, LIGHT, LIGHT]), _gang(2)
    (allocation,) = share_gangs(state, SetCache(_table()), [], [gang])
    assert allocation.job is gang
    assert allocation.gpus == (2, 3)


def test_one_slow_member_prevents_sharing() -> None:
    # 2 x .4 at the pace of the slowest, and neighbours that keep .5 and .8: 2.1 of 2 beside a slowdown of 2.5.
    state, gang, belief = _state([HEAVY, LIGHT]), _gang(2), SetCache(_table())
    assert share_gangs(state, belief, [], [gang]) == []
    assert share_gangs(state, belief, [], [gang], max_slowdown=3.0) != []
    # Beside HEAVY alone the second GPU idles at .6 of its time: 2 x .4 + .5 is less than 2.
    half_empty = _state([HEAVY, None])
    assert share_gangs(half_empty, SetCache(_table()), [], [gang], max_slowdown=3.0) == []


def test_gpus_already_allocated_in_the_decision_are_not_used() -> None:
    state, gang = _state([LIGHT, LIGHT]), _gang(2)
    other = JobState(TraceJob("other", LIGHT, 10.0), 1, 10.0)
    assert share_gangs(state, SetCache(_table()), [Allocation(other, (1,))], [gang]) == []


def test_gpus_of_another_gang_or_of_a_job_that_must_be_alone_are_not_used() -> None:
    for gpus, exclusive in (((0, 1), False), ((0,), True), ((0,), False)):
        state = _state([None, LIGHT] if len(gpus) == 1 else [None, None])
        tenant = JobState(TraceJob("t", LIGHT, 100.0, gpus=len(gpus)), 200, 100.0, gpus=gpus)
        tenant.exclusive = exclusive
        state.running[200] = tenant
        state.occupy(tenant)
        shared = share_gangs(state, SetCache(_table()), [], [_gang(2)])
        assert bool(shared) == (len(gpus) == 1 and not exclusive)


def test_a_sharing_gang_runs_at_the_pace_of_its_slowest_member() -> None:
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}]}]}
    )
    jobs = [
        TraceJob("first", LIGHT, 1000.0),
        TraceJob("second", LIGHT, 500.0),
        TraceJob("gang", GANG, 90.0, submit_s=1.0, gpus=2),
    ]
    table = _table()
    result = simulate(jobs, cluster, get_policy("isacpp-gangs"), SetTruth(SetCache(table)), table)
    ends = {job.id: job.finished_s for job in result.jobs}
    assert ends["gang"] == pytest.approx(1.0 + 90.0 / 0.9)
    assert ends["second"] == pytest.approx(500.0 + 0.2 * 100.0)
    alone = simulate(jobs, cluster, get_policy("isacpp"), SetTruth(SetCache(table)), table)
    assert sum(j.finished_s or 0.0 for j in result.jobs) < sum(j.finished_s or 0.0 for j in alone.jobs)


def _racks(*free: int) -> SchedulingSnapshot:
    """Nodes of four GPUs, two nodes per switch, with the given numbers of free GPUs."""
    nodes = [{"name": f"n{k}", "gpus": [{"device": "v100", "count": 4}]} for k in range(len(free))]
    links = [
        {"source": f"n{k}", "target": f"switch-{k // 2}", "bandwidth_bytes_per_s": 1e9}
        for k in range(len(free))
    ]
    state = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": nodes, "links": links}))
    for node, room in enumerate(free):
        for gpu in state.node_gpus[node][room:]:
            job = JobState(TraceJob(f"t{gpu}", HEAVY, 100.0), 100 + gpu, 100.0, gpus=(gpu,))
            state.running[job.number] = job
            state.occupy(job)
    return state


def test_a_gang_over_several_nodes_stays_under_one_switch_if_possible() -> None:
    # The emptiest nodes, 0 and 2, are under two switches; 2 and 3 together have room.
    state = _racks(4, 1, 3, 3)
    nodes = {int(state.node_of[g]) for g in Pool(state).take(6, 0)}
    assert nodes == {2, 3}


def test_a_gang_that_fits_under_no_switch_takes_the_one_with_the_most_room_first() -> None:
    state = _racks(4, 1, 3, 4)
    taken = Pool(state).take(9, 0)
    by_node = [sum(int(state.node_of[g]) == n for g in taken) for n in range(4)]
    assert by_node == [2, 0, 3, 4]


def test_without_known_gradients_spanning_switches_costs_twice_what_spanning_nodes_does() -> None:
    scatter = RingScatter(1.25, lambda _: None).slowdown
    state, truth = _racks(4, 4, 4, 4), SetTruth(SetCache(_table()), scatter=scatter)
    rates = []
    for gpus in ((0, 1), (0, 4), (0, 8)):
        job = JobState(TraceJob("gang", GANG, 50.0, gpus=2), 0, 50.0, gpus=gpus)
        state.occupy(job)
        rates.append(truth.segment(job, state).rate)
        state.vacate(job)
    assert rates == pytest.approx([1.0, 1 / 1.25, 1 / 1.25**2])


def test_types_that_some_job_can_use() -> None:
    """On a K80, model-5 does not fit, and there is none for a gang of two."""
    nodes = [{"name": d, "gpus": [{"device": d, "count": n}]} for d, n in (("v100", 2), ("k80", 1))]
    state = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": nodes}))
    belief = SetCache(table(2, memory_gib=12.0))
    assert usable_types(state, belief).tolist() == [True, True]  # no job says otherwise
    state.waiting[0] = JobState(TraceJob("large", JOBS[5], 100.0), 0, 100.0)
    state.waiting[1] = JobState(TraceJob("gang", JOBS[0], 100.0, gpus=2), 1, 100.0)
    assert usable_types(state, belief).tolist() == [True, False]
    assert usable_gpus(state, belief) == 2
    # Found once for as long as nothing changes
    assert usable_types(state, belief) is usable_types(state, belief)
    state.waiting[2] = JobState(TraceJob("small", JOBS[0], 100.0), 2, 100.0)
    assert usable_gpus(state, belief) == 3
    del state.waiting[2]
    placed = JobState(TraceJob("placed", JOBS[5], 100.0), 3, 100.0, gpus=(2,))
    state.running[3] = placed
    state.occupy(placed)
    assert usable_gpus(state, belief) == 3  # it runs there, whatever is predicted


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *("srtf", "edf", "tiresias", "themis", "optimus", "optimus-shortest", "pollux", "icefrog"),
        *("isacpp", "isacpp-makespan", "isacpp-gangs", "isacpp-online"),
    ],
)
def test_gpus_that_no_job_can_use_change_no_schedule(name: str, first: bool) -> None:
    belief = table(2)
    useless = {("a100", job): Solo(0.01, 50 * GIB) for job in JOBS}
    both = TablePredictor(belief.solo | useless, belief.ratios, belief.memory_bytes | {"a100": 40 * GIB})
    draw = np.random.default_rng(0)
    jobs = [
        TraceJob(
            f"j{k}",
            JOBS[draw.integers(5)],
            float(draw.lognormal(7.5, 1.0)),
            20.0 * k,
            gpus=int(draw.choice([1, 1, 1, 2])),
        )
        for k in range(30)
    ]

    def ends(*devices: str) -> list[float | None]:
        nodes = [{"name": d, "gpus": [{"device": d, "count": 8 if d == "a100" else 4}]} for d in devices]
        cluster = ClusterSnapshot.from_mapping({"nodes": nodes})
        return [j.finished_s for j in simulate(jobs, cluster, get_policy(name), SetTruth(both), both).jobs]

    used = ("v100", "k80")
    assert ends(*used) == ends(*(("a100", *used) if first else (*used, "a100")))
