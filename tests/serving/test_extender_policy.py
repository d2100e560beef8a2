"""The scheduler extender of a service whose placements a policy decides."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from tests.serving.conftest import Start
from tests.serving.test_extender import slice_pod

LSTM = "lstm-wikitext2"  # two of them do not slow each other down
CLUSTER = {
    "nodes": [
        {"name": "busy", "gpus": [{"device": "v100", "tenants": [{"job": LSTM, "iterations_left": 1e5}]}]},
        {"name": "empty", "gpus": [{"device": "v100"}]},
        {
            "name": "cut",
            "gpus": [{"id": "0/3g", "device": "a100:mig=3g"}, {"id": "0/4g", "device": "a100:mig=4g"}],
        },
        {"name": "mixed", "gpus": [{"id": "0", "device": "a100"}, {"id": "1/3g", "device": "a100:mig=3g"}]},
    ]
}
NAMES = ["busy", "empty", "cut", "mixed", "stranger"]


def _last(snapshot: Any, belief: Any) -> list[Allocation]:
    return [Allocation(job, (len(snapshot) - 1,)) for job in snapshot.waiting.values()]


LAST = Policy("last", _last)
NEVER = Policy("never", lambda snapshot, belief: [])
HERE = "tests.serving.test_extender_policy"


def scores(
    client: TestClient, names: list[str], resource: str = "nvidia.com/gpu", **more: str
) -> dict[str, int]:
    asked = slice_pod({resource: "1"}, workload=LSTM, **more)
    answer = client.post("/extender/prioritize", json={"Pod": asked, "NodeNames": names})
    return {p["Host"]: p["Score"] for p in answer.json()}


def started(start: Start, policy: str | None) -> TestClient:
    client = start(policy=policy)
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 200
    return client


@pytest.mark.parametrize("more", [{}, {"iterations": "1000"}])
def test_the_policys_node_comes_first(start: Start, more: dict[str, str]) -> None:
    client = started(start, "exclusive")
    assert scores(client, ["busy", "empty", "stranger"], **more) == {"busy": 9, "empty": 10, "stranger": 0}
    placed = client.post("/v1/placements", json={"job": LSTM, "iterations": 1000}).json()
    assert placed["node"] != "busy"


def test_it_is_the_node_of_a_placement(start: Start) -> None:
    client = started(start, f"{HERE}:LAST")
    placed = client.post("/v1/place", json={"job": LSTM, "iterations": 1000}).json()
    assert placed["ranked"][0]["node"] == "mixed"
    assert scores(client, NAMES) == {"busy": 9, "empty": 9, "cut": 9, "mixed": 10, "stranger": 0}


def test_it_chooses_among_the_nodes_and_gpus_that_the_pod_can_get(start: Start) -> None:
    client = started(start, f"{HERE}:LAST")
    assert scores(client, ["empty", "busy"]) == {"busy": 9, "empty": 10}, "the cluster's order counts"
    assert scores(client, ["stranger"]) == {"stranger": 0}
    assert scores(client, NAMES, "nvidia.com/mig-4g.20gb") == {name: 10 * (name == "cut") for name in NAMES}


@pytest.mark.parametrize("policy", [None, f"{HERE}:NEVER"])
def test_without_a_choice_the_cost_decides(start: Start, policy: str | None) -> None:
    assert scores(started(start, policy), ["busy", "empty"]) == {"busy": 10, "empty": 10}
