"""POST /v1/place on a cluster in the body."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from predictor.types import Prediction
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import ColocationSet
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import UNSEEN, TablePredictor, TableSource


def cluster(*gpus: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": [{"name": "a", "gpus": list(gpus)}]}


BUSY = {"id": "0", "device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 1000}]}
EMPTY = {"id": "1", "device": "v100"}
STRANGE = {"id": "2", "device": "v100", "tenants": [{"job": "no-such-model", "iterations_left": 1}]}


def test_the_empty_gpu_is_ranked_first(client: TestClient) -> None:
    body = {"job": "resnet18-cifar:batch_size=64", "iterations": 1000, "cluster": cluster(BUSY, EMPTY)}
    answer = client.post("/v1/place", json=body)
    assert answer.status_code == 200
    assert answer.json()["decision"] == "place"
    assert [r["gpu"] for r in answer.json()["ranked"]] == ["1", "0"]
    assert answer.json()["ranked"][0]["reasons"]


def test_what_was_never_measured_of_the_best_gpu_is_stated(client: TestClient) -> None:
    for device, never in (
        ("v100", []),
        (UNSEEN, [f"co-location was never measured on this GPU type ({UNSEEN})"]),
    ):
        asked = {"cluster": cluster(EMPTY | {"device": device})}
        assert (
            client.post("/v1/place", json=asked | {"job": "resnet18-cifar"}).json()["never_measured"] == never
        )
        queue = client.post("/v1/place", json=asked | {"jobs": ["resnet18-cifar"]}).json()
        assert queue["decisions"][0]["never_measured"] == never


def test_a_queue_accounts_for_earlier_placements(client: TestClient) -> None:
    body = {
        "jobs": ["resnet18-cifar", "resnet18-cifar"],
        "iterations": 1000,
        "cluster": cluster(EMPTY, {"id": "2", "device": "v100"}),
    }
    decisions = client.post("/v1/place", json=body).json()["decisions"]
    assert [d["ranked"][0]["gpu"] for d in decisions] == ["1", "2"]


def test_a_queued_job_that_never_fits_is_told_what_it_is_told_alone(client: TestClient) -> None:
    large = "resnet18-cifar:batch_size=100000"
    body = {"jobs": [large, "resnet18-cifar"], "iterations": 1000, "cluster": cluster(EMPTY)}
    never, placed = client.post("/v1/place", json=body).json()["decisions"]
    assert (never["decision"], never["ranked"]) == ("infeasible", [])
    assert placed["decision"] == "place"
    alone = problem(client.post("/v1/place", json={"job": large, "cluster": cluster(EMPTY)}), 409)
    assert never["reasons"][0] in alone["detail"]


def test_queued_jobs_of_unknown_length_run_for_an_hour(client: TestClient) -> None:
    body = {"jobs": ["resnet18-cifar", "lstm-wikitext2"], "cluster": cluster(EMPTY)}
    first, second = client.post("/v1/place", json=body).json()["decisions"]
    assert first["iterations"] == second["iterations"] == 36000
    # Demands of 0.7 and 0.3: no slowdown, so both are done in an hour.
    assert second["ranked"][0]["finish_s"] == pytest.approx(3600)


def test_tenants_of_unknown_length_have_an_hour_left(client: TestClient) -> None:
    def place(tenant: dict[str, Any]) -> Any:
        gpu = {"id": "0", "device": "v100", "tenants": [tenant]}
        body = {"job": "resnet18-cifar:batch_size=64", "iterations": 1e6, "cluster": cluster(gpu)}
        return client.post("/v1/place", json=body)

    open_ended = place({"job": "resnet18-cifar"})
    assert open_ended.status_code == 200
    assert open_ended.json() == place({"job": "resnet18-cifar", "iterations_left": 36000}).json()
    assert open_ended.json() != place({"job": "resnet18-cifar", "iterations_left": 35000}).json()
    assert "no-such-model" in problem(place({"job": "no-such-model"}), 404)["detail"]
    problem(place({"job": "resnet18-cifar:what=1"}), 422)


@pytest.mark.parametrize("objective", ["jct", "interference", "makespan"])
def test_objectives(client: TestClient, objective: str) -> None:
    body = {"job": "resnet18-cifar", "cluster": cluster(EMPTY), "objective": objective}
    assert client.post("/v1/place", json=body).json()["decision"] == "place"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"job": "resnet18-cifar", "cluster": {"nodes": []}}, 422, "no GPU"),
        ({"job": "resnet18-cifar"}, 422, "no GPU"),
        ({"job": "resnet18-cifar:batch_size=100000", "cluster": cluster(EMPTY)}, 409, "does not fit"),
        ({"job": "resnet18-cifar", "cluster": cluster({"id": "0", "device": "abacus"})}, 404, "abacus"),
        ({"job": "resnet18-cifar", "cluster": cluster(EMPTY, EMPTY)}, 422, "unique"),
        ({"job": "resnet18-cifar", "cluster": cluster(EMPTY), "max_slowdown": 0.5}, 422, "max_slowdown"),
        ({"job": "resnet18-cifar", "cluster": cluster(EMPTY), "iterations": 0}, 422, "iterations"),
        ({"cluster": cluster(EMPTY)}, 422, "job"),
        ({"job": "nothing", "cluster": cluster(EMPTY)}, 404, "nothing"),
        ({"job": "resnet18-cifar", "cluster": cluster(STRANGE), "iterations": 5}, 404, "no-such-model"),
    ],
)
def test_bad_input(client: TestClient, body: dict[str, Any], status: int, words: str) -> None:
    assert words in problem(client.post("/v1/place", json=body), status)["detail"]


def test_a_gpu_with_an_unknown_tenant_is_not_ranked(client: TestClient) -> None:
    body = {"job": "resnet18-cifar", "iterations": 5, "cluster": cluster(STRANGE, EMPTY)}
    answer = client.post("/v1/place", json=body)
    assert answer.status_code == 200, answer.text
    assert [choice["gpu"] for choice in answer.json()["ranked"]] == ["1"]


class Particular(TablePredictor):
    """Refuses, like the real predictor, too many frozen layers and precisions that the device lacks."""

    def _one(self, asked: ColocationSet) -> Prediction:
        for job in asked.workloads:
            if job.frozen_prefix > 9 or not get_device(asked.device).supports(job.precision):
                raise InputError("this job cannot be", got=job)
        return super()._one(asked)


BAD = "resnet18-cifar:frozen_prefix=99"


def test_an_unpredictable_tenant_excludes_only_its_own_gpu(start: Start, source: TableSource) -> None:
    source.predictor = Particular()
    client = start()
    for length in ({"iterations_left": 1}, {}):
        bad = {"id": "2", "device": "v100", "tenants": [{"job": BAD, **length}]}
        body = {"job": "resnet18-cifar", "iterations": 5, "cluster": cluster(bad, BUSY, EMPTY)}
        answer = client.post("/v1/place", json=body)
        assert answer.status_code == 200, answer.text
        assert [choice["gpu"] for choice in answer.json()["ranked"]] == ["1", "0"]
        alone = client.post("/v1/place", json=body | {"cluster": cluster(bad)})
        assert "frozen_prefix=99" in problem(alone, 422)["detail"]
    # The same on the stored cluster, on the dashboard, and in the extender.
    bad["tenants"] = [{"job": BAD, "iterations_left": 1}]
    assert client.put("/v1/cluster", json=cluster(bad, BUSY, EMPTY)).status_code == 200
    page = client.get("/").text
    assert "1.00x slowdown" in page
    assert page.count("this job cannot be") == 1
    assert client.post("/v1/placements", json={"job": "lstm-wikitext2", "iterations": 5}).json()["gpu"] == "1"
    pod = {"metadata": {"annotations": {"cotenant.dev/workload": "lstm-wikitext2"}}}
    (score,) = client.post("/extender/prioritize", json={"Pod": pod, "NodeNames": ["a"]}).json()
    assert score["Score"] == 10
    # The requested job itself is still refused.
    problem(client.post("/v1/placements", json={"job": BAD, "iterations": 5}), 422)


def test_a_job_goes_to_the_types_that_have_its_precision(start: Start, source: TableSource) -> None:
    source.predictor = Particular()
    client = start()
    gpus = cluster({"id": "0", "device": "k80"}, {"id": "1", "device": "a100"})
    body = {"job": "resnet18-cifar:precision=bf16", "iterations": 5, "cluster": gpus}
    answer = client.post("/v1/place", json=body)
    assert answer.status_code == 200, answer.text
    assert [choice["gpu"] for choice in answer.json()["ranked"]] == ["1"]
    old = body | {"cluster": cluster({"id": "0", "device": "k80"})}
    assert "has BF16" in problem(client.post("/v1/place", json=old), 409)["detail"]
    nodes = [{"name": name, "gpus": [{"device": name}]} for name in ("k80", "a100")]
    assert client.put("/v1/cluster", json={"nodes": nodes}).status_code == 200
    pod = {"metadata": {"annotations": {"cotenant.dev/workload": body["job"]}}}
    result = client.post("/extender/filter", json={"Pod": pod, "NodeNames": ["k80", "a100"]}).json()
    assert (result["NodeNames"], result["Error"]) == (["a100"], "")
    assert result["FailedAndUnresolvableNodes"] == {"k80": "k80 has no BF16"}
