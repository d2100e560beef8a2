"""Steps on slices from the run on the whole card; mixes observed under one share, predicted under another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.published.miso import observed_at_half
from predictor.evaluation.protocols.published.slice_demand import SliceDemand, slice_shares
from predictor.evaluation.protocols.published.slices import on_slices
from profiling.errors import InputError

SLICES = ("1g", "2g", "3g", "4g")
JOBS = {f"net-{k}": 0.1 + 0.15 * k for k in range(6)}


def solo() -> pd.DataFrame:
    """Power and utilisation show what share of the card a job demands; on smaller slices it slows down."""
    rows = []
    for job, asked in JOBS.items():
        rows += [{"device": "a100", "workload": job, "power_w": 60 + 200 * asked, "utilization_ratio": asked,
                  "memory_bandwidth_ratio": 0.0}]  # fmt: skip
        for size in (*SLICES, "7g"):
            share = slice_shares(f"a100:mig={size}")[0]
            rows.append(
                {"device": f"a100:mig={size}", "workload": job, "step_time_s": 0.01 * (1 + asked / share)}
            )
    return pd.DataFrame(rows).assign(architecture=lambda f: f["workload"], campaign="miso", gpus=1)


def bundles() -> tuple[Bundle, Bundle]:
    table = solo()
    rows = on_slices(table[table["step_time_s"].notna()], {"solo": table}).assign(
        set_id=lambda f: f["workload"]
    )
    last = rows["workload"] == list(JOBS)[-1]
    sides = (Bundle("solo_step_time_s", rows[side], table.iloc[:0]) for side in (~last, last))
    return tuple(sides)  # type: ignore[return-value]


def test_slices_are_shares_of_the_largest() -> None:
    assert slice_shares("a100:mig=7g") == (1.0, 1.0)
    cores, memory = slice_shares("a100:mig=3g")
    assert cores == pytest.approx(3 / 7)
    assert memory == 0.5


def test_a_left_out_network_is_predicted_from_its_run_on_the_whole_card() -> None:
    train, test = bundles()
    assert set(test.rows["device"]) == {f"a100:mig={size}" for size in SLICES}
    answers = SliceDemand().fit(train).predict(test.without_targets())
    np.testing.assert_allclose(answers, test.y, rtol=0.15)
    assert (answers > test.rows["whole_step_time_s"]).all()
    with pytest.raises(InputError, match="nothing to learn"):
        SliceDemand().fit(train.without_targets())


def test_only_a_mixs_run_at_half_of_the_card_is_known() -> None:
    rows = [
        {"set_id": "m", "member": member, "workload": f"net-{member}", "numerator_sm_share_ratio": share,
         "denominator_sm_share_ratio": 0.14, "log_step_time_ratio": share * (member + 1)}
        for member in (0, 1) for share in (0.5, 1.0)
    ]  # fmt: skip
    asked = observed_at_half(pd.DataFrame(rows), {})
    assert asked["numerator_sm_share_ratio"].tolist() == [1.0, 1.0]
    assert asked["observed_log_step_time_ratio"].tolist() == [0.5, 1.0]
    assert asked["log_step_time_ratio"].tolist() == [1.0, 2.0]
