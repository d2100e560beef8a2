"""Conditional requests (RFC 9110): what `If-Match` and `If-None-Match` let through."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.conftest import Start
from tests.serving.problems import problem

NODE, OTHER = {"gpus": [{"id": "0", "device": "v100"}]}, {"gpus": [{"id": "0", "device": "t4"}]}
A, B = "/v1/cluster/nodes/a", "/v1/cluster/nodes/b"


def placed(client: TestClient) -> str:
    """Address of a confirmed placement on a node of its own."""
    client.put(A, json=NODE)
    key = client.post("/v1/placements", json={"job": "resnet18-cifar", "iterations": 50_000}).json()["id"]
    client.post(f"/v1/placements/{key}/confirm")
    return f"/v1/placements/{key}"


def left(client: TestClient) -> float:
    """Iterations left of the only tenant."""
    return float(client.get(A).json()["node"]["gpus"][0]["tenants"][0]["iterations_left"])


def report(client: TestClient, placement: str, iterations_left: float) -> None:
    assert client.post(f"{placement}/progress", json={"iterations_left": iterations_left}).status_code == 200


def test_progress_changes_the_tag_and_not_the_version(start: Start) -> None:
    """Also where another process writes it."""
    client, other = start(), start()
    placement = placed(client)
    for path in ("/v1/cluster", A):
        before = client.get(path)
        known = {"If-None-Match": before.headers["etag"]}
        assert client.get(path, headers=known).status_code == 304
        report(other, placement, 7 if path == A else 8)
        after = client.get(path, headers=known)
        assert after.status_code == 200
        assert after.json()["version"] == before.json()["version"]
        assert other.get(path).headers["etag"] == after.headers["etag"] != before.headers["etag"]


@pytest.mark.parametrize("whole", [True, False])
def test_an_old_body_does_not_undo_progress(client: TestClient, whole: bool) -> None:
    placement = placed(client)
    path = "/v1/cluster" if whole else A
    read = client.get(path)
    body = read.json()["cluster" if whole else "node"]
    report(client, placement, 7)
    old = {"If-Match": read.headers["etag"]}
    problem(client.put(f"{path}?replace_tenants=true", json=body, headers=old), 412)
    assert left(client) == 7
    again = {"If-Match": client.get(path).headers["etag"]}
    done = client.put(f"{path}?replace_tenants=true", json=body, headers=again)
    assert done.status_code == 200
    assert left(client) == 50_000
    assert done.headers["etag"] == client.get(path).headers["etag"]


def test_the_version_alone_disregards_progress(client: TestClient) -> None:
    placement = placed(client)
    version = client.get(A).json()["version"]
    report(client, placement, 7)
    assert client.put(B, json=NODE, headers={"If-Match": f'"{version}"'}).status_code == 201
    problem(client.put(B, json=OTHER, headers={"If-Match": f'"{version}"'}), 412)


@pytest.mark.parametrize("report_again", [NODE, OTHER])
def test_a_node_that_must_be_new(client: TestClient, report_again: dict[str, Any]) -> None:
    new = {"If-None-Match": "*"}
    assert client.put(A, json=NODE, headers=new).status_code == 201
    told = problem(client.put(A, json=report_again, headers=new), 412)
    assert told["expected"] == "If-None-Match: *"
    assert client.get(A).json() == {"version": 1, "node": NODE_STORED}
    client.delete(A)
    assert client.put(A, json=NODE, headers=new).status_code == 201
    problem(client.put("/v1/cluster", json={"nodes": []}, headers=new), 412)


def test_a_node_that_must_exist(client: TestClient) -> None:
    there = {"If-Match": "*"}
    problem(client.put(A, json=NODE, headers=there), 412)
    problem(client.get(A), 404)
    problem(client.delete(A, headers=there), 404)
    client.put(A, json=NODE)
    assert client.put(A, json=OTHER, headers=there).status_code == 200
    assert client.put("/v1/cluster", json={"nodes": []}, headers=there).status_code == 200


@pytest.mark.parametrize("known", ['W/"1.1"', '"9.9", W/"1.1"', '"x,y","1.1"', "*"])
def test_reads_compare_weakly(client: TestClient, known: str) -> None:
    client.put(A, json=NODE)
    for path in ("/v1/cluster", A):
        answer = client.get(path, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == '"1.1"'


@pytest.mark.parametrize("known", ['"1"', '"1.2"', "1.1.1", "soon", ""])
def test_reads_with_another_tag(client: TestClient, known: str) -> None:
    client.put(A, json=NODE)
    assert client.get("/v1/cluster", headers={"If-None-Match": known}).status_code == 200


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ({"If-Match": '"1", "2"'}, 200),
        ({"If-Match": '"0.0" , "1.1"'}, 200),
        ({"If-Match": "1"}, 200),
        ({"If-Match": "1.1"}, 200),
        ({"If-Match": '"2", "3"'}, 412),
        ({"If-Match": '"another"'}, 412),
        ({"If-Match": 'W/"1"'}, 412),
        ({"If-Match": 'W/"1.1", "1.0"'}, 412),
        ({"If-Match": "soon"}, 422),
        ({"If-Match": '"1'}, 422),
        ({"If-Match": ""}, 422),
        ({"If-None-Match": '"2"'}, 200),
        ({"If-None-Match": 'W/"1.1"'}, 412),
        ({"If-None-Match": '"1"'}, 412),
        ({"If-None-Match": "soon"}, 422),
        ({"If-Match": '"1.1"', "If-None-Match": "*"}, 412),
    ],
    ids=str,
)
def test_changes_compare_strongly(client: TestClient, condition: dict[str, str], status: int) -> None:
    client.put(A, json=NODE)
    for path, body in (("/v1/cluster", {"nodes": [{"name": "a", **OTHER}]}), (A, NODE), (A, OTHER)):
        answer = client.put(path, json=body, headers=condition)
        assert answer.status_code == status, answer.text
        if status == 200:
            return
    assert client.get(A).json()["node"] == NODE_STORED


def test_a_header_in_two_lines(client: TestClient) -> None:
    client.put(A, json=NODE)
    lines = [("If-Match", '"7"'), ("If-Match", '"1.1"')]
    assert client.put(A, json=OTHER, headers=lines).status_code == 200


def test_the_document_names_the_headers_where_they_work(client: TestClient) -> None:
    client.put(A, json=NODE)
    told = client.get("/openapi.json").json()["paths"]
    with_conditions = set()
    for path, operations in told.items():
        for method, operation in operations.items():
            headers = {p["name"] for p in operation.get("parameters", []) if p["in"] == "header"}
            conditional = headers & {"If-Match", "If-None-Match"}
            if conditional:
                with_conditions.add(f"{method} {path}")
            if method == "get":
                assert ("304" in operation["responses"]) == (conditional == {"If-None-Match"}), path
            else:
                assert ("412" in operation["responses"]) == (conditional == {"If-Match", "If-None-Match"}), (
                    path
                )
    node = "/v1/cluster/nodes/{name}"
    assert with_conditions >= {
        "get /v1/cluster",
        "put /v1/cluster",
        *(f"{m} {node}" for m in ("get", "put", "delete")),
    }


NODE_STORED = {"name": "a", "gpus": [{"id": "0", "device": "v100", "sharing": "time-slice", "tenants": []}]}
