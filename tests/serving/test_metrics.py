"""Gauges of several processes; those of killed processes are removed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from predictor.types import Quantity
from serving.metrics import DIRECTORY_VARIABLE, Metrics, _forget_dead
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TableSource


def test_the_first_model_that_is_refused_is_an_increase() -> None:
    """`increase()` of a series that starts at 1 is 0, so the alert would miss the first refused model."""
    text = Metrics().render().decode()
    for outcome in ("loaded", "refused", "failed"):
        assert f'cotenant_model_reloads_total{{outcome="{outcome}"}} 0.0' in text


def test_the_first_fault_is_an_increase() -> None:
    assert "cotenant_faults_total 0.0" in Metrics().render().decode()


def test_observed_errors_by_device_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.metrics._MOST_LABELS", 2)
    metrics, predicted = Metrics(), Quantity(0.1, 0.05, 0.2)

    def value(name: str, job: str, **more: str) -> float | None:
        labels = {"device": "v100", "job": job, "answer": "model"} | more
        return metrics.registry.get_sample_value(f"cotenant_observed_{name}", labels)

    for step_time_s in (0.2, 0.4):
        metrics.observe("v100", "a", "model", step_time_s, predicted)
    assert value("log_error_total", "a") == pytest.approx(math.log(2) + math.log(4))
    assert value("log_ratio", "a") == pytest.approx(0.9 * math.log(2) + 0.1 * math.log(4))
    assert [value("step_times_total", "a", covered=c) for c in ("true", "false")] == [1.0, 1.0]
    for job in ("b", "c", "a"):
        metrics.observe("v100", job, "model", 0.05, predicted)
    assert [value("log_error_total", job) for job in ("b", "c")] == [pytest.approx(math.log(2)), None]
    assert value("log_error_total", "other", device="other") == pytest.approx(math.log(2))
    assert value("log_error_total", "a") == pytest.approx(4 * math.log(2)), "known pairs keep their series"


def test_predicted_sets_are_counted_by_outcome(client: TestClient) -> None:
    fits, huge, unknown = (
        {"device": "v100", "jobs": [job]}
        for job in ("resnet18-cifar", "resnet18-cifar:batch_size=100000", "nosuch")
    )
    for asked in (fits, fits, huge, unknown):
        client.post("/v1/predict", json=asked)
    assert client.post("/v1/predict/batch", json={"sets": [fits, huge, huge]}).status_code == 200
    text = client.get("/metrics").text
    for outcome, count in (("fits", 3), ("too_large", 3), ("refused", 1)):
        assert f'cotenant_predictions_total{{outcome="{outcome}"}} {count}.0' in text


def test_one_version_is_in_service() -> None:
    metrics = Metrics()
    for version in ("1", "2", "2"):
        metrics.serve_version(version)
    told = [metrics.registry.get_sample_value("cotenant_model_info", {"version": v}) for v in ("1", "2")]
    assert told == [0.0, 1.0]


def test_an_internal_error_is_a_fault(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"device": "v100", "jobs": ["resnet18-cifar"]}
    monkeypatch.setattr(client.app.state.service, "belief", lambda: 1 / 0)  # type: ignore[attr-defined]
    problem(client.post("/v1/predict", json=asked), 500)
    problem(client.get("/v1/placements/nosuch"), 404)
    assert "cotenant_faults_total 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/v1/health/ready", "/v2/health/ready", "/v2/models/cotenant/ready"])
def test_a_service_that_is_not_ready_refuses_nothing(start: Start, source: TableSource, path: str) -> None:
    """Probes of a pod without a model would otherwise raise the alert about shed requests."""
    source.error = ValueError("no model")
    client = start(wait=False)
    assert client.get(path).status_code == 503
    assert 'refused_total{reason="busy"}' not in client.get("/metrics").text


def test_unknown_methods_share_a_label(start: Start) -> None:
    """Anybody may send any word as a method, and a label is never forgotten."""
    client = start(auth="on")
    for number in range(3):
        for path in ("/v1/predict", "/v1/cluster/nodes/a", "/v1/health/live", "/v1/nowhere"):
            assert client.request(f"WORD{number}", path).status_code == 401
    client.head("/v1/health/live")
    text = client.app.state.service.metrics.render().decode()  # type: ignore[attr-defined]
    assert "WORD" not in text
    counted = "cotenant_request_duration_seconds_count"
    assert f'{counted}{{method="other",route="/v1/predict",status="401"}} 3.0' in text
    assert f'{counted}{{method="ANY",route="unmatched",status="401"}} 3.0' in text
    assert f'{counted}{{method="GET",route="/v1/health/live",status="200"}}' in text


def test_metrics_are_rendered_off_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cover every route and process, and other requests must not wait for them."""
    threads: list[str] = []
    render = Metrics.render

    def watched(metrics: Metrics) -> bytes:
        threads.append(threading.current_thread().name)
        return render(metrics)

    monkeypatch.setattr(Metrics, "render", watched)
    assert "cotenant_faults_total" in client.get("/metrics").text
    assert threads == ["cotenant-metrics-0"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_gauges_of_a_killed_process_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"{kind}_{pid}.db" for kind in ("gauge_livesum", "counter") for pid in (ended.pid, os.getpid())]
    for name in names:
        (tmp_path / name).touch()
    _forget_dead(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == set(names) - {f"gauge_livesum_{ended.pid}.db"}, "what was counted stays counted"
