"""POST /v1/layer-throughput."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from predictor import load_predictor
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from profiling.workload import ColocationSet, Workload
from serving.feedback import Belief
from serving.handlers import throughput
from serving.handlers.throughput import ThroughputBody
from tests.serving.problems import problem

BODY = {"device": "v100", "job": "resnet18-cifar:batch_size=64", "frozen_prefixes": [0, 10, 20]}


def test_points(client: TestClient) -> None:
    answer = client.post("/v1/layer-throughput", json=BODY)
    assert answer.status_code == 200, answer.text
    points = answer.json()["points"]
    assert [p["frozen_prefix"] for p in points] == [0, 10, 20]
    times = [p["step_time_s"] for p in points]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(0.1)  # what the predictor says of the job alone
    assert points[0]["speedup"] == pytest.approx(1.0)


def test_many_prefixes_are_computed_in_chunks_and_each_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of layers at a tenth of a second each, in one piece, would make the lane count as stuck."""
    pieces: list[list[int]] = []

    def points(belief: Belief, job: Workload, body: ThroughputBody, prefixes: list[int]) -> Any:
        pieces.append(prefixes)
        return answered(belief, job, body, prefixes)

    answered = throughput._points
    monkeypatch.setattr(throughput, "_points", points)
    asked = [k % 41 for k in range(1000)]
    answer = client.post("/v1/layer-throughput", json=BODY | {"frozen_prefixes": asked})
    assert [p["frozen_prefix"] for p in answer.json()["points"]] == asked
    assert sorted(k for piece in pieces for k in piece) == list(range(41))
    assert max(map(len, pieces)) <= 8
    batcher = client.app.state.service.batcher  # type: ignore[attr-defined]
    assert sum(kind == "layer-throughput" for _, kind, _ in batcher._known) == 41


def test_the_jobs_own_prefix(client: TestClient) -> None:
    body = {"device": "v100", "job": {"workload": "resnet18-cifar", "frozen_prefix": 5}}
    (point,) = client.post("/v1/layer-throughput", json=body).json()["points"]
    assert point["frozen_prefix"] == 5


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"device": "x"}, 404),
        ({"frozen_prefixes": [10_000]}, 422),
        ({"nodes": 2}, 422),
        ({"gpus": 0}, 422),
        ({"job": "nothing"}, 404),
    ],
)
def test_bad_input(client: TestClient, change: dict[str, Any], status: int) -> None:
    problem(client.post("/v1/layer-throughput", json=BODY | change), status)


def test_a_job_observed_alone_is_predicted_as_if_stated(client: TestClient) -> None:
    taken = {"step_time_s": 0.12, "memory_bytes": 5e9}
    alone = {"of": {"device": "v100", "jobs": [BODY["job"]]}, **taken}
    assert client.post("/v1/observations", json={"observations": [alone]}).status_code == 201
    body = BODY | {"frozen_prefixes": [0]}
    points = client.post("/v1/layer-throughput", json=body).json()["points"]
    stated = body | {"job": f"{BODY['job']},step_time_s=0.12,memory_bytes=5e9"}
    for point, same in zip(
        points, client.post("/v1/layer-throughput", json=stated).json()["points"], strict=True
    ):
        for name in taken:
            assert point[name] == pytest.approx(same[name], rel=0.01), name


@pytest.mark.parametrize("asked", [BODY["job"], f"{BODY['job']},frozen_prefix=20"])
def test_prefixes_observed_alone_are_answered_as_observed(client: TestClient, asked: str) -> None:
    job = BODY["job"]
    observations = [
        {"of": {"device": "v100", "jobs": [spec]}, "step_time_s": step_s, "memory_bytes": memory_bytes}
        for spec, step_s, memory_bytes in ((job, 0.12, 5e9), (f"{job},frozen_prefix=20", 0.05, 4e9))
    ]
    assert client.post("/v1/observations", json={"observations": observations}).status_code == 201
    first, between, last = client.post("/v1/layer-throughput", json=BODY | {"job": asked}).json()["points"]
    for point, step_s, memory_bytes in ((first, 0.12, 5e9), (last, 0.05, 4e9)):
        assert point["step_time_s"] == pytest.approx(step_s, rel=0.01)
        assert point["memory_bytes"] == pytest.approx(memory_bytes, rel=0.01)
    assert last["speedup"] == pytest.approx(2.4, rel=0.01)
    assert first["step_time_s"] > between["step_time_s"] > last["step_time_s"]


OBSERVED = Workload.parse("resnet18-cifar:batch_size=256")


@pytest.mark.parametrize("prefix", [0, 20])
@pytest.mark.parametrize("change", [{}, {"batch_size": 512}, {"sm_share_ratio": 0.5}])
def test_prefixes_that_were_not_observed_are_answered_as_predicted(
    prefix: int, change: dict[str, Any]
) -> None:
    predictor = load_predictor("default")
    posterior = Posterior(predictor)
    seen = ColocationSet("v100", (replace(OBSERVED, frozen_prefix=prefix),))
    posterior.observe([Observation(seen, 0, 0.1, memory_bytes=5e9)])
    belief: Any = SimpleNamespace(
        posterior=posterior, predictor=posterior, serving=SimpleNamespace(predictor=predictor)
    )
    asked = replace(OBSERVED, **change)
    body, prefixes = ThroughputBody("v100", str(asked)), [0, 10, 20, 41]
    points = throughput._points(belief, asked, body, prefixes)
    expected = posterior.predict_arrays(
        [ColocationSet("v100", (replace(asked, frozen_prefix=k),)) for k in prefixes]
    )
    assert [point["step_time_s"] for point in points] == pytest.approx(expected.step_time_s[:, 0].tolist())
    assert [point["memory_bytes"] for point in points] == pytest.approx(expected.memory_bytes[:, 0].tolist())
    assert [point["speedup"] * point["step_time_s"] for point in points] == pytest.approx(
        [expected.step_time_s[0, 0]] * len(points)
    )


def test_another_spelling_of_the_device_is_the_same_job(client: TestClient) -> None:
    points = client.post("/v1/layer-throughput", json=BODY).json()["points"]
    assert client.post("/v1/layer-throughput", json=BODY | {"device": "V100-16GB"}).json()["points"] == points
    batcher = client.app.state.service.batcher  # type: ignore[attr-defined]
    assert {device for device, _, _ in batcher._known} == {"v100"}
