"""What a logged predictor answers to the rows that MLflow hands it."""

from __future__ import annotations

import pandas as pd
import pytest

from predictor.fitted.mlflow_flavour import LoggedPredictor
from profiling.workload import ColocationSet
from tests.scheduling.tables import JOBS, table


def test_rows_of_a_set_may_be_apart_and_keep_their_order() -> None:
    logged, known = LoggedPredictor(), table()
    logged.predictor = known
    triple = ColocationSet("v100", (JOBS[1], JOBS[4], JOBS[2]))
    pair = ColocationSet("k80", (JOBS[5], JOBS[0]), "mps")
    rows = [("a", triple, 0), ("b", pair, 0), ("a", triple, 1), ("b", pair, 1), ("a", triple, 2)]
    asked = pd.DataFrame(
        {"set_id": name, "device": s.device, "sharing": s.sharing, "workload": str(s.workloads[k])}
        for name, s, k in rows
    ).set_index(pd.Index([7, 7, 3, 0, 1]))
    answers = logged.predict(None, asked)
    assert answers["set_id"].tolist() == [name for name, _, _ in rows]
    direct = known.predict_arrays([triple, pair])
    for name in ("slowdown", "step_time_s", "memory_bytes", "utilization_ratio"):
        expected = [getattr(direct, name)[0 if s is triple else 1, k] for _, s, k in rows]
        assert answers[name].tolist() == pytest.approx(expected), name
