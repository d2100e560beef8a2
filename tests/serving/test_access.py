"""Tokens, scopes, rates, sizes and times: who gets in, and with how much."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from structlog.testing import capture_logs

from predictor.types import Prediction
from profiling.errors import ConflictError, InputError, UnknownNameError
from profiling.workload import ColocationSet
from serving.auth import create_token, list_tokens, revoke_token
from serving.config import ServiceConfig
from serving.limits import RateError, RateLimit
from serving.routing import ServiceRoute
from serving.store import Store
from serving.store.tables import TokenRow
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource
from tests.waiting import LONG_S, until_async

SET = {"device": "v100", "jobs": ["resnet18-cifar:batch_size=7"]}
NODE = {"nodes": [{"name": "a", "gpus": [{"device": "v100"}]}]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/store.db")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_scopes(start: Start, store: Store) -> None:
    tokens = {scope: create_token(store, scope, [scope]) for scope in ("read", "place", "admin")}
    client = start(auth="on")
    calls: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/predict", SET, "read"),
        ("GET", "/v1/cluster", None, "read"),
        ("POST", "/v1/place", {"job": "resnet18-cifar", "cluster": NODE}, "place"),
        ("PUT", "/v1/cluster", NODE, "admin"),
    ]
    order = ["read", "place", "admin"]
    for method, path, body, least in calls:
        refused = client.request(method, path, json=body)
        problem(refused, 401)
        assert refused.headers["www-authenticate"].startswith("Bearer")
        problem(client.request(method, path, json=body, headers=bearer("ct_wrong")), 401)
        for scope in order:
            answer = client.request(method, path, json=body, headers=bearer(tokens[scope]))
            allowed = order.index(scope) >= order.index(least)
            assert answer.status_code == (200 if allowed else 403), (path, scope, answer.text)
    assert client.get("/v1/health/live").status_code == 200
    problem(client.get("/v1/nowhere"), 401)


def test_tokens_are_hashed_and_revoked(start: Start, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.auth._REMEMBER_S", 0.0)
    token = create_token(store, "ops", ["read"])
    with store.read() as session:
        row = session.scalars(select(TokenRow)).one()
        assert token not in (row.digest, row.name)
        assert len(row.digest) == 64
    assert token not in str(list_tokens(store))
    client = start(auth="on")
    assert client.get("/v1/devices", headers=bearer(token)).status_code == 200
    revoke_token(store, "ops")
    problem(client.get("/v1/devices", headers=bearer(token)), 401)
    for name in ("ops", "nobody"):
        with pytest.raises(UnknownNameError):
            revoke_token(store, name)
    renewed = create_token(store, "ops", ["read"])
    assert client.get("/v1/devices", headers=bearer(renewed)).status_code == 200
    problem(client.get("/v1/devices", headers=bearer(token)), 401)
    with pytest.raises(ConflictError):
        create_token(store, "ops", ["read"])
    with pytest.raises(InputError):
        create_token(store, "other", ["everything"])
    with pytest.raises(InputError, match="needs a name"):
        create_token(store, " ", ["read"])
    with pytest.raises(InputError, match="needs a scope"):
        create_token(store, "other", [])


@pytest.mark.parametrize("later", [None, "another-first-token"])
def test_sessions_end_with_their_bootstrap_token(
    start: Start, monkeypatch: pytest.MonkeyPatch, later: str | None
) -> None:
    monkeypatch.setenv("COTENANT_BOOTSTRAP_TOKEN", "the-first-token")
    first = start(auth="on")
    assert first.post("/login", data={"token": "the-first-token"}, follow_redirects=False).status_code == 303
    cookies = dict(first.cookies)
    assert first.get("/").status_code == 200
    if later is None:
        monkeypatch.delenv("COTENANT_BOOTSTRAP_TOKEN")
    else:
        monkeypatch.setenv("COTENANT_BOOTSTRAP_TOKEN", later)
    second = start(auth="on")
    second.cookies.update(cookies)
    problem(second.get("/v1/cluster"), 401)


def test_bootstrap_token(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_BOOTSTRAP_TOKEN", "first-of-all\n")  # as a Secret made from a file
    client = start(auth="on")
    assert client.put("/v1/cluster", json=NODE, headers=bearer("first-of-all")).status_code == 200


# Every route and the scope that it takes; None: anybody. A new route must be written here, or the test fails.
SCOPES: dict[str | None, str] = {
    None: """
        GET /v1/health/live  GET /v1/health/ready  GET /v2/health/live  GET /v2/health/ready
        GET /login  POST /login  POST /logout  GET /static/{name}
    """,
    "read": """
        GET /  GET /jobs/{key}  GET /what-if  GET /docs  GET /openapi.json  GET /metrics
        POST /v1/predict  POST /v1/predict/batch  POST /v1/layer-throughput  POST /v1/probes
        POST /v1/slice-plans
        GET /v1/cluster  GET /v1/cluster/nodes/{name}  GET /v1/cluster/tenants
        GET /v1/workloads  GET /v1/workloads/{key}  GET /v1/workloads/{key}/graph
        GET /v1/placements  GET /v1/placements/{key}  GET /v1/observations
        GET /v1/devices  GET /v1/devices/{name}  GET /v1/models  GET /v1/models/events
        GET /v2  GET /v2/models  GET /v2/models/{name}  GET /v2/models/{name}/versions/{number}
        GET /v2/models/{name}/stats  GET /v2/models/{name}/versions/{number}/stats
        GET /v2/models/{name}/ready  GET /v2/models/{name}/versions/{number}/ready
        POST /v2/models/{name}/infer  POST /v2/models/{name}/versions/{number}/infer
    """,
    "place": """
        POST /v1/place  POST /v1/placements  POST /v1/observations  PUT /v1/cluster/tenants
        POST /v1/placements/{key}/confirm  POST /v1/placements/{key}/end  POST /v1/placements/{key}/progress
        POST /extender/filter  POST /extender/prioritize
    """,
    "admin": """
        PUT /v1/cluster  PUT /v1/cluster/nodes/{name}  DELETE /v1/cluster/nodes/{name}
        POST /v1/workloads  DELETE /v1/workloads/{key}  POST /v1/models/reload
        GET /v1/audit  DELETE /v1/observations/{number}
    """,
}


def routes_of(app: Any) -> set[str]:
    """Method and path of every route, including those of included routers."""
    paths = set()
    for entry in app.routes:
        inner = getattr(entry, "original_router", None)  # how FastAPI keeps a router that was included
        for route in inner.routes if inner else [entry]:
            paths |= {f"{method} {route.path}" for method in route.methods if method != "HEAD"}
    return paths


def test_every_route_has_a_scope(start: Start, store: Store) -> None:
    expected = {call: scope for scope, text in SCOPES.items() for call in re.findall(r"[A-Z]+ \S+", text)}
    client = start(auth="on")
    assert routes_of(client.app) == set(expected)
    read = create_token(store, "eyes", ["read"])
    place = create_token(store, "scheduler", ["place"])
    for call, scope in expected.items():
        method, path = call.split()
        path = re.sub(r"\{\w+\}", "x", path)
        answers = [
            client.request(method, path, headers=h).status_code for h in ({}, bearer(read), bearer(place))
        ]
        refused = [status in (401, 403) for status in answers]
        if call == "POST /login":
            continue  # 401 is its answer to a wrong token
        assert refused == {
            None: [False] * 3, "read": [True, False, False], "place": [True, True, False], "admin": [True] * 3
        }[scope], (call, answers)  # fmt: skip


def test_a_route_without_a_scope_does_not_start() -> None:
    with pytest.raises(InputError, match="no scope"):
        ServiceRoute("/x", lambda: None)


def test_a_service_that_nobody_can_call_says_so_at_the_start(start: Start, store: Store) -> None:
    def warned() -> bool:
        with capture_logs() as logs:
            client = start(auth="on")
        told = problem(client.get("/v1/devices"), 401)
        assert "cotenant serve token add" in told["detail"]
        return any("there is no token" in entry["event"] for entry in logs)

    assert warned()
    create_token(store, "someone", ["read"])
    assert not warned()
    revoke_token(store, "someone")
    assert warned()


@pytest.mark.parametrize(
    "change",
    [
        {"port": -1},
        {"workers": 0},
        {"poll_s": 0},
        {"auth": "maybe"},
        {"log_level": "loud"},
        {"rate_per_s": -1},
    ],
)
def test_invalid_settings_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ServiceConfig(**change)


def test_rate(start: Start) -> None:
    client = start(rate_per_s=0.001, rate_burst=3)
    answers = [client.post("/v1/predict", json=SET) for _ in range(5)]
    assert [a.status_code for a in answers[:3]] == [200] * 3
    problem(answers[4], 429)
    assert int(answers[4].headers["retry-after"]) >= 1
    assert client.get("/v1/health/ready").status_code == 200
    assert 'cotenant_requests_refused_total{reason="rate"} 2.0' in client.get("/metrics").text


def test_token_bucket_refills() -> None:
    limit = RateLimit(2.0, 2)
    limit.take("a", 0.0)
    limit.take("a", 0.0)
    with pytest.raises(RateError):
        limit.take("a", 0.0)
    limit.take("b", 0.0)
    limit.take("a", 0.5)


def test_body_limit(start: Start) -> None:
    client = start(body_bytes=1000)
    big = {"device": "v100", "jobs": ["resnet18-cifar"], "sharing": "x" * 2000}
    problem(client.post("/v1/predict", json=big), 413)

    def chunks() -> Any:
        for _ in range(100):
            yield b" " * 100

    problem(client.post("/v1/predict", content=chunks(), headers={"content-type": "application/json"}), 413)


class Slow(TablePredictor):
    """Waits at its gate for jobs that are new to it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        if any(w.batch_size for s in sets for w in s.workloads) and not {*map(str, sets)} <= self.seen:
            self.seen |= {*map(str, sets)}
            self.gate.wait(LONG_S)
        return super().predict_many(sets)


