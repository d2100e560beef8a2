"""A GPU type so slow that a step of a job would take weeks: no candidate for that job, and for it alone."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from predictor.types import Prediction
from profiling.errors import TooSlowError
from profiling.workload import ColocationSet
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource

SLOW, FAST = "lstm-wikitext2", "vgg11-cifar"
CLUSTER: dict[str, Any] = {
    "nodes": [{"name": device, "gpus": [{"device": device, "id": "0"}]} for device in ("k80", "v100")]
}


class SlowOnK80(TablePredictor):
    """Refuses one model on a K80, as the shipped predictor does if a step would take two weeks."""

    def _one(self, asked: ColocationSet) -> Prediction:
        if asked.device == "k80" and any(w.model == SLOW for w in asked.workloads):
            raise TooSlowError(f"{SLOW}: a step would take 1e7 s on k80")
        return super()._one(asked)


@pytest.fixture
def client(start: Start, source: TableSource) -> TestClient:
    source.predictor = SlowOnK80()
    client = start()
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 200
    return client


def test_queue(client: TestClient) -> None:
    asked = {"iterations": 1000, "jobs": [SLOW, FAST]}
    for _ in range(2):  # the second time it is known
        slow, fast = client.post("/v1/place", json=asked | {"cluster": CLUSTER}).json()["decisions"]
        assert [r["node"] for r in slow["ranked"]] == ["v100"]
        assert "1 GPU refused: a step would take more than two weeks on k80" in slow["reasons"]
        assert {r["node"] for r in fast["ranked"]} == {"k80", "v100"}
    only = {"job": SLOW, "cluster": {"nodes": CLUSTER["nodes"][:1]}}
    assert "more than two weeks on every GPU" in problem(client.post("/v1/place", json=only), 409)["detail"]


def test_placement(client: TestClient) -> None:
    placed = client.post("/v1/placements", json={"job": SLOW})
    assert (placed.status_code, placed.json()["node"]) == (201, "v100")


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_extender(client: TestClient, gpus: str) -> None:
    nodes = [{"name": n["name"], "gpus": [{**n["gpus"][0], "id": i} for i in "01"]} for n in CLUSTER["nodes"]]
    assert client.put("/v1/cluster", json={"nodes": nodes}).status_code == 200
    container: dict[str, Any] = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    pod = {"metadata": {"annotations": {"cotenant.dev/workload": SLOW}}, "spec": {"containers": [container]}}
    args = {"Pod": pod, "NodeNames": ["k80", "v100"]}
    kept = client.post("/extender/filter", json=args).json()
    assert kept["NodeNames"] == ["v100"]
    assert "a step would take 1e7 s on k80" in kept["FailedAndUnresolvableNodes"]["k80"]
    scores = client.post("/extender/prioritize", json=args).json()
    assert scores == [{"Host": "k80", "Score": 0}, {"Host": "v100", "Score": 10}]


def test_what_if(client: TestClient) -> None:
    page = client.get("/what-if", params={"device": ["k80", "v100"], "jobs": SLOW}).text
    assert "a step would take 1e7 s on k80" in page
    assert "On v100, time-slice: they fit" in page
    assert "they fit" not in client.get("/what-if", params={"device": "k80", "jobs": SLOW}).text
