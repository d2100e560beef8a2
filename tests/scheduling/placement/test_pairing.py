"""On a large cluster, what has changed since a job was last looked at is evaluated, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement import pairing
from scheduling.placement.packing import Tenancy, shared_gpus
from scheduling.placement.pairing import Pairs, every_pair, offer_again, offers
from scheduling.placement.ranking import PlacementConfig
from tests.scheduling.tables import JOBS, table

CONFIG = PlacementConfig(max_members=2, max_slowdown=4.0)
GPUS, WAITING = 6, 4


class Cluster:
    """Six GPUs of two types with a tenant each, four waiting jobs, and offers as of a large cluster."""

    def __init__(self) -> None:
        nodes = [{"name": d, "gpus": [{"device": d, "count": GPUS // 2}]} for d in ("v100", "k80")]
        self.snapshot = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": nodes}))
        self.cache = SetCache(table(2))
        self.jobs: list[JobState] = []
        for gpu in range(GPUS):
            self.start(self.new_job(), gpu)
        self.waiting = [self.new_job() for _ in range(WAITING)]
        self.snapshot.waiting.update((j.number, j) for j in self.waiting)
        self.everywhere = np.arange(GPUS)

    def new_job(self) -> JobState:
        number = len(self.jobs)
        job = TraceJob(f"j{number}", JOBS[number % 5], 500.0 + 100.0 * number)
        self.jobs.append(JobState(job, number, job.iterations))
        return self.jobs[-1]

    def start(self, job: JobState, gpu: int) -> None:
        job.gpus = (gpu,)
        self.snapshot.running[job.number] = job
        self.snapshot.occupy(job)

    def replace_tenant(self, gpu: int) -> None:
        (tenant,) = self.snapshot.tenants[gpu]
        self.snapshot.vacate(tenant)
        del self.snapshot.running[tenant.number]
        self.start(self.new_job(), gpu)

    def offers(self, jobs: Sequence[int] | None = None, shared: Sequence[int] | None = None) -> Pairs:
        """Of waiting jobs and GPUs by number; checks that what is offered equals an evaluation of every pair."""
        tenancy = Tenancy.of(self.snapshot, self.cache, CONFIG.max_members)
        gpus: Ints = self.everywhere if shared is None else np.array(shared)
        assert np.isin(gpus, shared_gpus(self.snapshot, tenancy, CONFIG.max_members)).all()
        asked = self.waiting if jobs is None else [self.waiting[k] for k in jobs]
        found = offers(self.snapshot, tenancy, gpus, asked, CONFIG)
        ids = np.array([self.cache.workload_id(j.job.workload) for j in asked])
        left = np.array([self.snapshot.left(j) for j in asked])
        exact = every_pair(self.cache, tenancy.candidates(self.snapshot, gpus), ids, left, CONFIG)
        known = np.isfinite(found.score)
        for own, other in (
            (found.score, exact.score),
            (found.cost_s, exact.cost_s),
            (found.extension_s, exact.extension_s),
        ):
            np.testing.assert_array_equal(own[known], other[known])
        return found

    def seen(
        self,
        jobs: Sequence[int] | None = None,
        shared: Sequence[int] | None = None,
        next_decision: bool = True,
    ) -> list[list[int]]:
        """[jobs] the GPUs offered to each, a second later or at once; every pair of these tables may share."""
        self.snapshot.now_s += next_decision
        found = np.isfinite(self.offers(jobs, shared).score)
        gpus = self.everywhere if shared is None else np.array(shared)
        return [gpus[row].tolist() for row in found]


ALL = [list(range(GPUS))] * WAITING
NONE: list[list[int]] = [[]] * WAITING


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(pairing, "_ALWAYS", 0)
    return Cluster()


def test_refused_pairs_are_looked_at_again_where_tenants_changed(cluster: Cluster) -> None:
    assert cluster.seen() == ALL
    assert cluster.seen() == NONE
    cluster.replace_tenant(2)
    assert cluster.seen() == [[2]] * WAITING
    assert cluster.seen() == NONE


def test_new_jobs_are_looked_at_everywhere(cluster: Cluster) -> None:
    assert cluster.seen([0, 1]) == ALL[:2]
    cluster.replace_tenant(4)
    assert cluster.seen([1, 2]) == [[4], ALL[0]]


def test_everything_is_looked_at_after_a_while_and_in_another_queue(cluster: Cluster) -> None:
    cluster.seen()
    cluster.snapshot.now_s = 299.0
    assert cluster.seen() == NONE
    cluster.snapshot.now_s = 300.0
    assert cluster.seen() == ALL
    cluster.waiting.append(cluster.new_job())
    cluster.snapshot.waiting[cluster.waiting[-1].number] = cluster.waiting[-1]  # 5 jobs instead of 4
    assert cluster.seen() == [*ALL, ALL[0]]
    cluster.cache.forget()
    assert cluster.seen() == [*ALL, ALL[0]]


def test_a_job_sees_what_changed_while_others_came_first(cluster: Cluster) -> None:
    """Shorter jobs that are submitted push it out of the batch for a few decisions."""
    cluster.seen()
    cluster.replace_tenant(1)
    assert cluster.seen([0, 1]) == [[1]] * 2
    cluster.replace_tenant(5)
    assert cluster.seen([0, 1]) == [[5]] * 2
    assert cluster.seen() == [[], [], [1, 5], [1, 5]]


def test_gpus_that_were_kept_for_others_are_looked_at_once_they_are_offered(cluster: Cluster) -> None:
    cluster.seen([0])
    assert cluster.seen(shared=[0, 1, 2]) == [[], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    found = cluster.seen()
    assert found[1:] == [[3, 4, 5]] * 3


def test_smaller_clusters_are_evaluated_whole() -> None:
    cluster = Cluster()
    assert cluster.seen() == ALL
    assert cluster.seen() == ALL


def test_every_proposal_of_a_decision_is_offered_the_same(cluster: Cluster) -> None:
    assert cluster.seen(next_decision=False) == cluster.seen(next_decision=False) == ALL
    assert cluster.seen() == NONE
    cluster.replace_tenant(3)
    assert cluster.seen(next_decision=False) == cluster.seen(next_decision=False) == [[3]] * WAITING


def test_what_a_decision_has_discarded_is_offered_again(cluster: Cluster) -> None:
    cluster.seen()
    discarded = [Allocation(cluster.waiting[1], (2,))]
    offer_again(cluster.snapshot, cluster.cache, CONFIG, discarded)
    assert cluster.seen() == [[2], ALL[0], [2], [2]]
    assert cluster.seen() == NONE
    cluster.replace_tenant(4)
    assert cluster.seen() == [[4]] * WAITING
    offer_again(cluster.snapshot, cluster.cache, CONFIG, discarded)
    assert cluster.seen() == [[2], [2, 4], [2], [2]]  # the others were refused before
