"""The dashboard's synthetic_batches."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.testclient import TestClient

from serving.auth import create_token
from serving.store import Store
from tests.serving.conftest import Start

CLUSTER = {
    "nodes": [
        {
            "name": "node-<a>",
            "gpus": [
                {
                    "device": "v100",
                    "tenants": [{"job": "resnet18-cifar", "iterations_left": 100, "job_id": "t-1"}] * 2,
                },
                {"device": "v100"},
            ],
        }
    ]
}


def test_empty(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "No cluster is stored" in page.text


def test_overview(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": "t-2", "iterations": 50})
    observed = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.2}
    client.post("/v1/observations", json={"observations": [observed]})
    page = client.get("/").text
    assert "node-&lt;a&gt;" in page
    assert "slowed 1.40 times" in page
    assert "t-2" in page
    assert "50.0 %" in page
    assert "table-1" in page


def test_what_if(client: TestClient) -> None:
    page = client.get(
        "/what-if", params={"device": "p100", "jobs": "resnet18-cifar\nresnet18-cifar:batch_size=8"}
    ).text
    assert "they fit" in page
    assert "1.40 times" in page
    assert "<option selected>p100</option>" in page
    wrong = client.get("/what-if", params={"jobs": "<script>alert(1)</script>"})
    assert wrong.status_code == 200
    assert 'role="alert"' in wrong.text
    assert "<script" not in wrong.text


def test_pages_need_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/what-if", "/login"):
        text = client.get(path).text
        assert not re.search(r"https?://", text)
        assert 'style="' not in text
        assert '<html lang="en">' in text
        assert text.count("<h1>") == 1
    style = client.get("/static/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.text


def test_sign_in(start: Start, tmp_path: Path) -> None:
    token = create_token(Store(f"sqlite:///{tmp_path}/store.db"), "eyes", ["admin"])
    client = start(auth="on")
    assert client.get("/").status_code == 401
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    entered = client.post("/login", data={"token": token}, follow_redirects=False)
    assert entered.status_code == 303
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert client.get("/").status_code == 200
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 401, "the cookie counts for reading only"


def test_a_set_that_does_not_fit_is_not_unhurt(client: TestClient) -> None:
    huge = {"job": "resnet18-cifar:batch_size=100000", "iterations_left": 1}
    client.put(
        "/v1/cluster", json={"nodes": [{"name": "a", "gpus": [{"device": "v100", "tenants": [huge]}]}]}
    )
    page = client.get("/").text
    assert '<p class="level">too large</p>' in page
    assert "unhurt" not in page


def test_files_of_the_pages(client: TestClient) -> None:
    style = client.get("/static/style.css")
    again = client.get("/static/style.css", headers={"If-None-Match": style.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/static/..%2froutes.py").status_code == 404
    assert client.get("/static/routes.py").status_code == 404
    reference = client.get("/docs").text
    assert not re.search(r"https?://", reference)
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', reference):
        assert client.get(path).status_code == 200, path
