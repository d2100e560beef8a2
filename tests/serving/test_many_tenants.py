"""An inventory with very many running jobs: a bounded number of statements, the same checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from tests.serving.problems import problem

SPECS = ("resnet18-cifar:batch_size=64", "lstm-wikitext2")


def cluster(nodes: int, left: float | None = 1000.0, first: int = 0) -> dict[str, Any]:
    """Four GPUs a node, and a job on each."""
    return {
        "nodes": [
            {
                "name": f"node-{node}",
                "gpus": [
                    {"id": str(gpu), "device": "v100", "tenants": [tenant(4 * node + gpu + first, left)]}
                    for gpu in range(4)
                ],
            }
            for node in range(nodes)
        ]
    }


def tenant(number: int, left: float | None) -> dict[str, Any]:
    length = {} if left is None else {"iterations_left": left}
    return {"job": SPECS[number % 2], "job_id": f"job-{number}", **length}


@contextmanager
def statements(client: TestClient) -> Iterator[list[str]]:
    seen: list[str] = []

    def keep(_c: Any, _k: Any, statement: str, _p: Any, _x: Any, _many: bool) -> None:
        seen.append(statement)

    engine = client.app.state.service.store.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", keep)
    yield seen
    event.remove(engine, "before_cursor_execute", keep)


def put(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.put("/v1/cluster", params={"replace_tenants": "true"}, json=body)
    assert answer.status_code == 200, answer.text


def test_statements_do_not_grow_with_tenants(client: TestClient) -> None:
    """Neither to add, to change, to replace nor to remove them."""
    counts = []
    for nodes in (2, 40):
        put(client, {"nodes": []})
        with statements(client) as seen:
            put(client, cluster(nodes))
            put(client, cluster(nodes, left=5.0))
            put(client, cluster(nodes, first=1000))
            put(client, {"nodes": []})
        counts.append(len(seen))
    assert counts[1] <= counts[0] + 4


def test_tenants_are_as_the_last_body_says(client: TestClient) -> None:
    for body in (cluster(3), cluster(3, left=5.0), cluster(3, first=1), cluster(2)):
        put(client, body)
        stored = client.get("/v1/cluster").json()["cluster"]["nodes"]
        told = [[g["tenants"] for g in node["gpus"]] for node in stored]
        assert [[[t["job_id"] for t in g] for g in node] for node in told] == [
            [[t["job_id"] for t in g["tenants"]] for g in node["gpus"]] for node in body["nodes"]
        ]
        assert {t["iterations_left"] for node in told for g in node for t in g} == {
            body["nodes"][0]["gpus"][0]["tenants"][0]["iterations_left"]
        }


def test_what_stays_the_same_is_not_read_again(client: TestClient) -> None:
    put(client, cluster(3))
    current = client.app.state.service.cluster.current  # type: ignore[attr-defined]
    before = current()
    body = cluster(3)
    body["nodes"][1]["gpus"][2]["tenants"][0]["iterations_left"] = 7.0
    put(client, body)
    after = current()
    assert after.version > before.version
    same = [new is old for new, old in zip(after.snapshot.nodes, before.snapshot.nodes, strict=True)]
    assert same == [True, False, True]


@pytest.mark.parametrize("left", [5.0, None])
def test_a_spec_out_of_range_is_refused(client: TestClient, left: float | None) -> None:
    """With a length of its own, too, for which nothing is predicted now."""
    body = cluster(1, left)
    body["nodes"][0]["gpus"][0]["tenants"][0]["job"] = "resnet18-cifar:batch_size=99999999"
    told = problem(client.put("/v1/cluster", json=body), 422)
    assert "batch_size is out of range" in told["detail"]
