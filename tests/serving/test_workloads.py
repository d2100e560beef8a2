"""Registered workloads: zoo names, ONNX uploads, graphs; one entry per content."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper

from profiling.capture import graph_for
from profiling.workload import Workload
from tests.serving.conftest import Start
from tests.serving.problems import problem

ZOO = {"workload": "resnet18-cifar", "batch_size": 4}


def onnx_file(width: int = 8) -> bytes:
    """A linear layer and a ReLU."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [width, 4], [0.5] * (4 * width))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "tiny", [x], [y], [weight]), opset_imports=[helper.make_opsetid("", 17)]
    )
    body: bytes = model.SerializeToString()
    return body


@pytest.fixture(scope="module")
def graph() -> dict[str, Any]:
    return graph_for(Workload("resnet18-cifar", batch_size=4)).to_dict()


def test_zoo_name(client: TestClient) -> None:
    made = client.post("/v1/workloads", json=ZOO)
    assert made.status_code == 201
    entry = made.json()
    assert entry["kind"] == "zoo"
    assert entry["summary"]["parameter_count"] > 1e7
    assert client.post("/v1/workloads", json=ZOO).status_code == 200
    assert client.post("/v1/workloads", json=ZOO | {"batch_size": 8}).json()["hash"] != entry["hash"]
    got = client.get(made.headers["location"])
    assert got.json() == entry
    assert (
        client.get(made.headers["location"], headers={"If-None-Match": got.headers["etag"]}).status_code
        == 304
    )


def test_graph(client: TestClient, graph: dict[str, Any]) -> None:
    entry = client.post("/v1/workloads", json={"graph": graph}, params={"name": "mine"}).json()
    assert (entry["kind"], entry["name"]) == ("graph", "mine")
    assert client.get(f"/v1/workloads/{entry['hash']}/graph").json() == graph
    answer = client.post("/v1/predict", json={"device": "v100", "jobs": [entry["workload"]]})
    assert answer.status_code == 200
    problem(client.delete(f"/v1/workloads/{entry['hash']}0"), 404)
    assert client.delete(f"/v1/workloads/{entry['hash']}").status_code == 204
    problem(client.get(f"/v1/workloads/{entry['hash']}"), 404)
    problem(client.delete(f"/v1/workloads/{entry['hash']}"), 404)


def test_a_file_written_by_capture(client: TestClient, graph: dict[str, Any]) -> None:
    made = client.post("/v1/workloads", json=graph)
    assert made.status_code == 201
    assert (made.json()["kind"], made.json()["name"]) == ("graph", graph["name"])
    assert client.post("/v1/workloads", json={"graph": graph}).status_code == 200, "the same as in a field"
    damaged = {key: value for key, value in graph.items() if key != "operators"}
    problem(client.post("/v1/workloads", json=damaged), 422)


def test_other_processes_know_it(start: Start, graph: dict[str, Any]) -> None:
    entry = start().post("/v1/workloads", json={"graph": graph}).json()
    other = start()
    body = {"device": "v100", "jobs": [{"workload": entry["workload"]}]}
    assert other.post("/v1/predict", json=body).status_code == 200
    service = other.app.state.service  # type: ignore[attr-defined]
    assert service.graph_of(Workload(entry["workload"])).content_hash == entry["hash"]


@pytest.mark.parametrize("form", [True, False])
def test_onnx(client: TestClient, form: bool) -> None:
    data = onnx_file()
    if form:
        files = {"file": ("tiny.onnx", data, "application/octet-stream")}
        made = client.post("/v1/workloads", files=files, params={"batch_size": 16})
    else:
        headers = {"content-type": "application/octet-stream"}
        made = client.post(
            "/v1/workloads", content=data, headers=headers, params={"name": "tiny.onnx", "batch_size": 16}
        )
    assert made.status_code == 201, made.text
    assert made.json()["name"] == "tiny.onnx"
    assert made.json()["summary"]["batch_size"] == 16
    assert made.json()["summary"]["parameter_count"] == 32


