"""Placements of the service by a policy: its choice first, with the ranking's figures for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation
from scheduling.core.policy import Policy, PolicyError
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.truth import current_workload
from scheduling.placement.by_policy import PolicyPlacer
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import POLICIES, get_policy
from tests.scheduling.tables import JOBS, table

CLUSTER = ClusterSnapshot(
    (
        Node(
            "a",
            (Gpu("0", "v100", tenants=(Tenant(JOBS[0], 1e4, "here"),)), Gpu("1", "v100"), Gpu("2", "k80")),
        ),
    )
)


def last_gpu(snapshot, belief):  # type: ignore[no-untyped-def]
    return [Allocation(job, (len(snapshot) - 1,)) for job in snapshot.waiting.values()]


def test_the_policys_choice_is_ranked_first() -> None:
    decision = PolicyPlacer(table(), Policy("last", last_gpu)).place(JOBS[1], 100.0, CLUSTER)
    assert decision.decision == "place"
    assert (decision.ranked[0].node, decision.ranked[0].gpu) == ("a", "2")
    assert decision.ranked[0].reasons[-1] == "chosen by policy last"
    assert {offer.gpu for offer in decision.ranked} == {"0", "1", "2"}
    exclusive = PolicyPlacer(table(), get_policy("exclusive")).place(JOBS[1], 100.0, CLUSTER)
    assert exclusive.ranked[0].gpu == "1"


def test_what_was_never_measured_is_that_of_the_policys_choice() -> None:
    class Told:
        def __init__(self) -> None:
            self.asked: list[ColocationSet] = []
            self.predict_arrays = table().predict_arrays

        def predict_many(self, sets: Sequence[ColocationSet]) -> list[Any]:
            self.asked += sets
            return [SimpleNamespace(never_measured=("never measured here",)) for _ in sets]

    told = Told()
    decision = PolicyPlacer(told, Policy("last", last_gpu)).place(JOBS[1], 100.0, CLUSTER)
    gpu = next(gpu for _, gpu in CLUSTER.gpus() if gpu.id == decision.ranked[0].gpu)
    beside = tuple(tenant.job for tenant in gpu.tenants)
    assert told.asked == [ColocationSet(gpu.device, (*beside, JOBS[1]), gpu.sharing)]
    assert decision.to_json()["never_measured"] == ["never measured here"]


def test_a_gpu_that_the_ranking_rules_out() -> None:
    def beside(snapshot, belief):  # type: ignore[no-untyped-def]
        return [Allocation(job, (0,)) for job in snapshot.waiting.values()]

    config = PlacementConfig(max_slowdown=1.0)
    decision = PolicyPlacer(table(), Policy("beside", beside)).place(JOBS[1], 100.0, CLUSTER, config)
    assert decision.ranked[0].gpu == "0"
    assert decision.ranked[0].finish_s >= 100.0 * 0.2
    assert "beside 1" in decision.ranked[0].reasons[0]


def test_a_gpu_without_the_memory_or_with_too_many_jobs_is_an_invalid_choice() -> None:
    """A policy may disregard slowdowns, but not what the GPU can hold."""

    def beside(snapshot, belief):  # type: ignore[no-untyped-def]
        return [Allocation(job, (0,)) for job in snapshot.waiting.values()]

    def running(*jobs: Workload) -> ClusterSnapshot:
        return ClusterSnapshot((Node("n", (Gpu("0", "v100", tenants=tuple(Tenant(j, 1e6) for j in jobs)),)),))

    policy = Policy("beside", beside)
    with pytest.raises(PolicyError, match="chose n/0, where the job does not fit"):
        PolicyPlacer(LARGE, policy).place(A, 100.0, running(B))
    placer = PolicyPlacer(table(5), policy)
    assert placer.place(JOBS[0], 100.0, running(*JOBS[:3])).decision == "place"
    with pytest.raises(PolicyError, match="full GPU, n/0: expected at most 4 jobs, got 5"):
        placer.place(JOBS[0], 100.0, running(*JOBS[:4]))


def test_a_policy_that_waits() -> None:
    decision = PolicyPlacer(table(), Policy("never", lambda s, b: [])).place(JOBS[1], None, CLUSTER)
    assert decision.decision == "wait"
    assert decision.ranked
    assert "never" in decision.reasons[-1]


def test_a_policy_sees_the_frozen_layers_of_tenants() -> None:
    frozen = replace(JOBS[0], frozen_prefix=3)
    cluster = ClusterSnapshot((Node("a", (Gpu("0", "v100", tenants=(Tenant(frozen, 1e4, "here"),)),)),))
    seen: list[Workload] = []

    def look(snapshot, belief):  # type: ignore[no-untyped-def]
        seen.extend(current_workload(tenant) for tenant in snapshot.tenants[0])
        return []

    predictor = TablePredictor({("v100", frozen): Solo(1.0), ("v100", JOBS[1]): Solo(1.0)}, {})
    PolicyPlacer(predictor, Policy("look", look)).place(JOBS[1], 100.0, cluster)
    assert seen == [frozen]


def test_gangs() -> None:
    empty = ClusterSnapshot((Node("a", (Gpu("0", "v100"), Gpu("1", "v100"))),))
    decision = PolicyPlacer(table(), get_policy("exclusive")).place(
        JOBS[1], 100.0, empty, PlacementConfig(gpus=2)
    )
    assert decision.ranked[0].gang == (("a", "0"), ("a", "1"))
    assert decision.ranked[0].reasons[-1] == "chosen by policy exclusive"


A, B = Workload("a"), Workload("b")
# Two of these jobs do not fit on a GPU.
LARGE = TablePredictor(
    {
        (device, job): Solo(step, 10 * 2.0**30)
        for device, step in (("v100", 1.0), ("k80", 4.0))
        for job in (A, B)
    },
    {},
    {"v100": 16 * 2.0**30, "k80": 12 * 2.0**30},
)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_places_a_job_where_it_would_have_to_stop_another(name: str) -> None:
    """The service stops no job, however long it still takes."""
    full = ClusterSnapshot((Node("n", (Gpu("0", "v100", tenants=(Tenant(B, 1e6),)),)),))
    placer = PolicyPlacer(LARGE, get_policy(name))
    assert placer.choose(A, 100.0, full) is None
    assert placer.place(A, 100.0, full).decision == "wait"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_finds_the_empty_gpu_beside_a_shared_one(name: str) -> None:
    shared = Gpu("0", "v100", tenants=(Tenant(JOBS[0], 1e6), Tenant(JOBS[1], 1e6)))
    cluster = ClusterSnapshot((Node("n", (shared, Gpu("1", "v100"))),))
    assert PolicyPlacer(table(), get_policy(name)).choose(JOBS[2], 100.0, cluster) == ("n", "1")


def test_a_job_is_not_placed_on_a_slow_gpu_to_be_moved_later() -> None:
    busy = Gpu("0", "v100", tenants=(Tenant(B, 1000.0),))
    cluster = ClusterSnapshot((Node("n", (busy, Gpu("1", "k80"))),))
    # 2,400 s on the K80; 1,600 s with the wait; 1,380 s if it could be moved.
    assert PolicyPlacer(LARGE, get_policy("isacpp")).place(A, 600.0, cluster).decision == "wait"
