"""Request heads: Host, media types and encodings, query keys, and paths in problems."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.conftest import Start
from tests.serving.live import serve
from tests.serving.problems import problem
from tests.serving.table import TableSource
from tests.waiting import LONG_S

ZOO = b'{"workload": "resnet18-cifar", "batch_size": 8}'
SET = b'{"device": "v100", "jobs": ["resnet18-cifar"]}'


def test_host(tmp_path: Path) -> None:
    """HTTP/1.1 requires exactly one Host header, HTTP/1.0 none."""
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), TableSource()
    )
    host = b"Host: 127.0.0.1\r\n"
    with serve(app) as port:
        for version, lines, status in (
            (b"1.1", host, b"200"),
            (b"1.1", b"", b"400"),
            (b"1.1", host + host, b"400"),
            (b"1.0", b"", b"200"),
            (b"1.0", host + host, b"400"),
        ):
            with socket.create_connection(("127.0.0.1", port), LONG_S) as connection:
                connection.sendall(
                    b"GET /v1/health/live HTTP/" + version + b"\r\n" + lines + b"Connection: close\r\n\r\n"
                )
                told = connection.makefile("rb").read()
            assert told.split(b" ")[1] == status, (version, lines)
            assert (b"application/problem+json" in told) == (status == b"400")


@pytest.mark.parametrize("coding", ["identity", "Identity", "gzip"])
def test_content_encoding(client: TestClient, coding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    answer = client.post("/v1/predict", content=SET, headers=headers)
    assert answer.status_code == (415 if coding == "gzip" else 200), answer.text


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/workloads"])
@pytest.mark.parametrize(
    ("media", "taken"),
    [
        ("application/vnd.x+json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/json", False),
        ("application/jsonx", False),
    ],
)
def test_json_media_types(client: TestClient, path: str, media: str, taken: bool) -> None:
    body = SET if path == "/v1/predict" else ZOO
    answer = client.post(path, content=body, headers={"Content-Type": media})
    assert answer.status_code in ((200, 201) if taken else (415,)), answer.text


@pytest.mark.parametrize(
    ("path", "body", "media", "status", "told"),
    [
        ("/v1/predict", b"", "application/json", 400, "the body is empty: expected a JSON object; see /openapi.json for the shape."),
        ("/v1/predict", b" \n", "application/json", 400, "the body is empty: expected a JSON object; see /openapi.json for the shape."),
        ("/v1/predict", b"null", "application/json", 422, "body: expected object, got null; see /openapi.json for the shape."),
        ("/v1/predict", SET, "text/plain", 415, "the body has the wrong Content-Type: expected application/json, got text/plain."),
        ("/v1/predict", SET, None, 415, "the body has the wrong Content-Type: expected application/json, got none."),
        ("/v1/workloads", ZOO, None, 415, "the body has the wrong Content-Type: expected application/json, application/octet-stream (ONNX) or multipart/form-data, got none."),
        ("/v1/workloads", b"", "application/json", 400, "the body is empty: expected a JSON object; see /openapi.json for the shape."),
        ("/extender/filter", b"", "application/json", 400, "the body is empty: expected a JSON object; see /openapi.json for the shape."),
    ],
)  # fmt: skip
def test_a_body_that_is_missing_or_undeclared_is_told_what_to_send(
    client: TestClient, path: str, body: bytes, media: str | None, status: int, told: str
) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": media} if media else {})
    if path.startswith("/extender"):  # it tells the scheduler in an answer of its own
        assert told.rstrip(".") in answer.text
    else:
        assert problem(answer, status)["detail"] == told


def test_json_of_any_type_has_the_limit_of_json(start: Start) -> None:
    client = start(body_bytes=100, upload_bytes=10_000)
    headers = {"Content-Type": "application/vnd.x+json"}
    problem(client.post("/v1/workloads", content=b" " * 1000, headers=headers), 413)


@pytest.mark.parametrize("path", ["a%0Ab%00", "gr%C3%BCn%20%22%25", "a:b,c(d)", "%7F%3Fx%23y"])
def test_instance_is_a_uri_reference(client: TestClient, path: str) -> None:
    assert problem(client.get(f"/v1/nowhere/{path}"), 404)["instance"] == f"/v1/nowhere/{path}"


def test_a_slash_in_the_name_of_a_node(client: TestClient) -> None:
    problem(client.put("/v1/cluster/nodes/a%2Fb", json={"gpus": []}), 404)


def test_browsers_are_sent_to_sign_in(start: Start) -> None:
    client = start(auth="on")
    page = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/", "/what-if", "/jobs/x", "/docs"):
        sent = client.get(path, headers=page, follow_redirects=False)
        assert (sent.status_code, sent.headers["location"]) == (303, f"/login?next={quote(path, safe='')}")
        problem(client.get(path), 401)
        problem(client.get(path, headers=page | {"Authorization": "Bearer ct_wrong"}), 401)
    problem(client.get("/v1/cluster", headers=page), 401)
    assert client.get("/", headers=page).url.path == "/login"
    assert start().get("/", headers=page, follow_redirects=False).status_code == 200


def test_a_refused_parameter_reads_as_one_sentence(client: TestClient) -> None:
    told = problem(client.get("/v1/placements?limit=0"), 422)
    assert told["detail"] == "query.limit: expected greater than or equal to 1, got '0'."
    told = problem(client.get("/v1/placements?limit=x"), 422)
    assert told["expected"] == "a valid integer"


@pytest.mark.parametrize(
    ("method", "url", "told"),
    [
        (
            "PUT",
            "/v1/cluster?replace_tennants=true",
            "expected one of replace_tenants, valid_s, got 'replace_tennants'",
        ),
        ("PUT", "/v1/cluster?replace_tenants=true&replace_tenants=false", "expected each key once, got 2 of"),
        ("GET", "/v1/placements?limit=1&limit=2", "query key limit is repeated"),
        ("GET", "/v1/devices?x", "expected no query, got 'x'"),
        ("POST", "/v1/predict?device=v100", "expected no query, got 'device'"),
    ],
)
def test_query_keys_that_are_unknown_or_repeated(
    client: TestClient, method: str, url: str, told: str
) -> None:
    body = {"POST": {"device": "v100", "jobs": ["resnet18-cifar"]}, "PUT": {"nodes": []}}.get(method)
    answer = client.request(method, url, json=body)
    assert told in problem(answer, 422)["detail"]


def test_pages_may_have_any_query(client: TestClient) -> None:
    assert client.get("/?utm=1&utm=2").status_code == 200


@pytest.mark.parametrize(
    ("head", "came"),
    [
        ("FOO /v1/cluster HTTP/1.1\r\nHost: 127.0.0.1", "Invalid method encountered"),
        ("POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1e3", "Content-Length"),
        ("POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999", "Content-Length overflow"),
        ("GET /v1/cluster HTTP/9.9\r\nHost: 127.0.0.1", "Invalid HTTP version"),
    ],
)  # fmt: skip
def test_what_is_not_http_is_told_why(tmp_path: Path, head: str, came: str) -> None:
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), TableSource()
    )
    with serve(app) as port, socket.create_connection(("127.0.0.1", port), LONG_S) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n")
        told = connection.makefile("rb").read()
    body = json.loads(told.partition(b"\r\n\r\n")[2])
    assert body["status"] == 400
    assert body["detail"].startswith("the request is not HTTP/1.1: expected a known method")
    assert came in body["detail"].partition(", got: ")[2]


@pytest.mark.parametrize("name", ["", " ", "\u3000"])
def test_nodes_without_a_visible_name_are_refused(client: TestClient, name: str) -> None:
    problem(client.put("/v1/cluster", json={"nodes": [{"name": name}]}), 422)
