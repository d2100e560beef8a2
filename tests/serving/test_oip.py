"""Open Inference Protocol v2, with Triton's own client on a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from fastapi.testclient import TestClient
from tritonclient.utils import InferenceServerException

from serving.app import create_app
from serving.config import ServiceConfig
from serving.oip import handler
from tests.serving.conftest import Start
from tests.serving.live import serve
from tests.serving.problems import problem
from tests.serving.table import TableSource


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    folder: Path = tmp_path_factory.mktemp("oip")
    app = create_app(ServiceConfig(database_url=f"sqlite:///{folder}/s.db"), TableSource())
    with serve(app) as port:
        client = triton.InferenceServerClient(f"127.0.0.1:{port}")
        yield client
        client.close()


def tensors(binary: bool) -> list[triton.InferInput]:
    values = {
        "device": np.array(["v100", "p100"], dtype=object),
        "jobs": np.array([["resnet18-cifar", "resnet18-cifar"], ["lstm-wikitext2", ""]], dtype=object),
    }
    inputs = []
    for name, array in values.items():
        tensor = triton.InferInput(name, list(array.shape), "BYTES")
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    return inputs


def test_health_and_metadata(official: triton.InferenceServerClient) -> None:
    assert official.is_server_live()
    assert official.is_server_ready()
    assert official.is_model_ready("cotenant")
    assert official.is_model_ready("cotenant", "table-1")
    assert not official.is_model_ready("other")
    assert official.get_server_metadata()["extensions"] == ["binary_tensor_data", "statistics"]
    metadata = official.get_model_metadata("cotenant")
    assert metadata["versions"] == ["table-1"]
    assert {i["name"] for i in metadata["inputs"]} == {"device", "jobs", "sharing"}


def test_outputs_are_aligned_with_jobs(official: triton.InferenceServerClient) -> None:
    jobs = np.array([["", "resnet18-cifar", ""], ["lstm-wikitext2", "", ""]], dtype=object)
    inputs = []
    for name, array in (("device", np.array(["v100", "v100"], dtype=object)), ("jobs", jobs)):
        inputs.append(triton.InferInput(name, list(array.shape), "BYTES"))
        inputs[-1].set_data_from_numpy(array)
    given = official.infer("cotenant", inputs)
    assert given.as_numpy("mask").tolist() == (jobs != "").tolist()
    assert ((given.as_numpy("slowdown") > 0) == (jobs != "")).all()


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("version", ["", "table-1"])
def test_infer(official: triton.InferenceServerClient, binary: bool, version: str) -> None:
    outputs = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("slowdown", "mask", "fits")]
    result = official.infer("cotenant", tensors(binary), version, outputs=outputs, request_id="r1")
    assert result.get_response()["id"] == "r1"
    assert result.get_response()["model_version"] == "table-1"
    np.testing.assert_allclose(result.as_numpy("slowdown"), [[1.4, 1.4], [1.0, 0.0]])
    np.testing.assert_array_equal(result.as_numpy("mask"), [[True, True], [True, False]])
    assert result.as_numpy("fits").tolist() == [True, True]
    assert result.as_numpy("memory_bytes") is None


def test_every_output_matches_its_metadata(official: triton.InferenceServerClient) -> None:
    result = official.infer("cotenant", tensors(True))
    for output in official.get_model_metadata("cotenant")["outputs"]:
        array = result.as_numpy(output["name"])
        assert array is not None
        assert array.ndim == len(output["shape"])
        assert array.dtype == (np.bool_ if output["datatype"] == "BOOL" else np.float64)


def test_errors_reach_the_client(official: triton.InferenceServerClient) -> None:
    bad = triton.InferInput("device", [1], "BYTES")
    bad.set_data_from_numpy(np.array(["abacus"], dtype=object))
    jobs = triton.InferInput("jobs", [1], "BYTES")
    jobs.set_data_from_numpy(np.array(["resnet18-cifar"], dtype=object))
    with pytest.raises(InferenceServerException, match="abacus"):
        official.infer("cotenant", [bad, jobs])
    with pytest.raises(InferenceServerException, match="missing"):
        official.infer("cotenant", [jobs])
    with pytest.raises(InferenceServerException, match="unknown"):
        official.infer("cotenant", tensors(True), "2")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": 1},
        {"inputs": [{"name": "device", "datatype": "FP32", "shape": [1], "data": [1]}]},
        {"inputs": [{"name": "device", "datatype": "BYTES", "shape": [2], "data": ["v100"]}]},
        {"inputs": [{"name": "device", "datatype": "BYTES", "shape": [-1], "data": ["v100"]}]},
        {"inputs": [{"name": "device", "datatype": "BYTES", "shape": [1], "data": [1]}]},
        {
            "inputs": [
                {"name": "device", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 99}}
            ]
        },
    ],
)
def test_bad_requests(client: TestClient, body: object) -> None:
    assert problem(client.post("/v2/models/cotenant/infer", json=body), 422)["error"]


def test_a_long_name_is_not_repeated_whole(client: TestClient) -> None:
    body = {"inputs": [{"name": "n" * 100_000, "datatype": "FP32", "shape": [1], "data": [1]}]}
    answer = client.post("/v2/models/cotenant/infer", json=body)
    assert "expected BYTES" in problem(answer, 422)["detail"]
    assert len(answer.content) < 5000


@pytest.mark.parametrize("length", [b"\xb2", b"-1", b"9" * 5000, b"1e1"])
def test_a_header_length_that_is_no_number(client: TestClient, length: bytes) -> None:
    headers = {"Inference-Header-Content-Length": length}
    body = problem(client.post("/v2/models/cotenant/infer", content=b"{}", headers=headers), 400)
    assert body["expected"] == "0 to 2"


def test_not_ready_without_a_model(start: Start, source: TableSource) -> None:
    source.error = RuntimeError("broken")
    client = start(wait=False)
    for path, body in (
        ("/v2/health/ready", {"ready": False}),
        ("/v2/models/cotenant/ready", {"name": "cotenant", "ready": False}),
    ):
        response = client.get(path)
        assert (response.status_code, response.json()) == (503, body)
    problem(client.post("/v2/models/cotenant/infer", json={"inputs": []}), 503)
    assert client.get("/v2/models/cotenant").json()["versions"] == []
    assert client.get("/v2/health/live").json() == {"live": True}


def test_statistics(client: TestClient) -> None:
    tensors = [
        {"name": "device", "datatype": "BYTES", "shape": [2], "data": ["v100", "t4"]},
        {"name": "jobs", "datatype": "BYTES", "shape": [2, 1], "data": ["resnet18-cifar"] * 2},
    ]
    assert client.post("/v2/models/cotenant/infer", json={"inputs": tensors}).status_code == 200
    assert client.post("/v2/models/cotenant/infer", json={"inputs": []}).status_code == 422
    (stats,) = client.get("/v2/models/cotenant/stats").json()["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (2, 1)
    assert stats["inference_stats"]["success"]["ns"] > 0
    assert stats["inference_stats"]["fail"]["count"] == 1


def test_large_answers_are_made_beside_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in several parts, which must come out in order."""
    lone: list[bool] = []

    def spy(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def spied(*given: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                lone.append(True)
            else:
                lone.append(False)
            return real(*given)

        monkeypatch.setattr(owner, name, spied)

    spy(handler, "_fill")
    spy(handler.tensors, "write_response")
    jobs = ["resnet18-cifar" if i % 3 else "lstm-wikitext2" for i in range(200)]
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [200], "data": data}
        for name, data in (("device", ["v100"] * 200), ("jobs", jobs))
    ]
    answer = client.post("/v2/models/cotenant/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert outputs["utilization_ratio"] == [0.7 if i % 3 else 0.3 for i in range(200)]
    assert lone == [True] * 201


def test_binary_answers_are_described(client: TestClient) -> None:
    body = {
        "inputs": [
            {"name": "device", "datatype": "BYTES", "shape": [1], "data": ["v100"]},
            {"name": "jobs", "datatype": "BYTES", "shape": [1, 1], "data": ["resnet18-cifar"]},
        ],
        "parameters": {"binary_data_output": True},
    }
    answer = client.post("/v2/models/cotenant/infer", json=body)
    described = client.get("/openapi.json").json()["paths"]["/v2/models/{name}/infer"]["post"]["responses"]
    assert answer.headers["content-type"] in described["200"]["content"]
