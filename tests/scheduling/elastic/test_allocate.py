from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError
from scheduling.elastic.allocate import allocate
from scheduling.elastic.jobs import SIZES, ElasticJob, IceFrogConfig
from scheduling.elastic.penalty import FreezingGuards
from tests.scheduling.elastic.exact import allocate_exact, objective
from tests.scheduling.elastic.jobs import job, some

FREE = IceFrogConfig(min_prefix_gain=0.0)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 40), gpus=st.integers(1, 48), seed=st.integers(0, 10**6))
def test_never_grants_more_gpus_than_available(count: int, gpus: int, seed: int) -> None:
    jobs = some(count, seed)
    grants = allocate(jobs, gpus)
    assert len(grants) == len(jobs)
    assert sum(g.gpus for g in grants) <= gpus
    assert sum(g.gpus > 0 for g in grants) == min(count, gpus)
    for grant, agent in zip(grants, jobs, strict=True):
        assert grant.prefix == 0 or agent.progress >= 0.1
        assert grant.size < 0 or agent.rate[grant.size, grant.prefix] > 0


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 5), extra=st.integers(0, 12), seed=st.integers(0, 10**6))
def test_close_to_the_exact_optimum(count: int, extra: int, seed: int) -> None:
    jobs, gpus = some(count, seed), count + extra
    greedy = objective(jobs, allocate(jobs, gpus, FREE), gpus, FREE)
    exact = objective(jobs, allocate_exact(jobs, gpus, FREE), gpus, FREE)
    assert exact <= greedy * (1 + 1e-9)
    assert greedy <= 1.25 * exact


def test_exact_needs_a_gpu_per_job() -> None:
    with pytest.raises(InfeasibleError):
        allocate_exact(some(3), 2)


def test_prefix_is_the_best_that_the_guards_allow() -> None:
    assert allocate([job()], 1)[0].prefix == 2  # 1.33 * (1 - 0.09) beats 1.17 * 0.99; S = 0.8 is barred
    assert allocate([job(progress=0.05)], 1)[0].prefix == 0
    never = IceFrogConfig(guards=FreezingGuards(max_norm_share=0.0))
    assert allocate([job()], 1, never)[0].prefix == 0


def test_shortest_first_without_starvation() -> None:
    long, short = job(0, 1e6), job(1, 10.0)
    assert [g.gpus for g in allocate([long, short], 1)] == [0, 1]
    waiting = job(0, 1e6, goes_first=True)
    assert [g.gpus for g in allocate([waiting, short], 1)] == [1, 0]
    started = job(2, 1e7, size=0, goes_first=True)
    assert [g.gpus for g in allocate([waiting, short, started], 1)] == [0, 0, 1]
    later = job(3, 5.0, goes_first=True)
    assert [g.gpus for g in allocate([waiting, short, later], 1)] == [1, 0, 0]
    assert [g.gpus for g in allocate([long, short], 1, admit_by="submission")] == [1, 0]


def test_hysteresis_ignores_small_gains() -> None:
    flat = job(0, 1e6, scaling=0.05, size=0)
    assert allocate([flat], 2)[0].gpus == 1  # 2 GPUs would give 3.5 %
    assert allocate([job(0, 1e6, size=0)], 2)[0].gpus == 2
    assert allocate([job(0, 20.0, size=0)], 2)[0].gpus == 1  # done before the restart pays


def test_nearly_equal_jobs_do_not_take_gpus_from_each_other() -> None:
    grown, small = job(0, 1e6, size=1), job(1, 1e6, scaling=0.82, size=0)
    assert [g.gpus for g in allocate([grown, small], 3)] == [2, 1]
    assert [g.gpus for g in allocate([job(0, 1e6, scaling=0.3, size=1), small], 3)] == [1, 2]
    runs = job(0, 1050.0, size=0)
    assert [g.gpus for g in allocate([runs, job(1, 1000.0)], 1)] == [1, 0]
    assert [g.gpus for g in allocate([runs, job(1, 900.0)], 1)] == [0, 1]


def test_only_allowed_sizes_are_used() -> None:
    for gpus in range(1, 49):
        assert all(g.gpus in (0, *SIZES) for g in allocate(some(3, gpus), gpus))


@pytest.mark.parametrize("shortness", [0.0, 1.0])
def test_a_job_that_needs_more_than_its_fair_share_grows_into_idle_gpus(shortness: float) -> None:
    sizes = np.array(SIZES, float)

    def ranged(number: int, least: int, most: int) -> ElasticJob:
        rate = np.where((sizes >= least) & (sizes <= most), sizes**0.9, 0.0)
        return ElasticJob(number, 1e5, rate[:, None], np.zeros(1))

    jobs = [ranged(0, 1, 1), ranged(1, 1, 1), ranged(2, 1, 1), ranged(3, 4, 8)]
    grants = allocate(jobs, 12, IceFrogConfig(shortness=shortness))
    assert [g.gpus for g in grants] == [1, 1, 1, 8]


def test_invalid_jobs_and_configurations_are_rejected() -> None:
    with pytest.raises(InputError, match="invalid"):
        ElasticJob(0, 1.0, np.ones((2, 2)), np.zeros(2))
    for options in ({"round_s": 0.0}, {"min_size_gain": -1.0}, {"shortness": 2.0}):
        with pytest.raises(InputError, match="out of range"):
            IceFrogConfig(**options)
