"""Devices, health, metrics, routing errors and the OpenAPI document."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from profiling.devices import list_devices
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TableSource


def test_devices(client: TestClient) -> None:
    listing = client.get("/v1/devices")
    assert [d["name"] for d in listing.json()["devices"]] == [d.name for d in list_devices()]
    tag = listing.headers["etag"]
    assert client.get("/v1/devices", headers={"If-None-Match": tag}).status_code == 304
    assert client.get("/v1/devices/v100").json()["memory_bytes"] > 1e9
    problem(client.get("/v1/devices/abacus"), 404)


def test_routing_errors(client: TestClient) -> None:
    unknown = problem(client.get("/v1/nowhere"), 404)
    assert unknown["type"] == "urn:cotenant:problem:unknown-name"
    assert unknown["got"] == "/v1/nowhere"
    wrong = problem(client.get("/v1/predict"), 405)
    assert wrong["type"] == "urn:cotenant:problem:method-not-allowed"
    assert wrong["expected"] == "POST"
    assert problem(client.get("/v2/nowhere"), 404)["error"]
    assert "POST" in client.get("/v1/predict").headers["allow"]


@pytest.mark.parametrize("path", ["/login", "/v1/workloads"])
def test_a_malformed_form(start: Start, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("COTENANT_BOOTSTRAP_TOKEN", "of-an-administrator-who-sets-up")
    headers = {"content-type": "multipart/form-data; boundary=x"}
    if path != "/login":
        headers["authorization"] = "Bearer of-an-administrator-who-sets-up"
    client = start(auth="on")
    told = problem(client.post(path, content=b"--y\r\n", headers=headers), 400)
    assert told["type"] == "urn:cotenant:problem:malformed"
    assert told["expected"]
    problem(client.post("/v1/nowhere", headers={}), 401)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/cluster", "GET, HEAD, PUT"),
        ("/v1/cluster/nodes/a", "DELETE, GET, HEAD, PUT"),
        ("/v1/placements", "GET, HEAD, POST"),
        ("/login", "GET, HEAD, POST"),
        ("/v1/devices", "GET, HEAD"),
    ],
)
def test_a_wrong_method_gets_all_allowed_methods(client: TestClient, path: str, methods: str) -> None:
    answer = client.patch(path)
    problem(answer, 405)
    assert answer.headers["allow"] == methods


@pytest.mark.parametrize("path", ["/v1/health/live", "/v1/devices", "/metrics", "/openapi.json"])
def test_head_is_answered_like_get_without_a_body(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == client.get(path).headers["content-type"]


def test_head_of_an_unknown_address_and_of_one_without_get(client: TestClient) -> None:
    assert client.head("/v1/nowhere").status_code == 404
    assert client.head("/v1/predict").status_code == 405


def test_health_and_metrics(client: TestClient) -> None:
    assert client.get("/v1/health/live").json() == {"status": "live"}
    assert client.get("/v1/health/ready").json()["model_version"] == "table-1"
    client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]})
    text = client.get("/metrics").text
    assert 'cotenant_predictions_total{outcome="fits"} 1.0' in text
    assert 'cotenant_model_info{version="table-1"} 1.0' in text
    assert (
        'cotenant_request_duration_seconds_count{method="POST",route="/v1/predict",status="200"} 1.0' in text
    )


def test_not_ready_without_a_model(start: Start, source: TableSource) -> None:
    source.error = RuntimeError("broken file")
    client = start(wait=False)
    response = client.get("/v1/health/ready")
    problem(response, 503)
    assert response.headers["retry-after"]
    assert client.get("/v1/health/live").status_code == 200
    problem(client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar"]}), 503)


def test_openapi(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            if path.startswith("/v1/"):
                for status in ("408", "413", "429", "431", "503", "504"):
                    told = operation["responses"][status]["content"]
                    assert "application/problem+json" in told, (path, method, status)
    body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    example = body["examples"]["pair"]["value"]
    assert client.post("/v1/predict", json=example).status_code == 200


def test_request_id_and_headers(client: TestClient) -> None:
    response = client.get("/v1/health/live", headers={"X-Request-Id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert client.get("/v1/health/live", headers={"X-Request-Id": "a b\t"}).headers["x-request-id"] != "a b\t"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]
