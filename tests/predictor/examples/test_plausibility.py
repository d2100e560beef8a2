from __future__ import annotations

import pandas as pd
import pytest

from datasets.tables import make_table
from predictor.examples.featurizer import Featurizer
from predictor.examples.plausibility import check_plausible, implausible_rows
from profiling.errors import InputError
from profiling.workload import Workload

JOB = "resnet18-cifar:batch_size=64"


def solo_rows(*step_times_s: float) -> pd.DataFrame:
    given = {"source": "mine", "campaign": "mine", "licence": "CC0-1.0", "origin": "measured", "gpus": 1}
    rows = [
        {**given, "device": "v100", "workload": JOB, "step_time_s": step_s, "repeat": k + 1}
        for k, step_s in enumerate(step_times_s)
    ]
    return make_table("solo", rows)


def test_milliseconds_in_place_of_seconds_are_found() -> None:
    predicted_s = Featurizer().job(Workload.parse(JOB), "v100").cost.step_time_s
    rows = solo_rows(predicted_s, 1000 * predicted_s, 2 * predicted_s, predicted_s / 1000)
    found = implausible_rows(rows)
    assert [row for row, _ in found] == [2, 4]
    assert f"predicted {predicted_s:.3g}" in found[0][1]


def test_tables_without_step_times_have_nothing_to_compare() -> None:
    assert implausible_rows(solo_rows(0.03).drop(columns="step_time_s")) == []


def test_an_observation_far_from_its_prediction_is_refused() -> None:
    check_plausible(0.3, 0.03)
    with pytest.raises(InputError, match="seconds per step"):
        check_plausible(30.0, 0.03)
