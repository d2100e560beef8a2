from __future__ import annotations

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.sia.configurations import Configuration
from scheduling.sia.ilp import solve, total_worth
from scheduling.sia.objective import SiaConfig
from scheduling.sia.pairs import SharingPair, choose_with_pairs, sharing_pairs
from scheduling.sia.rows import JobRows


def test_of_two_jobs_that_share_a_gpu_the_one_that_must_stay_leads() -> None:
    """The other may be moved, and its follower would move with it."""
    jobs = [
        JobState(TraceJob(f"j{n}", Workload("resnet18-cifar"), 1.0, preemptible=n == 0), n, 1.0, gpus=(0,))
        for n in range(2)
    ]
    both = np.ones(2)
    rows = JobRows(jobs, [Configuration(1, 1, 0)], np.ones((2, 1)), both, both, np.zeros(2, np.int64), {1: 0})
    chosen = choose_with_pairs(rows, [SharingPair(1, 0, 0, 0.9, 0.9)], np.array([1]), SiaConfig())
    assert chosen.followers == [(jobs[1], jobs[0])]
    assert list(chosen.configurations) == [1]


@pytest.mark.parametrize("seed", range(2))
def test_jobs_that_must_stay_do_not_keep_others_from_their_best_configurations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    staying, waiting, config = 24, 3, SiaConfig()
    table = [Configuration(1, gpus, 0) for gpus in (1, 2, 4, 8)]
    gpus, kinds, capacity = np.array([1, 2, 4, 8]), np.zeros(4, np.int64), np.array([staying + 14])
    stays = np.arange(staying + waiting) < staying
    jobs = [
        JobState(TraceJob(f"j{n}", Workload("resnet18-cifar"), 1.0), n, 1.0, gpus=(n,) if stays[n] else ())
        for n in range(len(stays))
    ]
    goodput = gpus ** rng.uniform(0.3, 1, (len(jobs), 1))
    goodput[stays, 1:] = np.nan
    ones, forced = np.ones(len(jobs)), dict.fromkeys(range(staying), 0)
    rows = JobRows(jobs, table, goodput, ones, ones, np.where(stays, 0, -1), forced)
    chosen = choose_with_pairs(rows, [], capacity, config).configurations
    columns = np.array([table.index(chosen[n][1]) if n in chosen else -1 for n in range(len(jobs))])
    worth = rows.worth(goodput, config)
    best = solve(worth, gpus, kinds, capacity, forced, gap=0.0)
    assert (columns[stays] == 0).all()
    of_waiting = total_worth(worth[~stays], best[~stays])
    assert total_worth(worth[~stays], columns[~stays]) == pytest.approx(of_waiting, rel=1e-3)


@pytest.mark.parametrize("other", [0, 1])
def test_a_job_that_must_stay_does_so_even_if_it_is_predicted_not_to_fit(other: int) -> None:
    jobs = [
        JobState(
            TraceJob(f"j{n}", Workload("resnet18-cifar"), 1.0, preemptible=False), n, 1.0, gpus=(n * other,)
        )
        for n in range(2)
    ]
    ones, goodput = np.ones(2), np.array([[np.nan], [1.0]])
    rows = JobRows(jobs, [Configuration(1, 1, 0)], goodput, ones, ones, np.zeros(2, np.int64), {0: 0, 1: 0})
    pairs = [] if other else [SharingPair(0, 1, 0, np.nan, 0.5)]
    chosen = choose_with_pairs(rows, pairs, np.array([1 + other]), SiaConfig())
    assert {*chosen.configurations, *(follower.number for _, follower in chosen.followers)} == {0, 1}


A, B, C = (Workload(name) for name in "abc")
BELIEF = TablePredictor(
    {("v100", job): Solo(1.0) for job in (A, B, C)},
    {("v100", (A, B)): (0.8, 0.9), ("v100", (A, C)): (0.3, 0.8), ("v100", (B, C)): (0.45, 0.5)},
)


def offered(running: tuple[int, ...] = (), forced: frozenset[int] = frozenset()) -> list[SharingPair]:
    """Pairs of three jobs, of which some run on one GPU, and of those some must stay."""
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "n", "gpus": [{"device": "v100", "count": 2}]}]}
    )
    snapshot, jobs = SchedulingSnapshot(cluster), []
    for number, workload in enumerate((A, B, C)):
        job = JobState(TraceJob(workload.model, workload, 1.0), number, 1.0)
        if number in running:
            job.gpus = (0,)
            snapshot.running[number] = job
            snapshot.occupy(job)
        jobs.append(job)
    goodput = np.array([[10.0], [20.0], [40.0]])
    rows = JobRows(
        jobs, [Configuration(1, 1, 0)], goodput, np.ones(3), np.ones(3), np.zeros(3, np.int64),
        dict.fromkeys(forced, 0),
    )  # fmt: skip
    return sharing_pairs(snapshot, SetCache(BELIEF), rows, 2.0)


def test_pairs_that_gain_without_slowing_a_job_too_much_are_offered() -> None:
    (pair,) = offered()
    assert pair == pytest.approx((0, 1, 0, 8.0, 18.0))


def test_a_job_that_must_stay_is_offered_with_its_present_partner_alone() -> None:
    for forced in ({0}, {2}, {0, 2}):
        (pair,) = [p for p in offered((0, 2), frozenset(forced)) if forced & {p.first, p.second}]
        goodput = {pair.first: pair.first_goodput, pair.second: pair.second_goodput}
        assert goodput == pytest.approx({0: 3.0, 2: 32.0})