async def burst(app: Any, gate: threading.Event, number: int, refused: int) -> list[Any]:
    """Request `number` new sets at once; the gate opens once `refused` of them were answered."""
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        bodies = [
            {"device": "v100", "jobs": [f"resnet18-cifar:batch_size={n}"]} for n in range(1, number + 1)
        ]
        tasks = [asyncio.create_task(http.post("/v1/predict", json=body)) for body in bodies]
        await until_async(lambda: sum(task.done() for task in tasks) == refused, "some are refused")
        gate.set()
        return await asyncio.gather(*tasks)


def test_deadline(start: Start, source: TableSource) -> None:
    source.predictor = slow = Slow()
    client = start()
    slow.gate.clear()
    problem(client.post("/v1/predict", json=SET, headers={"X-Timeout-S": "0.05"}), 504)
    slow.gate.set()
    problem(client.post("/v1/predict", json=SET, headers={"X-Timeout-S": "soon"}), 422)
    assert client.post("/v1/predict", json=SET, headers={"X-Timeout-S": "100"}).status_code == 200


def test_shedding(start: Start, source: TableSource) -> None:
    source.predictor = slow = Slow()
    client = start(requests_in_flight=2)
    slow.gate.clear()
    answers = client.portal.call(burst, client.app, slow.gate, 6, 4)  # type: ignore[union-attr]
    statuses = sorted(a.status_code for a in answers)
    assert statuses == [200, 200, 503, 503, 503, 503]
    shed = next(a for a in answers if a.status_code == 503)
    assert shed.headers["retry-after"]
    assert client.post("/v1/predict", json=SET).status_code == 200


