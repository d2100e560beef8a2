from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError
from profiling.workload import Workload
from scheduling.beliefs.table import NoisyPredictor, Solo, TablePredictor
from scheduling.core.batches import BatchRange
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import Segment, SetTruth
from scheduling.policies import POLICIES, get_policy
from scheduling.policies.blind import decide as blind
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.realism import Realism
from scheduling.simulator.result import SimulationResult
from tests.scheduling.tables import JOBS, table

TABLE = table(3)
CLUSTER = ClusterSnapshot.from_mapping(
    {
        "nodes": [
            {"name": "fast", "count": 2, "gpus": [{"device": "v100", "count": 4}]},
            {"name": "slow", "gpus": [{"device": "k80", "count": 4}]},
        ]
    }
)
RECORD = SimulationConfig(record=True)

jobs_strategy = st.lists(
    st.tuples(st.integers(0, 5), st.floats(1, 3000), st.floats(0, 2000), st.sampled_from([1, 1, 1, 2, 4])),
    min_size=1,
    max_size=14,
).map(lambda raw: [TraceJob(f"j{k}", JOBS[m], n, t, gpus=g) for k, (m, n, t, g) in enumerate(raw)])


def check(result: SimulationResult, jobs: list[TraceJob], exclusive: bool) -> None:
    """No job is lost or in two places at once, every job ends, no GPU is overfull, and work is conserved."""
    assert {j.id for j in result.jobs} == {j.id for j in jobs}
    for job in result.jobs:
        assert job.finished_s is not None
        assert job.started_s is not None
        assert job.job.submit_s <= job.started_s <= job.finished_s
        assert job.left == 0.0
        assert job.gpus == ()
    held: dict[int, list[tuple[float, float, int]]] = {}
    for interval in result.intervals:
        assert interval.stop_s >= interval.start_s
        held.setdefault(interval.gpu, []).append((interval.start_s, interval.stop_s, interval.job))
    for spans in held.values():
        edges = sorted([(a, 1) for a, b, _ in spans if b > a] + [(b, -1) for a, b, _ in spans if b > a])
        together = 0
        for _, step in edges:
            together += step
            assert together <= (1 if exclusive else 2)
    for job in result.jobs:
        slowest = max(TABLE.solo[d, job.job.workload].step_time_s for d in ("v100", "k80"))
        fastest = min(TABLE.solo[d, job.job.workload].step_time_s for d in ("v100", "k80"))
        spans = [i for i in result.intervals if i.job == job.number]
        running = sum(i.stop_s - i.start_s for i in spans) / job.job.gpus
        assert running >= job.job.iterations * fastest * (1 - 1e-9)
        if exclusive:  # alone it takes its solo time and the restarts, no more
            assert running <= job.job.iterations * slowest + 30.0 * job.restarts + 1e-6


EXCLUSIVE = (
    "fifo",
    "sjf",
    "srtf",
    "edf",
    "exclusive",
    "tiresias",
    "themis",
    "gavel",
    "gavel-base",
    "gavel-max-sum",
    "gavel-finish-time",
    "gavel-finish-time-base",
    "gavel-fifo",
    "gavel-fifo-base",
    "gavel-sia",
    "allox",
)
SHARED = (
    "blind",
    "blind-sjf",
    "horus",
    "lucid",
    "isacpp",
    "isacpp-interference",
    "isacpp-makespan",
    "isacpp-gangs",
    "isacpp-online",
    "isacpp-makespan-online",
    "gavel-packed",
    "gavel-fifo-packed",
    "sia-packed",
)


RESIZING = (
    "optimus",
    "optimus-shortest",
    "pollux",
    "sia",
    "icefrog",
    "icefrog-unfrozen",
    "pollux-freezing",
)


@pytest.mark.parametrize("name", EXCLUSIVE + SHARED)
@settings(max_examples=6, deadline=None)
@given(jobs=jobs_strategy)
def test_invariants(name: str, jobs: list[TraceJob]) -> None:
    result = simulate(jobs, CLUSTER, get_policy(name), SetTruth(TABLE), TABLE, RECORD)
    check(result, jobs, name in EXCLUSIVE)


