"""The OpenAPI document: its examples work, and every problem is described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi.testclient import TestClient

from serving import refusals
from serving.openapi import problem_types
from tests.serving.conftest import Start
from tests.serving.table import TableSource

NODE = {"name": "node-a", "gpus": [{"device": "v100"}, {"device": "v100"}]}
HEADERS = {"etag", "location", "retry-after", "www-authenticate"}
PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def headers_described(operation: dict[str, Any], answer: httpx.Response) -> bool:
    described = operation["responses"][str(answer.status_code)].get("headers", {})
    return {name.lower() for name in described} == HEADERS & answer.headers.keys()


def test_examples_work(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    sent = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name, example in body.get("examples", {}).items():
                client.put("/v1/cluster", params={"replace_tenants": True}, json={"nodes": [NODE]})
                placed = client.post("/v1/placements", json={"job": "resnet18-cifar"}).json()
                model = path.startswith("/v2")
                url = path.format(name="cotenant" if model else "node-a", key=placed["id"], number="table-1")
                asked = {parameter["name"] for parameter in operation.get("parameters", ())}
                query = {"placement_id": placed["id"]} if "placement_id" in asked else {}
                answer = client.request(method, url, params=query, json=example["value"])
                assert answer.is_success, (method, path, name, answer.text)
                assert str(answer.status_code) in operation["responses"]
                assert headers_described(operation, answer), (method, path)
                sent += 1
    assert sent > 12


@pytest.mark.parametrize("path", ["/v1/health/ready", "/v2/health/ready", "/v2/models/{name}/ready"])
def test_readiness_is_described_while_no_model_serves(start: Start, source: TableSource, path: str) -> None:
    """The inference protocol has an answer of its own; under overload it is a problem there, too."""
    source.error = ValueError("no model")
    client = start(wait=False)
    answer = client.get(path.format(name="cotenant"))
    assert answer.status_code == 503
    described: dict[str, Any] = client.get("/openapi.json").json()["paths"][path]["get"]["responses"]["503"]
    assert answer.headers["content-type"] in described["content"]
    assert "application/problem+json" in described["content"]


def test_every_type_of_problem_is_named_in_the_document_and_the_docs(client: TestClient) -> None:
    listed = problem_types()
    words = [name.rpartition(":")[2] for name in listed]
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert all(name in schemas["Problem"]["properties"]["type"]["description"] for name in listed)
    assert [word for word in words if f"`{word}`" not in PAGE.read_text()] == []
    refused = (refusals.TOO_LARGE, refusals.MALFORMED, refusals.SLOW, refusals.BUSY, refusals.FULL)
    assert {refusal.slug.decode() for refusal in refused} <= set(words)


def test_headers_are_described(start: Start, source: TableSource) -> None:
    source.error = ValueError("no model")
    client = start(wait=False, rate_per_s=1e-9, rate_burst=6)
    document = client.get("/openapi.json").json()
    tag = {"If-None-Match": client.get("/v1/cluster").headers["etag"]}
    for method, path, status, headers in (
        ("get", "/v1/cluster", 304, tag),
        ("put", "/v1/cluster/nodes/{name}", 412, tag | {"If-Match": "*"}),
        ("put", "/v1/cluster/nodes/{name}", 201, {}),
        ("post", "/v1/predict", 503, {}),
        ("get", "/v1/cluster", 429, {}),
    ):
        body = {"json": {"gpus": []} if method == "put" else {"device": "v100", "jobs": ["resnet18-cifar"]}}
        answer = client.request(
            method, path.format(name="a"), headers=headers, **({} if method == "get" else body)
        )
        assert answer.status_code == status, answer.text
        assert headers_described(document["paths"][path][method], answer), (method, path, status)
    refused = start(auth="on", wait=False).get("/v1/cluster")
    assert refused.status_code == 401
    assert headers_described(document["paths"]["/v1/cluster"]["get"], refused)
    for name in document["components"]["headers"]:
        assert name.lower() in HEADERS


def strict(schema: Any) -> Any:
    """The schema, with no property allowed that it does not describe."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {key: strict(part) for key, part in schema.items()}


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/v1/devices/v100", "/v1/devices/{name}"),
        ("/v1/devices/a100:mig=3g", "/v1/devices/{name}"),
        ("/v1/devices", "/v1/devices"),
        ("/v1/devices/nope", "/v1/devices/{name}"),
        ("/v2/models/nope", "/v2/models/{name}"),
    ],
)
def test_every_field_of_an_answer_is_described(client: TestClient, path: str, template: str) -> None:
    document, answer = client.get("/openapi.json").json(), client.get(path)
    described = document["paths"][template]["get"]["responses"][str(answer.status_code)]
    schema = described["content"][answer.headers["content-type"]]["schema"]
    jsonschema.validate(answer.json(), strict({**schema, "components": document["components"]}))


def test_the_deadline_is_described_where_answers_take_time(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    given = {
        path for path, of in paths.items() for header in of.get("post", {}).get("parameters", []) if header["name"] == "X-Timeout-S"
    }  # fmt: skip
    asked = {
        "/v1/predict",
        "/v1/predict/batch",
        "/v1/probes",
        "/v1/slice-plans",
        "/v1/layer-throughput",
        "/v1/place",
        "/v1/placements",
    }
    assert asked <= given


def test_a_list_goes_on_after_what_it_answered_as_next(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    lists = 0
    for path, operations in document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", []):
            if parameter["name"] == "after":
                assert parameter["schema"]["type"] == "string", path
                lists += 1
    assert lists == 5
    for word in ("x", "-1", "", "1" * 16, "٣"):
        told = client.get("/v1/placements", params={"after": word})
        assert told.status_code == 422
        assert "query.after: expected match pattern" in told.json()["detail"]
    assert client.get("/v1/placements?after=0").status_code == 200
