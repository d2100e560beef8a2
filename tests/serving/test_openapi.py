"""The OpenAPI document: its examples work, and every problem is described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving import refusals
from serving.openapi import problem_types
from tests.serving.conftest import Start
from tests.serving.table import TableSource

NODE = {"name": "node-a", "gpus": [{"device": "v100"}, {"device": "v100"}]}
PAGE = Path(__file__).parents[2] / "docs" / "service.md"


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
                answer = client.request(method, url, json=example["value"])
                assert answer.is_success, (method, path, name, answer.text)
                assert str(answer.status_code) in operation["responses"]
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