@pytest.mark.parametrize("name", RESIZING)
@settings(max_examples=5, deadline=None)
@given(jobs=jobs_strategy)
def test_resizing_policies_end(name: str, jobs: list[TraceJob]) -> None:
    elastic = [
        TraceJob(j.id, j.workload, j.iterations, j.submit_s, j.gpus, 1, 4, kind="adaptive") for j in jobs
    ]
    result = simulate(elastic, CLUSTER, get_policy(name), SetTruth(TABLE), TABLE, RECORD)
    assert all(j.finished_s is not None and j.left == 0.0 for j in result.jobs)


SIZES = tuple(Workload("m", batch_size=b) for b in (8, 16, 32))
BY_BATCH = TablePredictor(
    {(device, w): Solo(speed * t) for device, speed in (("v100", 1.0), ("k80", 3.0)) for w, t in zip(SIZES, (1.0, 1.2, 1.6), strict=True)},
    {("v100", (SIZES[0], SIZES[0])): (0.5, 0.5), ("k80", (SIZES[0], SIZES[0])): (0.5, 0.5)},
)  # fmt: skip


def _makespan_s(result: SimulationResult) -> float:
    return max(j.finished_s or 0.0 for j in result.jobs)


def test_a_job_tunes_its_batch_while_it_does_not_share() -> None:
    # Alone 32 samples in 1.6 s, worth (24 + 8) / (24 + 32) each: 4 * .5714 / 1.6 = 1.4286 own steps per second;
    # beside the other, its own batch of 8 at half the pace.
    tunable = TraceJob("t", SIZES[0], 100, 0.0, batches=BatchRange((8, 16, 32), 32, 24.0))
    alone = simulate([tunable], ONE, get_policy("fifo"), SetTruth(BY_BATCH), BY_BATCH)
    assert _makespan_s(alone) == pytest.approx(100 / (4 * 32 / 56 / 1.6))
    other = TraceJob("o", SIZES[0], 50, 0.0)
    both = simulate([tunable, other], ONE, get_policy("blind"), SetTruth(BY_BATCH), BY_BATCH)
    assert _makespan_s(both) == pytest.approx(100 + 50 / (4 * 32 / 56 / 1.6))


@pytest.mark.parametrize("name", ["fifo", "isacpp", "optimus", "pollux", "sia", "sia-packed"])
def test_elastic_jobs_that_tune_their_batch_end_sooner(name: str) -> None:
    jobs = [TraceJob(f"j{k}", SIZES[0], 500.0, 20.0 * k, 1, 1, 4) for k in range(6)]
    batches = BatchRange((8, 16, 32), 128, 1000.0)
    tuned = [replace(job, batches=batches) for job in jobs]
    runs = [
        simulate(trace, CLUSTER, get_policy(name), SetTruth(BY_BATCH), BY_BATCH, RECORD)
        for trace in (jobs, tuned)
    ]
    assert all(j.finished_s is not None for run in runs for j in run.jobs)
    before, after = (sum((j.finished_s or 0.0) - j.job.submit_s for j in run.jobs) for run in runs)
    assert after < before


@pytest.mark.parametrize("name", ["optimus", "pollux", "sia"])
def test_no_job_gets_more_gpus_than_its_largest_batch_can_use(name: str) -> None:
    batches = BatchRange((8, 16), 16, 1000.0)  # on four GPUs the smallest total is 32
    jobs = [TraceJob("j", SIZES[0], 500.0, 0.0, 1, 1, 4, batches=batches)]
    result = simulate(jobs, CLUSTER, get_policy(name), SetTruth(BY_BATCH), BY_BATCH, RECORD)
    assert result.jobs[0].finished_s is not None
    assert len({interval.gpu for interval in result.intervals}) <= 2


