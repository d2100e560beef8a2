"""Host names, origins and proxies of requests."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from profiling.errors import InputError
from serving.config import ServiceConfig
from serving.hosts import Proxies
from tests.serving.conftest import Start
from tests.serving.problems import problem


def test_cross_site_and_rebound_requests_are_refused(client: TestClient) -> None:
    json = {"Content-Type": "application/json"}
    body = b'{"gpus": [{"device": "v100"}]}'
    put = {"url": "/v1/cluster/nodes/a", "content": body}
    problem(client.put(**put, headers=json | {"Host": "evil.example"}), 421)
    problem(client.put(**put, headers=json | {"Host": "169.254.169.254"}), 421)
    problem(client.put(**put, headers=json | {"Sec-Fetch-Site": "cross-site"}), 403)
    for origin in ("http://evil.example", "null", "http://[evil", "http://127.0.0.1.evil.example"):
        problem(client.put(**put, headers=json | {"Origin": origin}), 403)
    problem(client.put(**put, headers={"Content-Type": "text/plain"}), 415)
    problem(client.put(**put), 415)
    problem(client.post("/v1/models/reload", headers={"Sec-Fetch-Site": "same-site"}), 403)
    assert client.put(**put, headers=json | {"Host": "localhost:8080"}).status_code == 201
    assert client.put(**put, headers=json | {"Origin": "http://127.0.0.1"}).status_code == 200
    # Behind a proxy that changes Host.
    same = {"Origin": "https://cotenant.example", "Sec-Fetch-Site": "same-origin"}
    assert client.put(**put, headers=json | same).status_code == 200


def test_allowed_hosts(start: Start) -> None:
    client = start(auth="off", allowed_hosts=("cotenant.example",))
    assert client.get("/v1/devices", headers={"Host": "cotenant.example:443"}).status_code == 200
    problem(client.get("/v1/devices", headers={"Host": "other.example"}), 421)
    ServiceConfig(allowed_hosts=("*", "node_1", "2001:db8::1"))
    for never in ("https://cotenant.example", "cotenant.example:443", "*.example", "a,b", ""):
        with pytest.raises(InputError, match="not a name"):
            ServiceConfig(allowed_hosts=(never,))


def test_trusted_proxies() -> None:
    proxies = Proxies(("192.0.2.1", "10.0.0.0/8", "2001:db8::/32"))
    trusted = ("192.0.2.1", "10.9.8.7", "2001:db8::1", "::ffff:10.9.8.7")
    assert all(proxies.trusts(client) for client in trusted)
    assert not any(
        proxies.trusts(client)
        for client in ("192.0.2.2", "11.0.0.1", "testclient", "", "::1", "::ffff:11.0.0.1")
    )
    for wrong in ("proxy.example", "10.0.0.7/8", "10.0.0.0/33", ""):
        with pytest.raises(InputError, match="not an address"):
            ServiceConfig(trusted_proxies=(wrong,))


def test_callers_behind_a_trusted_proxy_are_told_apart(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the last address, which the proxy adds; a caller may have sent those before it."""
    client, now = start(auth="on", trusted_proxies=("10.0.0.0/8",)), time.monotonic()
    monkeypatch.setattr("serving.limits.time", SimpleNamespace(monotonic=lambda: now))  # no time passes

    def guesses(proxy: str, forwarded: str | None) -> set[int]:
        client._transport.client = (proxy, 50_000)  # type: ignore[attr-defined]
        statuses = []
        for number in range(30):
            headers = {"Authorization": f"Bearer {proxy}-{forwarded}-{number}"}
            if forwarded is not None:
                headers["X-Forwarded-For"] = f"192.0.2.{number}, {forwarded}"
            statuses.append(client.get("/v1/devices", headers=headers).status_code)
        return set(statuses)

    assert guesses("10.0.0.1", "192.0.2.100") == {401}
    assert guesses("10.0.0.1", "192.0.2.101") == {401}
    assert guesses("10.0.0.2", "192.0.2.101") == {429}, "the same caller by another proxy"
    assert guesses("10.0.0.1", "192.0.2.104, 10.0.0.3") == {401}
    assert guesses("10.0.0.1", "192.0.2.105, 10.0.0.3") == {401}, "another caller by the same two proxies"
    assert guesses("10.0.0.2", "192.0.2.105 ,10.0.0.4") == {429}
    assert guesses("10.0.0.2", "192.0.2.105:1234, 10.0.0.4:443") == {429}, "some proxies add the port"
    assert guesses("10.0.0.1", "2001:db8::1, 10.0.0.3") == {401}
    assert guesses("10.0.0.1", "[2001:db8::1]:1234, 10.0.0.3") == {429}
    assert guesses("10.0.0.1", None) == guesses("10.0.0.2", None) == {401}, "the proxies themselves"
    assert guesses("203.0.113.1", "192.0.2.102") == {401}
    assert guesses("203.0.113.1", "192.0.2.103") == {429}, "anybody may send the header"
