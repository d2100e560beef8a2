from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import Gpu, Tenant
from scheduling.placement.ranking import Candidates, PlacementConfig, rank
from scheduling.placement.stages import stages
from tests.scheduling.placement.plain_stages import quantify
from tests.scheduling.tables import JOBS, table

A, B = Workload("a"), Workload("b")
PAIR = TablePredictor(
    {("v100", A): Solo(1.0, 0.0, 0.5), ("v100", B): Solo(2.0, 0.0, 0.5)}, {("v100", (A, B)): (0.5, 0.8)}
)


def test_two_jobs_by_hand() -> None:
    # B runs 100 steps of 2 s alone (200 s). A joins with 50 steps: together A takes 2 s a step, B 2.5 s.
    # Stage 1: A needs 100 s, B 250 s; A leaves at 100 s, B has done 40 steps; 60 left alone take 120 s.
    q = quantify(PAIR, "v100", [Tenant(B, 100.0)], A, 50.0)
    assert q.finish_s == pytest.approx(100.0)
    assert q.delays_s == pytest.approx((20.0,))
    assert q.empty_s == pytest.approx(220.0)
    assert q.slowdowns == pytest.approx((1.25, 2.0))
    # contention: A 2.0 for its whole life; B 1.25 for 100 of its 220 s
    assert q.interference == pytest.approx(1.0 + 0.25 * 100 / 220)
    literal = quantify(PAIR, "v100", [Tenant(B, 100.0)], A, 50.0, literal=True)
    assert literal.interference == pytest.approx(2.0 + 1.25 * 100 / 220)


def test_an_empty_gpu_has_no_interference() -> None:
    q = quantify(PAIR, "v100", [], A, 50.0)
    assert (q.interference, q.finish_s, q.delays_s) == (0.0, 50.0, ())


def test_iterations_may_be_fractional() -> None:
    q = quantify(PAIR, "v100", [Tenant(B, 1.0)], A, 1.0)
    assert q.finish_s == pytest.approx(2.0)
    assert q.empty_s == pytest.approx(2.0 + 2.0 * (1 - 2.0 / 2.5))


states = st.lists(
    st.tuples(
        st.sampled_from(["v100", "k80"]),
        st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e5)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(states, st.integers(0, 5), st.floats(1, 1e5), st.booleans())
def test_batched_equals_plain(raw: list, job: int, iterations: float, literal: bool) -> None:
    predictor = table(4)
    gpus = [Gpu(str(i), d, tenants=tuple(Tenant(JOBS[j], n) for j, n in t)) for i, (d, t) in enumerate(raw)]
    cache = SetCache(predictor)
    candidates = Candidates.of(cache, gpus)
    config = PlacementConfig(objective="interference", literal=literal, max_slowdown=1e9)
    ranking = rank(cache, candidates, cache.workload_id(JOBS[job]), iterations, config)
    for row, gpu in enumerate(gpus):
        q = quantify(predictor, gpu.device, gpu.tenants, JOBS[job], iterations, literal=literal)
        assert ranking.fits[row] == q.fits
        assert ranking.finish_s[row] == pytest.approx(q.finish_s, rel=1e-9)
        assert ranking.delays_s[row, : len(gpu.tenants)] == pytest.approx(q.delays_s, rel=1e-9, abs=1e-6)
        if q.fits:
            assert ranking.score[row] == pytest.approx(q.interference, rel=1e-9, abs=1e-9)


def test_stages_terminate_for_any_numbers() -> None:
    cache = SetCache(PAIR)
    ids = [[cache.workload_id(A), cache.workload_id(B)]]
    for iterations in ([5e-324, 1.0], [np.nan, 1.0], [np.inf, np.inf], [1e300, 1e-300]):
        with np.errstate(all="ignore"):
            stages(
                cache,
                np.array([cache.device_id("v100")]),
                np.array(ids),
                np.array([iterations]),
                np.ones((1, 2), bool),
                np.array([[False, True]]),
            )


def test_cache_queries_each_set_once_and_grows() -> None:
    class Counting(TablePredictor):
        calls = 0

        def predict_arrays(self, sets):  # type: ignore[no-untyped-def]
            Counting.calls += len(sets)
            return super().predict_arrays(sets)

    base = table(4)
    predictor = Counting(base.solo, base.ratios, base.memory_bytes)
    cache = SetCache(predictor)
    device = cache.device_id("v100")
    ids = np.array([cache.workload_id(j) for j in JOBS])
    rng = np.random.default_rng(1)
    members = np.sort(ids[rng.integers(0, 6, (500, 4))], axis=1)
    present = np.ones((500, 4), bool)
    devices = np.full(500, device)
    rows = cache.rows(devices, members, present)
    asked = Counting.calls
    assert (cache.rows(devices, members, present) == rows).all()
    assert asked == Counting.calls
    for row, ids_row in zip(rows, members, strict=True):
        direct = base.predict_arrays([ColocationSet("v100", tuple(cache.workloads[i] for i in ids_row))])
        assert cache.step_time_s[row] == pytest.approx(direct.step_time_s[0])


def test_a_single_call_may_exceed_the_caches_limit() -> None:
    cache = SetCache(table(), limit=2)
    members = np.array([[cache.workload_id(JOBS[0]), cache.workload_id(job)] for job in JOBS])
    devices = np.full(len(members), cache.device_id("v100"))
    rows = cache.rows(devices, members, np.ones(members.shape, bool))
    assert len(np.unique(rows)) == len(JOBS) > cache.limit


def test_the_cache_is_reset_at_its_limit() -> None:
    cache = SetCache(table(), limit=20)
    for job in JOBS:
        got = stages(
            cache,
            np.array([cache.device_id("v100")]),
            np.array([[cache.workload_id(JOBS[0]), cache.workload_id(job)]]),
            np.array([[10.0, 10.0]]),
            np.ones((1, 2), bool),
            np.array([[False, True]]),
        )
        q = quantify(table(), "v100", [Tenant(JOBS[0], 10.0)], job, 10.0)
        assert got.finish_s[0, 1] == pytest.approx(q.finish_s)
