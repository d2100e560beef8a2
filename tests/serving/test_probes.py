"""POST /v1/probes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.problems import problem
from tests.serving.table import UNSEEN

VGG = "vgg11-cifar:step_time_s=0.1"
BODY: dict[str, Any] = {
    "device": "v100",
    "job": "resnet18-cifar:batch_size=64,step_time_s=0.1",
    "running": [VGG, "resnet50-imagenet:step_time_s=0.1", VGG],
    "count": 2,
}


def test_each_probe_lowers_the_expected_error(client: TestClient) -> None:
    answer = client.post("/v1/probes", json=BODY)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    errors = [plan["error_ratio"], *(p["error_ratio"] for p in plan["probes"])]
    assert len(errors) == 3
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]
    assert plan["probes"][0]["jobs"] == [BODY["job"], VGG], "it is asked for twice as often"


def test_observations_lower_the_error_and_change_the_probe(client: TestClient) -> None:
    before = client.post("/v1/probes", json=BODY).json()["error_ratio"]
    jobs = [BODY["job"], VGG]
    seen = [{"of": {"device": "v100", "jobs": jobs}, "member": m, "step_time_s": 0.12} for m in (0, 1)]
    assert client.post("/v1/observations", json={"observations": seen * 4}).status_code == 201
    after = client.post("/v1/probes", json=BODY).json()
    assert after["error_ratio"] < before
    assert after["probes"][0]["jobs"][1] == "resnet50-imagenet:step_time_s=0.1"


def test_standard_partners(client: TestClient) -> None:
    body = {"device": "v100", "job": "vgg11-cifar"}
    (probe,) = client.post("/v1/probes", json=body).json()["probes"]
    assert probe["jobs"][0] == "vgg11-cifar"


def test_partners_that_do_not_fit_are_left_out(client: TestClient) -> None:
    large = "vgg11-cifar:batch_size=100000"
    (probe,) = client.post("/v1/probes", json=BODY | {"running": [large, large, VGG]}).json()["probes"]
    assert probe["jobs"][1] == VGG


def test_a_job_that_fits_beside_none_is_run_alone(client: TestClient) -> None:
    job = "resnet18-cifar:batch_size=64"
    body = BODY | {"job": job, "running": ["vgg11-cifar:batch_size=100000"]}
    plan = client.post("/v1/probes", json=body).json()
    (probe,) = plan["probes"]
    assert probe["jobs"] == [job]
    assert 0 < probe["error_ratio"] < plan["error_ratio"]
    only = "2 probes were asked for, but there is only one candidate; 1 partner does not fit beside the job"
    assert plan["reasons"] == ["no partner fits beside resnet18-cifar, which can be run alone", only]
    seen = {"of": {"device": "v100", "jobs": [job]}, "step_time_s": 0.1}
    assert client.post("/v1/observations", json={"observations": [seen]}).status_code == 201
    plan = client.post("/v1/probes", json=body).json()
    assert (plan["probes"], plan["error_ratio"]) == ([], 0.0)
    assert plan["reasons"][0].endswith("already, so no run is suggested")


def test_a_job_that_does_not_fit_at_all(client: TestClient) -> None:
    body = BODY | {"job": "resnet18-cifar:batch_size=100000"}
    assert "even alone" in problem(client.post("/v1/probes", json=body), 422)["detail"]


def test_what_was_never_measured_is_stated(client: TestClient) -> None:
    for device, never in (
        ("v100", []),
        (UNSEEN, [f"co-location was never measured on this GPU type ({UNSEEN})"]),
    ):
        plan = client.post("/v1/probes", json=BODY | {"device": device}).json()
        assert plan["never_measured"] == never


def test_a_device_is_the_same_however_it_is_spelt(client: TestClient) -> None:
    body = BODY | {"device": "a100", "sharing": "mig"}
    plan = client.post("/v1/probes", json=body).json()
    assert plan["device"] == "a100"
    assert client.post("/v1/probes", json=body | {"device": "A100"}).json() == plan
    batcher = client.app.state.service.batcher  # type: ignore[attr-defined]
    assert {device for device, _, _ in batcher._known} == {"a100"}


def test_the_job_alone_is_suggested_unless_its_step_time_is_stated_or_observed(client: TestClient) -> None:
    job = "resnet18-cifar:batch_size=64"
    for asked, times in ((job, 1), (f"{job},step_time_s=0.1", 0)):
        plan = client.post("/v1/probes", json=BODY | {"job": asked, "count": 3}).json()
        assert [probe["jobs"] for probe in plan["probes"]].count([asked]) == times
    body = BODY | {"job": job, "count": 3}
    before = client.post("/v1/probes", json=body).json()
    seen = {"of": {"device": "v100", "jobs": [job]}, "step_time_s": 0.1}
    assert client.post("/v1/observations", json={"observations": [seen]}).status_code == 201
    after = client.post("/v1/probes", json=body).json()
    assert after["error_ratio"] < before["error_ratio"]
    assert [len(probe["jobs"]) for probe in after["probes"]] == [2, 2]


def test_fewer_candidates_than_asked_for_are_reported(client: TestClient) -> None:
    assert client.post("/v1/probes", json=BODY).json()["reasons"] == []
    large = "vgg11-cifar:batch_size=100000"
    body = BODY | {"running": [VGG, large], "count": 3}
    plan = client.post("/v1/probes", json=body).json()
    assert len(plan["probes"]) == 1
    said = "3 probes were asked for, but there is only one candidate; 1 partner does not fit beside the job"
    assert plan["reasons"] == [said]


@pytest.mark.parametrize(
    ("change", "status"),
    [({"device": "x"}, 404), ({"job": "nothing"}, 404), ({"count": 0}, 422), ({"sharing": "turns"}, 422)],
)
def test_invalid_requests(client: TestClient, change: dict[str, Any], status: int) -> None:
    problem(client.post("/v1/probes", json=BODY | change), status)


def test_an_empty_sharing_mode_differs_from_none(client: TestClient) -> None:
    answer = client.post("/v1/probes", json=BODY | {"sharing": ""})
    assert problem(answer, 422)["detail"].endswith("expected one of mig, mps, time-slice, got ''.")
