"""The first check rules out only candidates that a complete simulation would rule out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import Gpu, Tenant
from scheduling.placement.ranking import OBJECTIVES, Candidates, PlacementConfig, rank, rank_possible
from scheduling.placement.stages import stages
from tests.scheduling.tables import JOBS, table

PREDICTOR = table()
TENANTS = st.tuples(st.integers(0, 5), st.floats(1, 1e4), st.sampled_from([None, 1.0, 2.0, 1e9]))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["v100", "k80"]), st.lists(TENANTS, max_size=3)), max_size=8),
    st.integers(0, 4),
    st.floats(1, 1e4),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([1, 1.3, 2.0, 50.0]),
)
def test_feasible_candidates_are_ranked_alike(
    raw: list, number: int, iterations: float, objective: str, budget: float
) -> None:
    gpus = [
        Gpu("0", device, tenants=tuple(Tenant(JOBS[job], left, "", most) for job, left, most in tenants))
        for device, tenants in raw
    ]
    cache = SetCache(PREDICTOR)
    c = Candidates.of(cache, gpus)
    before = stages(cache, c.devices, c.members, c.iterations, c.present)
    config = PlacementConfig(objective=objective, max_slowdown=budget, max_members=3)
    job = cache.workload_id(JOBS[number])
    every = rank(cache, c, job, iterations, config, before)
    quick = rank_possible(cache, c, job, iterations, config, before)
    np.testing.assert_array_equal(quick.score, every.score)
    able = np.isfinite(every.score)
    for name in ("cost_s", "finish_s", "extension_s", "delays_s", "slowdown"):
        np.testing.assert_array_equal(getattr(quick, name)[able], getattr(every, name)[able], name)
    np.testing.assert_array_equal(quick.has_room, every.has_room)
    np.testing.assert_array_equal(quick.fits, every.fits)
    tried = every.has_room & every.fits
    np.testing.assert_array_equal(quick.within_budget[tried], every.within_budget[tried])