def test_a_job_with_more_gpus_than_its_largest_batch_can_use_leaves_some_idle() -> None:
    batches = BatchRange((8, 16), 16, 1000.0)
    jobs = [TraceJob("j", SIZES[0], 500.0, 0.0, 1, 1, 4, batches=batches)]

    def hold(gpus: int) -> Policy:
        return Policy("hold", lambda s, _: [Allocation(j, tuple(range(gpus))) for j in s.waiting.values()])

    two, four = (simulate(jobs, CLUSTER, hold(n), SetTruth(BY_BATCH), BY_BATCH) for n in (2, 4))
    assert _makespan_s(four) == pytest.approx(_makespan_s(two))
    # It resizes jobs, and does not know that they tune their batch.
    result = simulate(jobs, CLUSTER, get_policy("icefrog-unfrozen"), SetTruth(BY_BATCH), BY_BATCH)
    assert _makespan_s(result) < 500.0


@pytest.mark.parametrize("round_s", [None, 60.0])
def test_a_job_without_progress_ends_the_simulation(round_s: float | None) -> None:
    class Still(SetTruth):
        def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
            return Segment(0.0)

    policy = replace(get_policy("fifo"), round_s=round_s)
    with pytest.raises(
        InfeasibleError, match="1 jobs on GPUs on which they make no progress, the first is a"
    ):
        simulate([TraceJob("a", A, 10.0), TraceJob("b", A, 10.0)], ONE, policy, Still(PAIR), PAIR)


def test_sia_resizes_jobs_with_a_range() -> None:
    jobs = [TraceJob("j", SIZES[0], 500.0, 0.0, 1, 1, 2)]
    result = simulate(jobs, CLUSTER, get_policy("sia"), SetTruth(BY_BATCH), BY_BATCH, RECORD)
    assert _makespan_s(result) < 500.0


def test_every_policy_is_covered() -> None:
    assert set(POLICIES) == {*EXCLUSIVE, *SHARED, *RESIZING}


@pytest.mark.parametrize("name", ["fifo", "gavel", "allox", "sia"])
def test_an_infeasible_job_ends_the_simulation(name: str) -> None:
    with pytest.raises(InfeasibleError, match="waiting"):
        simulate([TraceJob("wide", A, 10, gpus=4)], ONE, get_policy(name), SetTruth(PAIR), PAIR)


A, B = Workload("a"), Workload("b")
PAIR = TablePredictor({("v100", A): Solo(1.0), ("v100", B): Solo(2.0)}, {("v100", (A, B)): (0.5, 0.8)})
ONE = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": [{"device": "v100"}]}]})


def test_rates_change_with_neighbours_by_hand() -> None:
    # A: 50 steps from 0 s; B: 100 steps from 10 s. Alone A does 10 steps, then 40 at 2 s (90 s); B meanwhile
    # does 80 s / 2.5 s = 32 steps and the other 68 alone at 2 s: done at 226 s.
    jobs = [TraceJob("a", A, 50, 0.0), TraceJob("b", B, 100, 10.0)]
    result = simulate(jobs, ONE, get_policy("blind"), SetTruth(PAIR), PAIR)
    assert [j.finished_s for j in result.jobs] == pytest.approx([90.0, 226.0])
    assert result.to_json()["makespan_s"] == pytest.approx(226.0)
    assert result.busy_s == pytest.approx(226.0)
    assert result.to_json()["utilization_ratio"] == pytest.approx(1.0)


def test_truth_is_separate_from_belief() -> None:
    wrong = TablePredictor({("v100", A): Solo(1.0), ("v100", B): Solo(2.0)}, {("v100", (A, B)): (1.0, 1.0)})
    jobs = [TraceJob("a", A, 50, 0.0), TraceJob("b", B, 100, 10.0)]
    believed = simulate(jobs, ONE, get_policy("isacpp"), SetTruth(PAIR), wrong)
    assert [j.finished_s for j in believed.jobs] == pytest.approx([90.0, 226.0])


