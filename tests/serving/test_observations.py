"""Feedback."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.handlers.calibration import by_job, recent
from serving.handlers.observations import error_by_day
from tests.serving.problems import problem


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "of": {"device": "v100", "jobs": ["resnet18-cifar", "resnet18-cifar"]},
        "member": 1,
        "step_time_s": 0.2,
        **changes,
    }


def test_record_and_list(client: TestClient) -> None:
    answer = client.post(
        "/v1/observations", json={"observations": [seen(), seen(step_time_s=0.14, member=0)]}
    )
    assert answer.status_code == 201
    first, second = answer.json()["observations"]
    assert first["predicted_step_time_s"]["value"] == pytest.approx(0.14)
    assert first["error_ratio"] == pytest.approx(0.3)
    assert (first["covered"], second["covered"]) == (False, True)
    listing = client.get("/v1/observations", params={"limit": 1}).json()
    assert listing["items"] == [second]
    assert client.get("/v1/observations", params={"after": listing["next"]}).json()["items"] == [first]
    text = client.get("/metrics").text
    assert "cotenant_prediction_error_ratio_count 2.0" in text
    assert 'cotenant_observations_total{covered="true"} 1.0' in text
    assert (
        'cotenant_observed_step_times_total{answer="model",covered="true",device="v100",job="resnet18-cifar"} 1.0'
        in text
    )
    assert (
        'cotenant_observed_step_times_total{answer="corrected",covered="true",device="v100",job="resnet18-cifar"} 1.0'
        in text
    )
    assert 'cotenant_observed_log_error_total{answer="model",device="v100",job="resnet18-cifar"}' in text
    points = recent(client.app.state.service)  # type: ignore[attr-defined]
    assert [p.log_ratio for p in points] == pytest.approx([math.log(0.2 / 0.14), 0.0])
    (row,) = by_job(points)
    assert (row.device, row.job, row.count, row.coverage) == ("v100", "resnet18-cifar", 2, 0.5)
    assert row.drift_ratio == pytest.approx(math.sqrt(0.2 / 0.14) - 1)
    page = client.get("/").text
    assert page.count("<circle") == 2
    assert "Observed against predicted" in page
    (day,) = error_by_day(client.app.state.service)  # type: ignore[attr-defined]
    assert (day["count"], day["coverage"]) == (2, 0.5)
    assert day["error_ratio"] == pytest.approx(0.15)


def test_once(client: TestClient) -> None:
    body = {"observations": [seen()]}
    first = client.post("/v1/observations", json=body, headers={"Idempotency-Key": "a"})
    assert client.post("/v1/observations", json=body, headers={"Idempotency-Key": "a"}).json() == first.json()
    assert len(client.get("/v1/observations").json()["items"]) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"member": 2}, 422),
        ({"step_time_s": 0}, 422),
        ({"placement_id": "nowhere"}, 404),
        ({"of": {"device": "x", "jobs": ["resnet18-cifar"]}, "member": 0}, 404),
    ],
)
def test_bad_input_stores_nothing(client: TestClient, change: dict[str, Any], status: int) -> None:
    problem(client.post("/v1/observations", json={"observations": [seen(), seen(**change)]}), status)
    assert client.get("/v1/observations").json()["items"] == []
