"""Placements: decided and reserved, confirmed, ended, expired; executed once per idempotency key."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.handlers.upkeep import upkeep
from tests.serving.conftest import Start
from tests.serving.problems import problem

JOB = {"job": "resnet18-cifar:batch_size=64", "job_id": "train-7", "iterations": 1000}


def gpus(client: TestClient, count: int) -> None:
    nodes = [{"name": "a", "gpus": [{"device": "v100", "count": count}]}]
    assert client.put("/v1/cluster", json={"nodes": nodes}).status_code == 200


def tenants(client: TestClient) -> list[Any]:
    cluster = client.get("/v1/cluster").json()["cluster"]
    return [t for n in cluster["nodes"] for g in n["gpus"] for t in g["tenants"]]


def test_the_life_of_a_placement(client: TestClient) -> None:
    gpus(client, 2)
    made = client.post("/v1/placements", json=JOB)
    assert made.status_code == 201
    entry = made.json()
    assert (entry["state"], entry["node"]) == ("decided", "a")
    assert made.headers["location"] == f"/v1/placements/{entry['id']}"
    assert tenants(client)[0]["job_id"] == "train-7"
    confirmed = client.post(f"/v1/placements/{entry['id']}/confirm").json()
    assert (confirmed["state"], confirmed["expires_at"]) == ("confirmed", None)
    client.post(f"/v1/placements/{entry['id']}/progress", json={"iterations_left": 12.5})
    assert tenants(client)[0]["iterations_left"] == 12.5
    assert client.post(f"/v1/placements/{entry['id']}/end").json()["state"] == "ended"
    assert client.post(f"/v1/placements/{entry['id']}/end").json()["state"] == "ended"
    assert tenants(client) == []
    problem(client.post(f"/v1/placements/{entry['id']}/confirm"), 409)
    problem(client.post(f"/v1/placements/{entry['id']}/progress", json={"iterations_left": 1}), 409)


def test_a_job_of_unknown_length_is_a_tenant_for_the_hour_that_its_placement_states(
    client: TestClient,
) -> None:
    gpus(client, 1)
    entry = client.post("/v1/placements", json={"job": JOB["job"]}).json()
    assert entry["iterations"] is None
    assert "assuming 36000 steps" in entry["decision"]["reasons"][0]  # 0.1 s each
    assert entry["decision"]["iterations"] == 36000
    assert tenants(client)[0]["iterations_left"] == 36000


def test_concurrent_decisions_do_not_collide(client: TestClient) -> None:
    gpus(client, 8)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/placements", json=JOB), range(8)))
    assert [a.status_code for a in answers] == [201] * 8
    assert len({a.json()["gpu"] for a in answers}) == 8


def test_idempotency(client: TestClient) -> None:
    gpus(client, 4)
    key = {"Idempotency-Key": "k-1"}
    first = client.post("/v1/placements", json=JOB, headers=key)
    again = client.post("/v1/placements", json=JOB, headers=key)
    assert first.json() == again.json()
    assert len(tenants(client)) == 1
    problem(client.post("/v1/placements", json=JOB | {"iterations": 5}, headers=key), 422)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: client.post("/v1/placements", json=JOB, headers={"Idempotency-Key": "k-2"}),
                range(8),
            )
        )
    assert len({a.json()["id"] for a in answers}) == 1
    assert len(tenants(client)) == 2


def test_unconfirmed_expires(start: Start) -> None:
    client = start(reservation_s=0.05)
    gpus(client, 1)
    entry = client.post("/v1/placements", json=JOB).json()
    time.sleep(0.1)
    upkeep(client.app.state.service)  # type: ignore[attr-defined]
    assert client.get(f"/v1/placements/{entry['id']}").json()["state"] == "expired"
    assert tenants(client) == []


def test_listing(client: TestClient) -> None:
    gpus(client, 4)
    ids = [client.post("/v1/placements", json=JOB).json()["id"] for _ in range(3)]
    client.post(f"/v1/placements/{ids[0]}/end")
    page = client.get("/v1/placements", params={"limit": 2}).json()
    assert [p["id"] for p in page["items"]] == [ids[2], ids[1]]
    rest = client.get("/v1/placements", params={"limit": 2, "after": page["next"]}).json()
    assert [p["id"] for p in rest["items"]] == [ids[0]]
    assert rest["next"] is None
    assert [p["id"] for p in client.get("/v1/placements", params={"state": "ended"}).json()["items"]] == [
        ids[0]
    ]


def test_waiting_is_stored_too(client: TestClient) -> None:
    nodes = [
        {
            "name": "a",
            "gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 10}] * 4}],
        }
    ]
    client.put("/v1/cluster", json={"nodes": nodes})
    entry = client.post("/v1/placements", json=JOB).json()
    assert (entry["state"], entry["node"], entry["decision"]["decision"]) == ("waiting", None, "wait")
    problem(client.post(f"/v1/placements/{entry['id']}/confirm"), 409)


@pytest.mark.parametrize("key", ["nothing", "0" * 32])
def test_unknown(client: TestClient, key: str) -> None:
    problem(client.get(f"/v1/placements/{key}"), 404)
    problem(client.post(f"/v1/placements/{key}/end"), 404)


def test_no_cluster(client: TestClient) -> None:
    problem(client.post("/v1/placements", json=JOB), 422)


def test_a_nul_is_refused_before_anything_is_decided(client: TestClient) -> None:
    """PostgreSQL does not store it, and placements of several callers are written together."""
    gpus(client, 1)
    refused = client.post("/v1/placements", json=JOB | {"job_id": "a\x00b"})
    assert "job_id" in problem(refused, 422)["detail"]
    for gpu in ({"id": "a\x00"}, {"tenants": [{"job": "resnet18-cifar", "job_id": "\x00"}]}):
        node = {"gpus": [{"device": "v100"} | gpu]}
        assert "gpus[0]" in problem(client.put("/v1/cluster/nodes/b", json=node), 422)["detail"]
    assert client.get("/v1/placements").json()["items"] == []