def test_deterministic() -> None:
    jobs = [TraceJob(f"j{k}", JOBS[k % 6], 100 + 37 * k, 5.0 * k) for k in range(40)]
    truth = NoisyPredictor(TABLE, 0.3, seed=4)
    runs = [simulate(jobs, CLUSTER, get_policy("isacpp"), SetTruth(truth), TABLE) for _ in range(2)]
    assert [j.finished_s for j in runs[0].jobs] == [j.finished_s for j in runs[1].jobs]
    other = simulate(jobs, CLUSTER, get_policy("isacpp"), SetTruth(NoisyPredictor(TABLE, 0.3, seed=5)), TABLE)
    assert [j.finished_s for j in runs[0].jobs] != [j.finished_s for j in other.jobs]


def test_preemption_costs_a_restart() -> None:
    jobs = [TraceJob("long", A, 1000, 0.0), TraceJob("short", A, 10, 100.0)]
    result = simulate(jobs, ONE, get_policy("srtf"), SetTruth(PAIR, restart_s=30.0), PAIR)
    assert [j.finished_s for j in result.jobs] == pytest.approx([1000 + 10 + 30.0, 110.0])
    assert result.to_json()["restarts"] == 1


def test_wrongly_predicted_memory_costs_a_refused_start() -> None:
    tight = TablePredictor(
        {("v100", A): Solo(1.0, 10e9), ("v100", B): Solo(2.0, 10e9)}, PAIR.ratios, {"v100": 16e9}
    )
    jobs = [TraceJob("a", A, 50, 0.0), TraceJob("b", B, 100, 10.0)]
    result = simulate(jobs, ONE, get_policy("blind"), SetTruth(tight), PAIR)
    assert result.out_of_memory == 1
    assert [j.finished_s for j in result.jobs] == pytest.approx([50.0, 250.0])


def test_frozen_prefix_is_part_of_a_decision() -> None:
    frozen = replace(A, frozen_prefix=3)
    predictor = TablePredictor({("v100", A): Solo(1.0), ("v100", frozen): Solo(0.5)}, {})

    def decide(snapshot, belief):  # type: ignore[no-untyped-def]
        started = [Allocation(j, (0,)) for j in snapshot.waiting.values()]
        later = [Allocation(j, j.gpus, 3) for j in snapshot.running.values() if snapshot.now_s >= 10]
        return started + later

    policy = Policy("freeze", decide, round_s=10.0)
    result = simulate([TraceJob("a", A, 100, 0.0)], ONE, policy, SetTruth(predictor), predictor)
    assert result.jobs[0].finished_s == pytest.approx(10.0 + (100 - 10) * 0.5)
    assert result.jobs[0].restarts == 0


@pytest.mark.parametrize(
    ("gpus", "free", "restarts"),
    [((2, 1), False, 1), ((2, 1), True, 0), ((0, 4), True, 1), ((8, 9), True, 1)],
)
def test_free_moves(gpus: tuple[int, int], free: bool, restarts: int) -> None:
    """A job on two GPUs of a node moves to others of the type, to one more node, or to another type."""

    def decide(snapshot, belief):  # type: ignore[no-untyped-def]
        started = [Allocation(j, (0, 1)) for j in snapshot.waiting.values()]
        later = [Allocation(j, gpus) for j in snapshot.running.values() if snapshot.now_s >= 10]
        return started + later

    policy, config = Policy("move", decide, round_s=10.0), SimulationConfig(free_moves=free)
    result = simulate([TraceJob("a", JOBS[0], 300, gpus=2)], CLUSTER, policy, SetTruth(TABLE), TABLE, config)
    assert result.jobs[0].restarts == restarts


@pytest.mark.parametrize("name", [p for p in POLICIES if not get_policy(p).freezes])
def test_a_job_that_freezes_layers_of_its_own_keeps_them_frozen(name: str) -> None:
    frozen = replace(A, frozen_prefix=3)
    # Only the frozen form was measured, so a query about another would be an error.
    predictor = TablePredictor({("v100", frozen): Solo(0.5)}, {})
    jobs = [TraceJob("long", frozen, 100), TraceJob("short", frozen, 10, 5.0)]
    result = simulate(jobs, ONE, get_policy(name), SetTruth(predictor), predictor)
    assert result.busy_s == pytest.approx(110 * 0.5 + 30.0 * sum(job.restarts for job in result.jobs))


