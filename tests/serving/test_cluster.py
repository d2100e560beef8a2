"""The stored cluster: versions, compare-and-set, nodes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from serving.handlers import cluster
from serving.handlers.upkeep import upkeep
from serving.service import Service
from serving.store.tables import NodeRow
from tests.serving.conftest import Start
from tests.serving.problems import problem

CLUSTER = {
    "nodes": [
        {"name": "a", "gpus": [{"device": "v100", "count": 2}]},
        {
            "name": "b",
            "gpus": [
                {"id": "x", "device": "p100", "tenants": [{"job": "lstm-wikitext2", "iterations_left": 10}]}
            ],
        },
    ],
    "links": [{"source": "a", "target": "b", "bandwidth_bytes_per_s": 1e9}],
}


def test_empty_store(client: TestClient) -> None:
    answer = client.get("/v1/cluster")
    assert answer.json() == {"version": 0, "valid_until": None, "cluster": {"nodes": [], "links": []}}


def test_replace_and_read(client: TestClient) -> None:
    put = client.put("/v1/cluster", json=CLUSTER)
    assert put.json() == {"version": 1}
    answer = client.get("/v1/cluster")
    assert answer.headers["etag"] == put.headers["etag"] == '"1.1"'
    assert [n["name"] for n in answer.json()["cluster"]["nodes"]] == ["a", "b"]
    assert [g["id"] for g in answer.json()["cluster"]["nodes"][0]["gpus"]] == ["0", "1"]
    assert answer.json()["cluster"]["links"] == CLUSTER["links"]
    assert client.put("/v1/cluster", json=answer.json()["cluster"]).json() == {"version": 2}


def test_a_cluster_can_be_put_back(client: TestClient) -> None:
    """A tenant given as a SPEC is returned as an object, which must have all options of a SPEC."""
    job = "resnet18-cifar:optimizer=none,mode=inference,precision=fp64,framework=tensorflow"
    gpu = {"id": "0", "device": "v100", "tenants": [{"job": job, "iterations_left": 5}]}
    assert client.put("/v1/cluster/nodes/a", json={"gpus": [gpu]}).status_code == 201
    stored = client.get("/v1/cluster").json()["cluster"]
    assert client.put("/v1/cluster", json=stored).status_code == 200
    assert client.get("/v1/cluster").json()["cluster"] == stored


def test_compare_and_set(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    assert client.put("/v1/cluster", json=CLUSTER, headers={"If-Match": '"1"'}).json() == {"version": 2}
    problem(client.put("/v1/cluster", json={"nodes": []}, headers={"If-Match": '"1"'}), 412)
    problem(client.put("/v1/cluster", json={"nodes": []}, headers={"If-Match": "soon"}), 422)
    assert len(client.get("/v1/cluster").json()["cluster"]["nodes"]) == 2


def test_nodes(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    new = client.put("/v1/cluster/nodes/c", json={"gpus": [{"device": "t4"}]})
    assert new.status_code == 201
    assert new.json() == {"version": 2}
    assert (
        client.put(
            "/v1/cluster/nodes/b?replace_tenants=true", json={"gpus": []}, headers={"If-Match": '"2"'}
        ).status_code
        == 200
    )
    assert client.get("/v1/cluster/nodes/b").json()["node"]["gpus"] == []
    assert client.delete("/v1/cluster/nodes/a").json() == {"version": 4}
    assert [n["name"] for n in client.get("/v1/cluster").json()["cluster"]["nodes"]] == ["b", "c"]
    problem(client.get("/v1/cluster/nodes/a"), 404)
    problem(client.delete("/v1/cluster/nodes/a"), 404)
    assert client.get("/v1/cluster").json()["version"] == 4


def test_nodes_and_gpus_may_add_up_to_the_limit(start: Start) -> None:
    """`count`s multiply: four nodes of two GPUs are eight, and four tenants on each are as many as there may be."""
    client = start(cluster_gpus=8)
    gpu = {"device": "v100", "count": 2, "tenants": [{"job": "resnet18-cifar", "iterations_left": 1}] * 4}
    node = {"name": "a", "count": 4, "gpus": [gpu]}
    assert client.put("/v1/cluster", json={"nodes": [node]}).status_code == 200
    one_each = [{"name": f"n{k}", "gpus": [{"device": "v100"}]} for k in range(8)]
    assert client.put("/v1/cluster?replace_tenants=true", json={"nodes": one_each}).status_code == 200
    empty = {**node, "gpus": [gpu, {"device": "t4"}]}
    told = problem(client.put("/v1/cluster", json={"nodes": [empty]}), 413)
    assert (told["expected"], told["got"]) == ("at most 8 GPUs", "12")
    fuller = {**node, "gpus": [{**gpu, "tenants": gpu["tenants"] + gpu["tenants"][:1]}]}  # type: ignore
    told = problem(client.put("/v1/cluster", json={"nodes": [fuller]}), 413)
    assert (told["expected"], told["got"]) == ("at most 32 tenants", "40")


def test_an_exchanged_gpu_comes_with_its_tenants(client: TestClient) -> None:
    """Nothing ran on the GPU that had the id before, so no placement is affected."""
    client.put("/v1/cluster", json=CLUSTER)
    tenants = [{"job": "lstm-wikitext2", "iterations_left": 10}]
    path, gpus = "/v1/cluster/nodes/a", [{"id": "0", "device": "t4", "tenants": tenants}]
    problem(client.put(path, json={"gpus": [{**gpus[0], "device": "v100"}]}), 409)
    assert client.put(path, json={"gpus": gpus}).status_code == 200
    (gpu,) = client.get(path).json()["node"]["gpus"]
    assert (gpu["device"], [t["iterations_left"] for t in gpu["tenants"]]) == ("t4", [10])


def test_tenants_that_look_alike_all_stay(client: TestClient) -> None:
    tenant = {"job": "resnet18-cifar", "iterations_left": 10}
    for left in (10, 7):
        tenants = [{**tenant, "iterations_left": left + k} for k in range(2)]
        body = {"gpus": [{"id": "0", "device": "v100", "tenants": tenants}]}
        assert client.put("/v1/cluster/nodes/a?replace_tenants=true", json=body).status_code in (200, 201)
        (gpu,) = client.get("/v1/cluster/nodes/a").json()["node"]["gpus"]
        assert [t["iterations_left"] for t in gpu["tenants"]] == [left, left + 1]


def test_bad_cluster_changes_nothing(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    problem(client.put("/v1/cluster", json={"nodes": [{"name": "a", "gpus": [{"device": "abacus"}]}]}), 404)
    problem(client.put("/v1/cluster", json={"nodes": [{"name": "a"}, {"name": "a"}]}), 422)
    problem(client.put("/v1/cluster/nodes/z", json={"name": "y", "gpus": []}), 422)
    problem(
        client.put(
            "/v1/cluster",
            json={"nodes": [{"name": "a", "count": 100_000, "gpus": [{"device": "v100", "count": 2}]}]},
        ),
        413,
    )
    assert client.get("/v1/cluster").json()["version"] == 1


def test_a_tenant_without_a_length_has_an_hour_left(client: TestClient) -> None:
    node = {"gpus": [{"id": "0", "device": "v100", "tenants": [{"job": "resnet18-cifar"}]}]}
    assert client.put("/v1/cluster/nodes/a", json=node).status_code == 201
    stored = client.get("/v1/cluster/nodes/a").json()["node"]["gpus"][0]["tenants"]
    assert [tenant["iterations_left"] for tenant in stored] == [36000]


@pytest.mark.parametrize("name", ["a/b", "/", "a\0b", "a\nb", "a\x7f", "a\x85", ".", ".."])
def test_names_that_cannot_be_in_a_url_are_refused(client: TestClient, name: str) -> None:
    body = {"nodes": [{"name": name, "gpus": [{"device": "v100"}]}]}
    told = problem(client.put("/v1/cluster", json=body), 422)
    assert "cannot be part of the node's URL" in told["detail"]
    problem(client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": body}), 422)
    assert client.get("/v1/cluster").json()["cluster"]["nodes"] == []


@pytest.mark.parametrize("name", ["a%00b", "a%0Ab"])
def test_such_names_are_refused_in_the_url_too(client: TestClient, name: str) -> None:
    told = client.put(f"/v1/cluster/nodes/{name}", json={"gpus": [{"device": "v100"}]})
    assert told.status_code == 422
    assert "cannot be part of the node's URL" in told.json()["detail"]


def test_a_url_that_is_not_utf8_is_refused(client: TestClient) -> None:
    """`%FF` and `%FE` would be one node."""
    told = client.put("/v1/cluster/nodes/%FF", json={"gpus": [{"device": "v100"}]})
    assert told.status_code == 400
    assert (
        told.json()["detail"]
        == "the URL is not text: expected UTF-8, percent-encoded, got /v1/cluster/nodes/%FF."
    )
    assert client.get("/v1/cluster").json()["cluster"]["nodes"] == []
    assert client.put("/v1/cluster/nodes/%EF%BF%BD", json={"gpus": []}).status_code == 201


@pytest.mark.parametrize("name", ["a b", "a?b#c", "knoten-ü", "...", "a" * 200])
def test_names_that_can_be_quoted_are_read_and_removed(client: TestClient, name: str) -> None:
    body = {"nodes": [{"name": name, "gpus": [{"device": "v100"}]}]}
    assert client.put("/v1/cluster", json=body).status_code == 200
    path = f"/v1/cluster/nodes/{quote(name, safe='')}"
    assert client.get(path).json()["node"]["name"] == name
    assert client.delete(path).status_code == 200
    assert client.get(path).status_code == 404


def test_place_against_the_stored_cluster(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    answer = client.post("/v1/place", json={"job": "resnet18-cifar", "iterations": 100}).json()
    assert answer["decision"] == "place"
    assert answer["ranked"][0]["node"] == "a"


def test_an_unchanged_node_report_only_counts_as_a_heartbeat(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    placed = client.post("/v1/placements", json={"job": "resnet18-cifar", "iterations": 10}).json()
    name = placed["node"]
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    monkeypatch.setattr(cluster, "_Edit", None)

    def row() -> tuple[int, float]:
        with service.store.read() as session:
            node = session.get_one(NodeRow, name)
            return node.revision, node.reported_at

    revision, heard = row()
    stored = client.get(f"/v1/cluster/nodes/{name}").json()["node"]
    without = [{k: v for k, v in gpu.items() if k != "tenants"} for gpu in stored["gpus"]]
    for gpus in (stored["gpus"], without):
        assert client.put(f"/v1/cluster/nodes/{name}", json={"gpus": gpus}).status_code == 200
        assert client.get(f"/v1/cluster/nodes/{name}").json()["node"] == stored
        assert row()[0] == revision
        assert row()[1] > heard
    monkeypatch.undo()
    stranger = [gpu | {"tenants": [{"job": "lstm-wikitext2", "iterations_left": 5}]} for gpu in without]
    problem(client.put(f"/v1/cluster/nodes/{name}", json={"gpus": stranger}), 409)
    fewer = client.put(f"/v1/cluster/nodes/{name}?replace_tenants=true", json={"gpus": []})
    assert (fewer.status_code, row()[0] > revision) == (200, True)


def test_an_unchanged_report_keeps_the_version(client: TestClient) -> None:
    """Otherwise every `If-Match` on a busy cluster would fail."""
    client.put("/v1/cluster", json=CLUSTER)
    path, node = "/v1/cluster/nodes/a", {"gpus": [{"device": "v100", "count": 2}]}
    for headers in ({}, {"If-Match": '"1"'}):
        told = client.put(path, json=node, headers=headers)
        assert (told.status_code, told.json(), told.headers["etag"]) == (200, {"version": 1}, '"1.1"')
    assert client.get("/v1/cluster", headers={"If-None-Match": '"1.1"'}).status_code == 304
    problem(client.put(path, json=node, headers={"If-Match": '"2"'}), 412)
    assert client.put(path, json={"gpus": [{"device": "v100"}]}).json() == {"version": 2}
    problem(client.put(path, json={"gpus": [{"device": "v100"}]}, headers={"If-Match": '"1"'}), 412)


def committed(service: Service) -> list[list[str]]:
    """The statements of each transaction committed from now on."""
    transactions: list[list[str]] = []

    def said(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        connection.info.setdefault("statements", []).append(statement)

    engine = service.store.engine
    event.listen(engine, "before_cursor_execute", said)
    event.listen(engine, "commit", lambda c: transactions.append(c.info.pop("statements", [])))
    event.listen(engine, "rollback", lambda c: c.info.pop("statements", None))
    return transactions


def test_a_report_and_its_audit_row_are_one_transaction(client: TestClient) -> None:
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    transactions = committed(service)
    node = {"gpus": [{"device": "v100"}]}
    for expected in (201, 200, 200):
        transactions.clear()
        assert client.put("/v1/cluster/nodes/n", json=node).status_code == expected
        # The service commits work of its own meanwhile.
        node_rows, audit_rows = ("INSERT INTO nodes", "UPDATE nodes"), ("INSERT INTO audit",)
        writes = [t for t in transactions if any(text.startswith(node_rows + audit_rows) for text in t)]
        assert len(writes) == 1
        assert any(text.startswith(node_rows) for text in writes[0])
        assert any(text.startswith(audit_rows) for text in writes[0])
        newest = client.get("/v1/audit").json()["items"][0]
        assert (newest["action"], newest["status"]) == ("PUT /v1/cluster/nodes/n", expected)


def test_a_gpu_type_is_the_same_however_it_is_spelt(client: TestClient) -> None:
    def report(device: str, **more: Any) -> dict[str, Any]:
        return {"gpus": [{"id": "0", "device": device, **more}]}

    tenants = [{"job": "resnet18-cifar", "iterations_left": 100.0}]
    put = client.put("/v1/cluster/nodes/n", json=report("A100", sharing="mig", tenants=tenants))
    assert put.status_code == 201, put.text
    again = client.put("/v1/cluster/nodes/n", json=report("a100-40gb", sharing="mig"))
    assert (again.status_code, again.json()) == (200, {"version": 1})
    (node,) = client.get("/v1/cluster").json()["cluster"]["nodes"]
    assert node["gpus"][0]["device"] == "a100"


def test_the_name_in_the_url_may_be_as_long_as_the_one_in_a_body(client: TestClient) -> None:
    body = problem(client.put(f"/v1/cluster/nodes/{'x' * 201}", json={"gpus": []}), 422)
    assert "200 characters" in body["expected"]
    assert client.put(f"/v1/cluster/nodes/{'x' * 200}", json={"gpus": []}).status_code == 201


def test_removed_nodes_come_back_and_are_forgotten_after_a_day(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    both = {"nodes": [{"name": name, "gpus": [{"device": "v100"}]} for name in ("a", "b")]}
    one = {"nodes": both["nodes"][:1]}

    def rows() -> set[str]:
        with service.store.read() as session:
            return {row.name for row in session.query(NodeRow)}

    for body in (both, one, both, one):
        assert client.put("/v1/cluster", json=body).status_code == 200
        named = [node["name"] for node in client.get("/v1/cluster").json()["cluster"]["nodes"]]
        assert named == [node["name"] for node in body["nodes"]]
    upkeep(service)
    assert rows() == {"a", "b"}
    monkeypatch.setattr("serving.handlers.upkeep._REMOVED_S", -1.0)
    upkeep(service)
    assert rows() == {"a"}


def test_the_name_that_occurs_twice_is_named(client: TestClient) -> None:
    answer = client.put("/v1/cluster", json={"nodes": [{"name": "gpu-7"}, {"name": "a"}, {"name": "gpu-7"}]})
    assert problem(answer, 422)["got"] == "'gpu-7'"
