"""Step times carried over between settings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from models.baselines.transfer import TransferPredictor
from profiling.errors import InputError

# Seconds per sample: a job's own, times a factor of the setting.
JOBS = {"a": 0.001, "b": 0.004, "c": 0.002}
FACTORS = {("v100", "fp32"): 1.0, ("v100", "amp"): 0.5, ("k80", "fp32"): 6.0}


def bundle(*runs: tuple[str, str, str, int], factors: dict[tuple[str, str], float] = FACTORS) -> Bundle:
    """Runs are (job, device, precision, batch size)."""
    rows = [
        {
            "set_id": str(number),
            "architecture": job,
            "device": device,
            "precision": precision,
            "batch_size": batch,
            "step_time_s": JOBS[job] * factors[device, precision] * batch,
        }
        for number, (job, device, precision, batch) in enumerate(runs)
    ]
    frame = pd.DataFrame(rows)
    return Bundle("solo_step_time_s", frame, frame.iloc[:0])


def answers(train: Bundle, test: Bundle) -> list[float]:
    predictor = TransferPredictor(["architecture"], ["device", "precision"]).fit(train)
    return predictor.predict(test.without_targets()).tolist()


def test_a_jobs_time_elsewhere_times_the_ratio_of_others_and_the_batch() -> None:
    train = bundle(("a", "v100", "fp32", 8), ("a", "k80", "fp32", 16), ("b", "v100", "fp32", 8))
    test = bundle(("b", "k80", "fp32", 32))
    assert answers(train, test) == pytest.approx(test.y)


def test_only_the_settings_most_alike_count() -> None:
    """`c` ran in both other settings of a V100; from the K80, which has neither in common, it would be wrong."""
    factors = {**FACTORS, ("k80", "bf16"): 100.0}
    runs = [("a", *setting, 8) for setting in factors]
    train = bundle(*runs, ("c", "v100", "fp32", 8), ("c", "k80", "bf16", 8), factors=factors)
    train.frame.loc[train.frame.index[-1], "step_time_s"] *= 50.0
    test = bundle(("c", "v100", "amp", 4))
    assert answers(train, test) == pytest.approx(test.y)


def test_unknown_jobs_and_settings_have_no_answer() -> None:
    train = bundle(("a", "v100", "fp32", 8), ("a", "k80", "fp32", 8), ("b", "v100", "fp32", 8))
    assert np.isnan(answers(train, bundle(("c", "k80", "fp32", 8), ("b", "v100", "amp", 8)))).all()
    with pytest.raises(InputError, match="nothing to learn"):
        answers(train.without_targets(), train)


def test_with_a_single_setting_nothing_can_be_carried_over() -> None:
    train = bundle(("a", "v100", "fp32", 8), ("b", "v100", "fp32", 8))
    assert np.isnan(answers(train, bundle(("a", "v100", "fp32", 8)))).all()