def test_a_gpu_that_is_down_is_predicted_with_the_layers_that_its_placeholder_freezes() -> None:
    frozen = replace(A, frozen_prefix=3)
    predictor = TablePredictor({("v100", frozen): Solo(0.5)}, {("v100", (frozen, frozen)): (0.5, 0.5)})
    config = SimulationConfig(realism=Realism(node_mtbf_s=100.0, repair_s=50.0))
    jobs = [TraceJob(f"j{k}", frozen, 400, 10.0 * k) for k in range(4)]
    result = simulate(jobs, ONE, get_policy("isacpp"), SetTruth(predictor), predictor, config)
    assert result.node_failures > 0


def test_three_members() -> None:
    three = Policy("three", partial(blind, max_members=3))
    jobs = [TraceJob(f"j{k}", JOBS[k], 100.0) for k in range(3)]
    result = simulate(jobs, ONE, three, SetTruth(table(3)), table(3), RECORD)
    assert all(j.started_s == 0.0 for j in result.jobs)


def test_impossible_jobs_are_named() -> None:
    with pytest.raises(InfeasibleError, match="waiting"):
        simulate([TraceJob("big", A, 1, gpus=2)], ONE, get_policy("fifo"), SetTruth(PAIR), PAIR)
    with pytest.raises(InputError, match=r"unique.*'x'"):
        simulate([TraceJob("x", A, 1), TraceJob("x", A, 1)], ONE, get_policy("fifo"), SetTruth(PAIR), PAIR)
    with pytest.raises(InputError, match="no GPU"):
        simulate([TraceJob("x", A, 1)], ClusterSnapshot(()), get_policy("fifo"), SetTruth(PAIR), PAIR)


@pytest.mark.parametrize("name", [p for p in POLICIES if not get_policy(p).freezes])
def test_a_type_where_a_lone_job_runs_out_of_memory_is_not_retried(name: str) -> None:
    solo = {("v100", A): Solo(1.0, 10e9), ("k80", A): Solo(2.0, 10e9)}
    belief, truth = (TablePredictor(solo, {}, {"v100": 16e9, "k80": k80}) for k80 in (12e9, 8e9))
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": d, "gpus": [{"device": d, "count": 2}]} for d in ("v100", "k80")]}
    )
    jobs = [TraceJob(f"j{k}", A, 500.0) for k in range(4)]
    result = simulate(jobs, cluster, get_policy(name), SetTruth(truth), belief)
    assert all(job.finished_s is not None and list(job.served_s) == ["v100"] for job in result.jobs)
    assert 0 < result.out_of_memory <= 2


def test_placing_a_job_again_where_it_did_not_fit_is_an_error() -> None:
    small = TablePredictor({("v100", A): Solo(1.0, 10e9)}, {}, {"v100": 8e9})
    stubborn = Policy("stubborn", lambda s, _: [Allocation(j, (0,)) for j in s.waiting.values()], 60.0)
    with pytest.raises(InfeasibleError, match="even alone"):
        simulate([TraceJob("a", A, 10.0)], ONE, stubborn, SetTruth(small), PAIR)


@pytest.mark.parametrize("name", ["fifo", "srtf", "blind", "isacpp", "gavel"])
def test_a_simulation_begins_with_empty_gpus(name: str) -> None:
    tenant = {"job": {"workload": "b"}, "iterations_left": 1000}
    gpus = [{"device": "v100", "id": "0", "tenants": [tenant]}, {"device": "v100", "id": "1"}]
    busy = ClusterSnapshot.from_mapping({"nodes": [{"name": "n", "gpus": gpus}]})
    jobs = [TraceJob(f"j{k}", (A, B)[k % 2], 50.0, 10.0 * k) for k in range(6)]
    runs = [
        simulate(jobs, cluster, get_policy(name), SetTruth(PAIR), PAIR)
        for cluster in (busy, busy.without_tenants())
    ]
    assert [j.finished_s for j in runs[0].jobs] == [j.finished_s for j in runs[1].jobs]
    assert {g for run in runs for j in run.jobs for g in j.served_s} == {"v100"}
