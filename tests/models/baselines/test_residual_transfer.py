from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle, Floats
from datasets.tables import empty_table
from models.baselines.residual_transfer import ResidualTransferPredictor

JOBS = (("architecture",), ("architecture", "compiler"))
# What each network and its compiled form take of the predicted time.
FACTORS = {("a", "eager"): 2.0, ("a", "compile"): 0.5, ("b", "eager"): 1.0, ("b", "compile"): 1.0}


class Constant:
    """One second for every job, but no prediction for network `d`."""

    def fit(self, train: Bundle, seed: int) -> Constant:
        return self

    def predict(self, test: Bundle) -> Floats:
        return np.where(test.rows["architecture"] == "d", np.nan, 1.0)


def bundle(device_factors: dict[str, float], extra: tuple[str, ...] = ()) -> Bundle:
    rows = [
        {"architecture": network, "compiler": compiler, "device": device, "step_time_s": times * factor}
        for device, times in device_factors.items()
        for (network, compiler), factor in (FACTORS | {(e, "eager"): 1.0 for e in extra}).items()
    ]
    frame = pd.DataFrame(rows)
    frame["set_id"] = [str(k) for k in range(len(frame))]
    return Bundle("solo_step_time_s", frame, empty_table("solo"))


def test_job_residuals_transfer_and_device_residuals_do_not() -> None:
    train = bundle({"v100": 1.0, "t4": 3.0, "p100": 0.2})
    model = ResidualTransferPredictor(Constant(), JOBS, ("device",)).fit(train, 0)
    test = bundle({"a100": 1.0}, extra=("c", "d"))
    answers = dict(
        zip(
            zip(test.rows["architecture"], test.rows["compiler"], strict=True),
            model.predict(test),
            strict=True,
        )
    )
    for job, factor in FACTORS.items():
        assert answers[job] == pytest.approx(factor, rel=1e-6)
    assert answers["c", "eager"] == pytest.approx(1.0)
    assert np.isnan(answers["d", "eager"])


def test_residuals_not_explained_by_jobs_change_nothing() -> None:
    rng = np.random.default_rng(0)
    train = bundle(dict.fromkeys([f"device {k}" for k in range(40)], 1.0))
    frame = train.frame.assign(step_time_s=np.exp(rng.normal(0.0, 0.3, len(train.frame))))
    model = ResidualTransferPredictor(Constant(), JOBS, ()).fit(Bundle(train.target, frame, train.solo), 0)
    assert np.abs(np.log(model.predict(train))).max() < 0.1
