"""GPUs that lack a job's precision or are too slow are skipped; if all are, that is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from predictor.types import PredictionArrays
from profiling.errors import InfeasibleError, TooSlowError
from profiling.workload import ColocationSet
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.place import place
from scheduling.simulator.feasibility import infeasible_jobs
from tests.scheduling.tables import GIB, JOBS

BF16 = replace(JOBS[0], precision="bf16")


def predictor() -> TablePredictor:
    """Knows the bf16 job on an A100 only, and would raise for a V100."""
    solo = {("a100", BF16): Solo(0.1, 2 * GIB, 0.5)}
    solo |= {(device, JOBS[1]): Solo(0.1, 2 * GIB, 0.5) for device in ("a100", "v100")}
    return TablePredictor(solo, {}, {"a100": 40 * GIB, "v100": 16 * GIB})


def test_a_bf16_job_goes_to_a_card_with_bf16() -> None:
    busy = Gpu("1", "v100", tenants=(Tenant(JOBS[1], 10.0),))
    cluster = ClusterSnapshot((Node("n", (Gpu("0", "v100"), busy, Gpu("2", "a100"))),))
    decision = place(BF16, 100, cluster, predictor())
    assert [r.gpu for r in decision.ranked] == ["2"]
    assert any("2 GPUs refused" in reason and "precision" in reason for reason in decision.reasons)
    with pytest.raises(InfeasibleError, match="no GPU of this cluster has BF16"):
        place(BF16, 100, ClusterSnapshot((Node("n", (Gpu("0", "v100"), busy)),)), predictor())


def test_jobs_share_by_mig_only_where_there_are_slices() -> None:
    """Two jobs on a V100 declared as shared by MIG, for which the predictor would refuse to predict."""
    for device, places in (("v100", ["1"]), ("a100", ["1", "0"])):
        busy = Gpu("0", device, "mig", (Tenant(JOBS[1], 10.0),))
        cluster = ClusterSnapshot((Node("n", (busy, Gpu("1", "a100"))),))
        devices = {"a100": 40 * GIB, "v100": 16 * GIB}
        solo = {(name, job): Solo(0.1, 2 * GIB, 0.1) for name in devices for job in JOBS[:2]}
        ratios = {(name, (JOBS[0], JOBS[1])): (0.9, 0.9) for name in devices}
        table = TablePredictor(solo, ratios, devices)
        decision = place(JOBS[0], 100, cluster, table)
        assert [r.gpu for r in decision.ranked] == places
        assert any("MIG slices" in reason for reason in decision.reasons) == (device == "v100")


def test_feasible_and_infeasible_sets_in_one_call() -> None:
    cache = SetCache(predictor())
    numbers = [cache.workload_id(BF16), cache.workload_id(JOBS[1])]
    devices = np.array([cache.device_id("v100"), cache.device_id("a100"), cache.device_id("v100")])
    rows = cache.rows(devices, np.array([[numbers[0]], [numbers[0]], [numbers[1]]]), np.ones((3, 1), bool))
    assert cache.fits[rows].tolist() == [False, True, True]
    alone = predictor().predict_arrays([ColocationSet("a100", (BF16,))])
    assert cache.step_time_s[rows[1], 0] == alone.step_time_s[0, 0]


class SlowOnK80:
    """Refuses any set with this job on a K80, as the shipped predictor does if a step would take two weeks."""

    def __init__(self) -> None:
        devices = {"k80": 12 * GIB, "v100": 16 * GIB}
        solo = {(name, job): Solo(0.1, 2 * GIB, 0.1) for name in devices for job in JOBS[:2]}
        ratios = {(name, (JOBS[0], JOBS[1])): (0.9, 0.9) for name in devices}
        self.table = TablePredictor(solo, ratios, devices)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        if any(s.device == "k80" and JOBS[0] in s.workloads for s in sets):
            raise TooSlowError("a step would take 1e7 s on k80")
        return self.table.predict_arrays(sets)


def test_a_type_too_slow_for_a_job_is_no_candidate() -> None:
    busy = Gpu("1", "k80", tenants=(Tenant(JOBS[1], 10.0),))
    cluster = ClusterSnapshot((Node("n", (Gpu("0", "k80"), busy, Gpu("2", "v100"))),))
    decision = place(JOBS[0], 100, cluster, SlowOnK80())
    assert [r.gpu for r in decision.ranked] == ["2"]
    assert "2 GPUs refused: a step would take more than two weeks on k80" in decision.reasons
    assert [r.gpu for r in place(JOBS[1], 100, cluster, SlowOnK80()).ranked] == ["0", "2"]
    slow = ClusterSnapshot((Node("n", (Gpu("0", "k80"), busy)),))
    with pytest.raises(InfeasibleError, match=r"more than two weeks on every GPU of this cluster \(k80\)"):
        place(JOBS[0], 100, slow, SlowOnK80())
    told = infeasible_jobs([TraceJob("j", JOBS[0], 1.0)], SchedulingSnapshot(slow), SetCache(SlowOnK80()))
    assert told["j"].endswith("does not fit on k80 (a step would take more than two weeks) even alone")