@pytest.mark.parametrize("key", ["batch_size", "sequence_length"])
def test_dimensions_in_the_url_are_not_ignored(client: TestClient, graph: dict[str, Any], key: str) -> None:
    for body in (ZOO, {"graph": graph}):
        told = problem(client.post("/v1/workloads", json=body, params={key: 16}), 422)
        assert told["detail"].startswith(f"query key {key} is for ONNX files only: expected the options of")
    assert client.get("/v1/workloads").json()["items"] == []


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x07" + b"\xff" * 100])
def test_a_file_that_is_not_onnx(client: TestClient, data: bytes) -> None:
    problem(
        client.post("/v1/workloads", content=data, headers={"content-type": "application/octet-stream"}), 422
    )
    assert client.get("/v1/workloads").json()["items"] == []


def test_limits(start: Start, graph: dict[str, Any]) -> None:
    client = start(graph_operators=3, upload_bytes=10_000, body_bytes=8_000)
    crowded = graph | {
        "layers": ["x"] * 4,
        "operators": {k: v[:1] for k, v in graph["operators"].items() if k != "sizes"},
    }
    crowded |= {"operators": crowded["operators"] | {"sizes": {}}, "edges": []}
    assert "3 layers" in problem(client.post("/v1/workloads", json=crowded), 413)["detail"]
    json = {"content-type": "application/json"}
    long = problem(client.post("/v1/workloads", content=b" " * 9_000, headers=json), 413)
    assert "8000 bytes" in long["detail"], "JSON is read in this process"
    problem(client.post("/v1/workloads", json={"graph": {k: graph[k] for k in list(graph)[:3]}}), 422)
    problem(
        client.post(
            "/v1/workloads", content=b"x" * 20_000, headers={"content-type": "application/octet-stream"}
        ),
        413,
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"workload": "no-such-model"}, 404),
        ({"workload": "resnet18-cifar", "batch_size": 0}, 422),
        ({"graph": {"format": "other"}}, 422),
        ({}, 422),
    ],
)
def test_bad_input(client: TestClient, body: dict[str, Any], status: int) -> None:
    problem(client.post("/v1/workloads", json=body), status)


def test_a_misspelt_model_is_answered_with_similar_names(client: TestClient) -> None:
    body = {"device": "v100", "jobs": ["resnt18-cifar"]}
    registered = client.post("/v1/workloads", json={"workload": "resnt18-cifar"})
    for answer in (registered, client.post("/v1/predict", json=body)):
        assert "a zoo name such as resnet18-cifar" in problem(answer, 404)["detail"]


def test_other_media_type_and_pages(client: TestClient, graph: dict[str, Any]) -> None:
    problem(client.post("/v1/workloads", content=b"a", headers={"content-type": "text/csv"}), 415)
    problem(client.post("/v1/workloads", data={"name": "x"}, files={"other": b"x"}), 422)
    hashes = [
        client.post("/v1/workloads", json={"graph": graph | {"parameter_count": n}}).json()["hash"]
        for n in range(3)
    ]
    page = client.get("/v1/workloads", params={"limit": 2}).json()
    rest = client.get("/v1/workloads", params={"limit": 2, "after": page["next"]}).json()
    assert [w["hash"] for w in page["items"] + rest["items"]] == sorted(hashes)
    assert rest["next"] is None
    problem(client.get("/v1/workloads", params={"limit": 0}), 422)


def test_a_second_media_type_does_not_raise_the_limit_of_json(start: Start) -> None:
    client = start(upload_bytes=10_000, body_bytes=8_000)
    headers = [("content-type", "application/json"), ("content-type", "application/octet-stream")]
    problem(client.post("/v1/workloads", content=b"[" + b" " * 9_000 + b"]", headers=headers), 413)
