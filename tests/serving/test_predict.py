"""POST /v1/predict and /v1/predict/batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from predictor.types import Prediction
from profiling.errors import LimitError, UnknownNameError
from profiling.workload import (
    COMPILERS,
    FRAMEWORKS,
    MEMORY_LAYOUTS,
    MODES,
    OPTIMIZERS,
    PRECISIONS,
    ColocationSet,
    Workload,
)
from serving.handlers.jobs import predict_each
from serving.schemas import Job, job_of
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource

PAIR: dict[str, Any] = {
    "device": "v100",
    "jobs": ["resnet18-cifar:batch_size=64", {"workload": "lstm-wikitext2", "batch_size": 20}],
}


def test_a_pair(client: TestClient) -> None:
    body = client.post("/v1/predict", json=PAIR)
    assert body.status_code == 200
    answer = body.json()
    assert answer["device"] == "v100"
    assert answer["sharing"] == "time-slice"
    assert answer["model_version"] == "table-1"
    assert [m["job"] for m in answer["members"]] == [
        "resnet18-cifar:batch_size=64",
        "lstm-wikitext2:batch_size=20",
    ]
    assert answer["members"][0]["slowdown"]["value"] == pytest.approx(1.0)
    assert answer["fits"] is True


def test_a_set_that_cannot_fit_is_answered(client: TestClient) -> None:
    body = client.post("/v1/predict", json={"device": "v100", "jobs": ["resnet18-cifar:batch_size=100000"]})
    assert body.status_code == 200
    assert body.json()["fits"] is False
    assert body.json()["reasons"]


def test_a_fault_in_a_batch_is_logged_and_sets_are_predicted_singly(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.post("/v1/predict", json=PAIR).status_code == 200  # its jobs are known now
    predict_many = TablePredictor.predict_many
    calls: list[int] = []

    def fail_once(self: TablePredictor, sets: Sequence[ColocationSet]) -> list[Prediction]:
        calls.append(len(sets))
        if len(calls) == 1:
            raise IndexError("index 5 is out of bounds")
        return predict_many(self, sets)

    monkeypatch.setattr(TablePredictor, "predict_many", fail_once)
    other = {"device": "v100", "jobs": PAIR["jobs"][:1]}
    with capture_logs() as logged:
        assert client.post("/v1/predict", json=other).status_code == 200
    assert calls == [1, 1]
    assert [line["sets"] for line in logged if "one by one" in line["event"]] == [1]


def test_waiting_requests_are_batched(client: TestClient, source: TableSource) -> None:
    for _ in range(3):
        assert client.post("/v1/predict", json=PAIR).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"device": "abacus", "jobs": ["resnet18-cifar"]}, 404, "abacus"),
        ({"device": "v100", "jobs": ["resnet18-cifar:batch_size=0"]}, 422, "got 0"),
        ({"device": "v100", "jobs": [{"workload": "resnet18-cifar", "batch_size": 0}]}, 422, "got 0"),
        ({"device": "v100", "jobs": ["no-such-model"]}, 404, "no-such-model"),
        ({"device": "v100", "jobs": ["lstm"]}, 404, "such as lstm-wikitext2"),
        ({"device": "v100", "jobs": ["/etc/passwd.onnx"]}, 404, "POST /v1/workloads"),
        ({"device": "v100", "jobs": ["os:system"]}, 404, "zoo name"),
        ({"device": "v100", "jobs": ["graph:" + "0" * 64]}, 404, "not registered"),
        ({"device": "v100", "jobs": []}, 422, "jobs"),
        ({"device": "v100", "jobs": ["resnet18-cifar"] * 17}, 413, "at most 16"),
        ({"device": "v100"}, 422, "jobs"),
        (
            {"device": "v100", "jobs": ["resnet18-cifar"], "sharing": "luck"},
            422,
            "expected one of mig, mps, time-slice, got 'luck'",
        ),
        (
            {"device": "v100", "jobs": ["resnet18-cifar"], "sharing": "m" * 100_000},
            422,
            f"got '{'m' * 80}'.",
        ),
        (
            {"device": "v100", "jobs": [{"workload": "resnet18-cifar", "batchsize": 1}]},
            422,
            "$.jobs[0]: unknown field: expected one of 19 names, such as batch_size",
        ),
        (
            {"device": "v100", "jobs": [{"workload": "resnet18-cifar", "optimizer": "lion"}]},
            422,
            "momentum, rmsprop, sgd, got 'lion'",
        ),
        ({"device": "v100", "jobs": ["resnet18-cifar"], "color": "red"}, 422, "got 'color'"),
        ([], 422, "object"),
    ],
)
def test_bad_input(client: TestClient, body: object, status: int, words: str) -> None:
    assert words in problem(client.post("/v1/predict", json=body), status)["detail"]


def test_what_was_expected_and_what_came_are_apart(client: TestClient) -> None:
    told = problem(client.post("/v1/predict", json={"device": 3, "jobs": ["resnet18-cifar"]}), 422)
    assert (told["expected"], told["got"]) == ("str", "int")


@pytest.mark.parametrize(
    ("path", "raw", "expected"),
    [
        (
            "/v1/probes",
            b'{"device": "v100", "job": "vgg11-cifar", "count": 1e400}',
            "an integer from 1 to 64",
        ),
        ("/v1/place", b'{"job": "vgg11-cifar", "max_slowdown": 1e400}', "a number from 1"),
        ("/v2/models/cotenant/infer", b'{"inputs": [1e400]}', "a number from -1.8e+308 to 1.8e+308"),
    ],
)
def test_a_number_that_no_type_holds(client: TestClient, path: str, raw: bytes, expected: str) -> None:
    answer = client.post(path, content=raw, headers={"content-type": "application/json"})
    assert problem(answer, 422)["expected"].startswith(expected)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"device": NaN}', b"\xff\xfe"])
def test_invalid_json(client: TestClient, raw: bytes) -> None:
    response = client.post("/v1/predict", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    problem(response, 400)


@pytest.mark.parametrize(
    ("path", "raw", "key"),
    [
        ("/v1/predict", b'{"device": "v100", "device": "p100", "jobs": ["resnet18-cifar"]}', "device"),
        ("/v1/predict", b'{"device": "v100", "jobs": ["vgg11-cifar"], "\\u0064evice": "p100"}', "device"),
        (
            "/v1/predict/batch",
            b'{"sets": [{"device": "v100", "jobs": [{"workload": "vgg11-cifar", "workload": "x"}]}]}',
            "workload",
        ),
        ("/v2/models/cotenant/infer", b'{"id": "1", "inputs": [], "id": "2"}', "id"),
    ],
)
def test_a_repeated_key(client: TestClient, path: str, raw: bytes, key: str) -> None:
    told = problem(client.post(path, content=raw, headers={"content-type": "application/json"}), 400)
    assert f"body: key {key!r} is repeated: expected each key once" in told["detail"]


def test_a_large_body_is_not_parsed_twice(client: TestClient) -> None:
    raw = b'{"device": "v100", "jobs": ["resnet18-cifar"], "device": "v100"' + b" " * 2**18 + b"}"
    answer = client.post("/v1/predict", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 200


def test_other_media_type(client: TestClient) -> None:
    problem(client.post("/v1/predict", content=b"a: 1", headers={"content-type": "application/yaml"}), 415)


def test_batch(client: TestClient) -> None:
    sets = [PAIR, {"device": "p100", "jobs": ["resnet18-cifar"], "sharing": "mps"}] * 500
    body = client.post("/v1/predict/batch", json={"sets": sets})
    assert body.status_code == 200
    predictions = body.json()["predictions"]
    assert len(predictions) == 1000
    assert predictions[1]["device"] == "p100"
    assert predictions[0] == client.post("/v1/predict", json=PAIR).json()


def test_batch_names_the_bad_set(client: TestClient) -> None:
    sets = [PAIR, {"device": "v100", "jobs": ["resnet18-cifar:batch_size=0"]}]
    assert "sets[1]" in problem(client.post("/v1/predict/batch", json={"sets": sets}), 422)["detail"]


@pytest.mark.parametrize(
    "bad",
    [
        {"device": "v1000", "jobs": ["resnet18-cifar"]},
        {"device": "v100", "jobs": ["nosuch"]},
        {"device": "v100", "jobs": ["graph:" + "0" * 64]},
    ],
)
def test_batch_names_the_set_with_an_unknown_name(client: TestClient, bad: dict[str, Any]) -> None:
    sets = [{"device": "v100", "jobs": ["resnet18-cifar"]}, bad]
    detail = problem(client.post("/v1/predict/batch", json={"sets": sets}), 404)["detail"]
    assert detail.startswith("sets[1]: ")


def test_batch_names_the_set_that_is_too_large(start: Start) -> None:
    sets = [PAIR, {"device": "v100", "jobs": ["resnet18-cifar"] * 3}]
    answer = start(set_jobs=2).post("/v1/predict/batch", json={"sets": sets})
    assert problem(answer, 413)["detail"].startswith("sets[1]: ")


def test_of_sets_that_may_fail_each_fails_alone(start: Start) -> None:
    client, job, graph = start(set_jobs=2), Workload("resnet18-cifar"), Workload("graph:" + "0" * 64)
    sets = [ColocationSet("v100", jobs) for jobs in ((job,) * 3, (graph,), (job,), (job, graph))]
    answers = client.portal.call(predict_each, client.app.state.service, sets)  # type: ignore
    kinds = [LimitError, UnknownNameError, Prediction, UnknownNameError]
    assert [type(answers[asked]) for asked in sets] == kinds


def test_every_choice_of_a_spec_is_one_of_an_object() -> None:
    choices = {
        "precision": PRECISIONS, "mode": MODES, "framework": FRAMEWORKS, "compiler": COMPILERS,
        "memory_layout": MEMORY_LAYOUTS, "optimizer": OPTIMIZERS,
    }  # fmt: skip
    for option, values in choices.items():
        for value in values:
            job = msgspec.convert({"workload": "resnet18-cifar", option: value}, Job)
            assert job_of(job) == job_of(f"resnet18-cifar:{option}={value}")


def test_batch_over_the_limit(client: TestClient) -> None:
    problem(client.post("/v1/predict/batch", json={"sets": [PAIR] * 10_001}), 413)


def test_deeply_nested(client: TestClient) -> None:
    for raw in (b"[" * 100_000, b'{"device": ' + b"[" * 100_000):
        problem(client.post("/v1/predict", content=raw, headers={"content-type": "application/json"}), 422)