def test_slow_queue_is_bounded(start: Start, source: TableSource) -> None:
    source.predictor = slow = Slow()
    client = start(queue_length=1)
    slow.gate.clear()
    answers = client.portal.call(burst, client.app, slow.gate, 5, 2)  # type: ignore[union-attr]
    assert sorted(a.status_code for a in answers) == [200, 200, 200, 503, 503]


def test_faults_are_problems_too(start: Start, source: TableSource) -> None:
    class Broken(TablePredictor):
        def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
            if any(w.batch_size == 7 for s in sets for w in s.workloads):
                raise ZeroDivisionError("secret detail")
            return super().predict_many(sets)

    source.predictor = Broken()
    client = start()
    answer = client.post("/v1/predict", json=SET)
    assert "secret" not in answer.text
    problem(answer, 500)


def test_drain(client: TestClient) -> None:
    client.app.state.service.draining = True  # type: ignore[attr-defined]
    problem(client.get("/v1/health/ready"), 503)
    assert client.get("/v1/health/live").status_code == 200


def test_no_response_contains_the_host_header(start: Start, store: Store) -> None:
    token = create_token(store, "eyes", ["read"])
    client = start(auth="on", host="0.0.0.0")
    headers = bearer(token) | {"Host": "evil.example"}
    assert client.get("/v1/devices", headers=headers).status_code == 200, "any name, where tokens protect"
    for path in ("/v1/devices/", "/v1/cluster/", "/docs/", "/login/"):
        answer = client.get(path, headers=headers, follow_redirects=False)
        assert "evil.example" not in answer.headers.get("location", ""), path
        problem(answer, 404)


