from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.tables import make_table
from predictor.evaluation.evaluation import evaluate
from predictor.evaluation.rows import evaluate_rows
from predictor.predictor import Predictor
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload

OWN = {"source": "mine", "campaign": "mine-2026-01", "licence": "CC0-1.0", "origin": "measured"}


def test_solo_steps(predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    solo = measured[1]
    unknown = solo.iloc[:2].assign(workload="omega:batch_size=32", architecture="omega")
    seen: list[tuple[int, int]] = []
    result = evaluate_rows(
        predictor,
        "step-time",
        pd.concat([solo, unknown], ignore_index=True),
        lambda done, jobs: seen.append((done, jobs)),
    )
    assert result["metrics"]["n"] == len(solo)
    jobs = len({*zip(solo["workload"], solo["device"], strict=True)}) + 2
    assert seen == [(0, jobs), (jobs, jobs)]
    assert set(result["metrics"]) >= {
        "mape_percent",
        "median_ape_percent",
        "r2",
        "spearman",
        "coverage_90",
    }
    assert set(result["by_device"]) == {"v100", "p100"}
    assert set(result["by_family"]) == set(result["by_model"]) == {"alpha", "beta", "gamma", "delta"}
    assert list(result["unanswered"].values()) == [2]
    with pytest.raises(InputError, match="cannot answer any row"):
        evaluate_rows(predictor, "step-time", unknown)


def test_measured_times_are_not_given_to_the_predictor(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    solo = measured[1]
    slower = solo.assign(step_time_s=solo["step_time_s"] * 10)
    first, second = (evaluate_rows(predictor, "step-time", rows) for rows in (solo, slower))
    assert first["metrics"]["mape_percent"] != second["metrics"]["mape_percent"]
    answer = predictor.predict(ColocationSet("v100", (Workload.parse(str(solo["workload"].iloc[0])),)))
    row = solo[(solo["device"] == "v100") & (solo["workload"] == solo["workload"].iloc[0])].iloc[:1]
    scored = evaluate_rows(predictor, "step-time", row)
    expected = abs(answer.members[0].solo_step_time_s.value / row["step_time_s"].iloc[0] - 1)
    assert scored["metrics"]["mape_percent"] == pytest.approx(100 * expected)


def test_known_campaigns_use_their_host_costs(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    cost_model = predictor.fitted_.model.featurizer.cost_model
    campaign = next(name for name in cost_model.campaigns if name.endswith("/training"))
    row = measured[1].iloc[:1]
    job = predictor.fitted_.model.featurizer.job(
        Workload.parse(str(row["workload"].iloc[0])), row["device"].iloc[0]
    )
    here = cost_model.cost(job.graph, job.device, job.workload, campaign).step_time_s / job.cost.step_time_s
    answer = (
        predictor.predict(ColocationSet(job.device.name, (job.workload,))).members[0].solo_step_time_s.value
    )
    for name, expected in ((campaign.partition("/")[0], answer * here), ("nobody's", answer)):
        exact = row.assign(campaign=name, mode="training", step_time_s=expected)
        assert evaluate_rows(predictor, "step-time", exact)["metrics"]["mape_percent"] == pytest.approx(
            0, abs=1e-4
        )


def test_memory_with_points_and_bounds(predictor: Predictor) -> None:
    job = {"device": "v100", "workload": "alpha:batch_size=32", "architecture": "alpha", "batch_size": 32}
    value = predictor.predict(ColocationSet("v100", (Workload.parse(job["workload"]),))).members[0]
    exact = value.memory_bytes.value
    rows = make_table(
        "memory",
        [
            job | OWN | {"scope": "device", "memory_bytes": exact},
            job | OWN | {"scope": "allocator", "memory_bytes": 1.0},
            job
            | OWN
            | {
                "scope": "device",
                "lower_bound_bytes": exact / 2,
                "upper_bound_bytes": exact / 1.1,
                "campaign": "mine-2",
            },
        ],
    )
    result = evaluate_rows(predictor, "memory", rows)
    assert result["metrics"]["n"] == 1
    assert result["metrics"]["mape_percent"] == pytest.approx(0, abs=1e-9)
    assert result["bounds"]["at_least"]["kept_ratio"] == 1
    assert result["bounds"]["at_most"]["kept_ratio"] == 0
    pools = rows.assign(scope="pool")
    with pytest.raises(InputError, match=r"whole devices \(scope device\), got 3 of scope pool"):
        evaluate_rows(predictor, "memory", pools)


def test_single_operators(predictor: Predictor) -> None:
    row = {"device": "v100", "kind": "matmul", "operator": "bmm", "operand_count": 2, "latency_s": 1e-3}
    shape = {"b": 1, "m": 64, "n": 64, "k": 64, "precision": "fp32"}
    rows = make_table(
        "operators",
        [row | OWN | shape, row | OWN | shape | {"device": "p100"}, row | OWN | shape | {"device": "abacus"}],
    )
    result = evaluate_rows(predictor, "operator-time", rows)
    assert result["metrics"]["n"] == 2
    assert set(result["by_device"]) == {"v100", "p100"}
    assert set(result["by_family"]) == {"matmul"}
    assert "coverage_90" not in result["metrics"] or result["metrics"]["coverage_90"] is None
    assert list(result["unanswered"].values()) == [1]
    with pytest.raises(InputError, match="no rows to score"):
        evaluate_rows(predictor, "operator-time", rows.iloc[:0])


def test_graph_only_removes_solo_measurements(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    colocation, solo = measured[0].assign(set_id=measured[0]["set_id"] + "-later"), measured[1]
    known = evaluate(predictor, colocation, solo)
    hidden = evaluate(predictor, colocation, solo, graph_only=True)
    bare = evaluate(predictor, colocation.assign(solo_step_time_s=np.nan), solo.iloc[:0])
    assert hidden["metrics"] == bare["metrics"]
    assert hidden["metrics"]["mape_percent"] != known["metrics"]["mape_percent"]
    assert hidden["by_family"]
