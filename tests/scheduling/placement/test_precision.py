"""GPUs without a job's precision are skipped, and a cluster without any that has it is an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiling.errors import InfeasibleError
from profiling.workload import ColocationSet
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.placement.place import place
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