def test_sessions(start: Start, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.auth._REMEMBER_S", 0.0)
    token = create_token(store, "eyes", ["read"])
    client = start(auth="on", trusted_proxies=("192.0.2.1", "10.0.0.0/8"))
    client._transport.client = ("10.1.2.3", 50_000)  # type: ignore[attr-defined]
    made = client.post(
        "/login", data={"token": token}, headers={"X-Forwarded-Proto": "https"}, follow_redirects=False
    )
    assert (made.status_code, made.headers["location"]) == (303, "/")
    cookie = made.headers["set-cookie"]
    assert "Secure" in cookie
    assert "HttpOnly" in cookie
    assert token not in cookie
    session = cookie.partition("=")[2].partition(";")[0]
    signed_in = {"Cookie": f"cotenant_session={session}"}
    client.cookies.clear()
    assert client.get("/", headers=signed_in).status_code == 200
    problem(client.post("/v1/predict", json=SET, headers=signed_in), 401)
    assert client.post("/logout", headers=signed_in, follow_redirects=False).headers["location"] == "/login"
    problem(client.get("/", headers=signed_in), 401)
    again = client.post("/login", data={"token": token}, follow_redirects=False).headers["set-cookie"]
    client.cookies.clear()
    signed_in = {"Cookie": again.partition(";")[0]}
    assert client.get("/", headers=signed_in).status_code == 200
    revoke_token(store, "eyes")
    problem(client.get("/", headers=signed_in), 401)


def test_two_authorization_headers(start: Start, store: Store) -> None:
    token = create_token(store, "ops", ["read"])
    client = start(auth="on")
    headers = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer other")]
    problem(client.get("/v1/devices", headers=headers), 401)


def test_unknown_tokens_are_limited(start: Start, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    token = create_token(store, "ops", ["read"])
    client = start(auth="on")
    assert client.get("/v1/devices", headers=bearer(token)).status_code == 200
    now = time.monotonic()
    monkeypatch.setattr("serving.limits.time", SimpleNamespace(monotonic=lambda: now))  # no time passes
    statuses = [client.get("/v1/devices", headers=bearer(f"guess-{n}")).status_code for n in range(40)]
    assert statuses == [401] * 30 + [429] * 10
    assert client.get("/v1/devices", headers=bearer(token)).status_code == 200, "known tokens go on"


def test_tokens_expire(start: Start, store: Store) -> None:
    token = create_token(store, "guest", ["read"], days=1e-6)
    time.sleep(0.2)
    problem(start(auth="on").get("/v1/devices", headers=bearer(token)), 401)
    with pytest.raises(InputError):
        create_token(store, "never", ["read"], days=0)
