"""The whole service with the shipped predictor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from predictor import load_predictor
from scheduling.demo import pairs
from serving.app import create_app
from serving.config import ServiceConfig
from tests.waiting import until


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("default")
    with TestClient(
        create_app(ServiceConfig(database_url=f"sqlite:///{folder}/s.db")), base_url="http://127.0.0.1"
    ) as client:
        until(lambda: client.get("/v1/health/ready").status_code == 200, "the service gets ready")
        yield client


def test_a_pair(client: TestClient) -> None:
    body = {"device": "v100", "jobs": ["resnet18-cifar:batch_size=64", "lstm-wikitext2:batch_size=20"]}
    answer = client.post("/v1/predict", json=body).json()
    assert answer["fits"] is True
    assert answer["model_version"]
    for member in answer["members"]:
        assert (
            1.0 <= member["slowdown"]["lower"] <= member["slowdown"]["value"] <= member["slowdown"]["upper"]
        )
        assert member["solo_step_time_s"]["value"] > 0
    assert client.post("/v1/predict/batch", json={"sets": [body]}).json()["predictions"] == [answer]


def test_names_of_public_measurements_are_those_of_zoo_models(client: TestClient) -> None:
    """As on the command line."""
    bodies = [{"device": "v100", "jobs": [name]} for name in ("cifar10", "resnet18-cifar", "Cifar10")]
    answers = [client.post("/v1/predict", json=body).json()["members"][0] for body in bodies]
    assert [answer.pop("job") for answer in answers] == ["cifar10", "resnet18-cifar", "Cifar10"]
    assert answers[0] == answers[1] == answers[2]
    assert client.post("/v1/workloads", json={"workload": "cifar10"}).json()["kind"] == "zoo"


def test_answers_are_those_of_the_predictor_and_of_the_demo(client: TestClient) -> None:
    predictor = load_predictor("default")
    for pair in pairs(predictor)[:3]:
        specs = [str(job) for job in pair.jobs.workloads]
        answer = client.post("/v1/predict", json={"device": "v100", "jobs": specs}).json()
        assert [m["slowdown"]["value"] for m in answer["members"]] == pytest.approx(pair.slowdown, rel=1e-6)
        for spec, member in zip(specs, answer["members"], strict=True):
            body = {"job": spec, "device": "v100", "frozen_prefixes": [0]}
            alone = client.post("/v1/layer-throughput", json=body).json()
            assert alone["points"][0]["step_time_s"] == pytest.approx(
                member["solo_step_time_s"]["value"], rel=1e-6
            )


def test_a_set_that_cannot_fit(client: TestClient) -> None:
    answer = client.post(
        "/v1/predict", json={"device": "k80", "jobs": ["resnet50-imagenet:batch_size=4096"]}
    ).json()
    assert answer["fits"] is False


def test_placement(client: TestClient) -> None:
    gpus = [
        {
            "id": "0",
            "device": "v100",
            "tenants": [{"job": "lstm-wikitext2:batch_size=20", "iterations_left": 5000}],
        },
        {"id": "1", "device": "v100"},
    ]
    body = {
        "job": "resnet18-cifar:batch_size=64",
        "iterations": 10000,
        "cluster": {"nodes": [{"name": "a", "gpus": gpus}]},
    }
    answer = client.post("/v1/place", json=body).json()
    assert answer["decision"] == "place"
    assert answer["ranked"][0]["gpu"] == "1"


def test_registered_graph(client: TestClient) -> None:
    entry = client.post("/v1/workloads", json={"workload": "vgg11-cifar", "batch_size": 32}).json()
    sets = [{"device": "v100", "jobs": [job]} for job in (entry["workload"], "vgg11-cifar:batch_size=32")]
    first, other = client.post("/v1/predict/batch", json={"sets": sets}).json()["predictions"]
    assert first["members"][0]["solo_step_time_s"] == other["members"][0]["solo_step_time_s"]
    for option in ("batch_size", "sequence_length"):
        wrong = {"device": "v100", "jobs": [{"workload": entry["workload"], option: 64}]}
        answer = client.post("/v1/predict", json=wrong)
        assert answer.status_code == 422
        assert f"captured with another {option}" in answer.json()["detail"]


def test_layer_throughput(client: TestClient) -> None:
    body = {"device": "v100", "job": "resnet18-cifar:batch_size=64", "frozen_prefixes": [0, 30]}
    points = client.post("/v1/layer-throughput", json=body).json()["points"]
    assert points[1]["step_time_s"] < points[0]["step_time_s"]
