"""MIG slices and SM shares wherever the service accepts a device or a job."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from serving.dashboard.view import Tile, by_card
from tests.serving.problems import problem

CUT = {
    "nodes": [
        {
            "name": "dgx",
            "gpus": [
                {
                    "id": "0/4g",
                    "device": "a100:mig=4g",
                    "tenants": [{"job": "resnet18-cifar", "iterations_left": 1000, "job_id": "t-1"}],
                },
                {"id": "0/3g", "device": "a100:mig=3g"},
            ],
        }
    ]
}


def test_a_slice_is_a_device(client: TestClient) -> None:
    body = client.get("/v1/devices/a100:mig=3g").json()
    assert body["name"] == "a100:mig=3g"
    assert body["sm_count"] == 42
    assert client.get("/v1/devices/a100:mig=3g.20gb").json()["name"] == "a100:mig=3g"
    assert "5g" in problem(client.get("/v1/devices/a100:mig=5g"), 404)["detail"]


def test_predict_on_a_slice_and_at_a_share(client: TestClient) -> None:
    job = {"workload": "resnet18-cifar", "batch_size": 64, "sm_share_ratio": 0.5}
    body = {"device": "a100:mig=3g", "jobs": [job, "lstm-wikitext2:sm_share_ratio=0.25"], "sharing": "mps"}
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == 200
    assert answer.json()["device"] == "a100:mig=3g"
    assert [m["job"] for m in answer.json()["members"]] == [
        "resnet18-cifar:batch_size=64,sm_share_ratio=0.5",
        "lstm-wikitext2:sm_share_ratio=0.25",
    ]
    small = {"device": "a100:mig=1g", "jobs": ["resnet18-cifar:batch_size=500"]}
    assert client.post("/v1/predict", json=small).json()["fits"] is False
    assert client.post("/v1/predict", json=small | {"device": "a100:mig=2g"}).json()["fits"] is True


@pytest.mark.parametrize("share", [0, 1.5])
def test_shares_out_of_range(client: TestClient, share: float) -> None:
    body = {"device": "a100", "jobs": [{"workload": "resnet18-cifar", "sm_share_ratio": share}]}
    assert client.post("/v1/predict", json=body).status_code == 422


def test_placements_name_the_slice_and_the_dashboard_shows_it(client: TestClient) -> None:
    assert client.put("/v1/cluster", json=CUT).status_code == 200
    stored = client.get("/v1/cluster").json()
    assert [g["device"] for g in stored["cluster"]["nodes"][0]["gpus"]] == ["a100:mig=4g", "a100:mig=3g"]
    placed = client.post("/v1/placements", json={"job": "resnet18-cifar", "job_id": "t-2", "iterations": 50})
    assert placed.json()["gpu"] == "0/3g"
    page = client.get("/").text
    assert "a100:mig=3g" in page
    assert page.count("GPU 0 ") == 1
    assert page.index("GPU 0 ") < page.index("Slice 0/4g") < page.index("Slice 0/3g")
    metrics = client.get("/metrics").text
    assert 'cotenant_placed_jobs_total{device="a100:mig=3g"} 1.0' in metrics
    form = client.get("/what-if", params={"device": "a100:mig=3g", "jobs": "resnet18-cifar"}).text
    assert "<option selected>a100:mig=3g</option>" in form
    assert "they fit" in form


def test_slices_are_shown_in_their_gpus_tile() -> None:
    ids = [("0/3g", "a100:mig=3g"), ("1", "a100"), ("0/4g", "a100:mig=4g"), ("2.0", "a30:mig=1g"), ("2.1", "a30:mig=1g"),
           ("3g.20gb-0", "a100:mig=3g"), ("3g.20gb-1", "a100:mig=3g"), ("4/0", "a100")]  # fmt: skip
    cards = by_card([Tile(name, device, "mps", (), None, 1.0) for name, device in ids])
    assert [(card.id, [tile.id for tile in card.tiles]) for card in cards] == [
        ("0", ["0/3g", "0/4g"]), ("", ["1"]), ("2", ["2.0", "2.1"]), ("", ["3g.20gb-0"]), ("", ["3g.20gb-1"]), ("", ["4/0"]),
    ]  # fmt: skip
