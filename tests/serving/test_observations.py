"""Feedback."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from predictor.learning.summary import corrections_of
from serving.handlers.calibration import by_job, recent
from serving.handlers.observations import error_by_day
from serving.handlers.upkeep import upkeep
from serving.store import StoreError
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.waiting import LONG_S, until


def seen(**changes: Any) -> dict[str, Any]:
    return {
        "of": {"device": "v100", "jobs": ["resnet18-cifar", "resnet18-cifar"]},
        "member": 1,
        "step_time_s": 0.2,
        **changes,
    }


def test_record_and_list(client: TestClient) -> None:
    answer = client.post(
        "/v1/observations", json={"observations": [seen(), seen(step_time_s=0.14, member=0)]}
    )
    assert answer.status_code == 201
    first, second = answer.json()["observations"]
    assert first["predicted_step_time_s"]["value"] == pytest.approx(0.14)
    assert first["error_ratio"] == pytest.approx(0.3)
    assert (first["covered"], second["covered"]) == (False, True)
    listing = client.get("/v1/observations", params={"limit": 1}).json()
    assert listing["items"] == [second]
    assert client.get("/v1/observations", params={"after": listing["next"]}).json()["items"] == [first]
    text = client.get("/metrics").text
    assert "cotenant_prediction_error_ratio_count 2.0" in text
    assert 'cotenant_observations_total{covered="true"} 1.0' in text
    assert (
        'cotenant_observed_step_times_total{answer="model",covered="true",device="v100",job="resnet18-cifar"} 1.0'
        in text
    )
    assert (
        'cotenant_observed_step_times_total{answer="corrected",covered="true",device="v100",job="resnet18-cifar"} 1.0'
        in text
    )
    assert 'cotenant_observed_log_error_total{answer="model",device="v100",job="resnet18-cifar"}' in text
    points = recent(client.app.state.service)  # type: ignore[attr-defined]
    assert [p.log_ratio for p in points] == pytest.approx([math.log(0.2 / 0.14), 0.0])
    (row,) = by_job(points)
    assert (row.device, row.job, row.count, row.coverage) == ("v100", "resnet18-cifar", 2, 0.5)
    assert row.drift_ratio == pytest.approx(math.sqrt(0.2 / 0.14) - 1)
    page = client.get("/").text
    assert page.count("<circle") == 2
    assert "Observed against predicted" in page
    (day,) = error_by_day(client.app.state.service)  # type: ignore[attr-defined]
    assert (day["count"], day["coverage"]) == (2, 0.5)
    assert day["error_ratio"] == pytest.approx(0.15)
    assert row.error_ratio == pytest.approx(0.15), "the same error by day as by job"


PAIR = {"device": "v100", "jobs": ["resnet18-cifar:memory_bytes=8e9", "lstm-wikitext2:memory_bytes=4e9"]}


def test_a_set_that_ran_out_of_memory(start: Start) -> None:
    client = start()
    assert client.post("/v1/predict", json=PAIR).json()["fits"]
    assert 'cotenant_out_of_memory_total{predicted_to_fit="true"} 0.0' in client.get("/metrics").text
    posted = client.post("/v1/observations", json={"observations": [{"of": PAIR, "out_of_memory": True}]})
    assert posted.status_code == 201
    (entry,) = posted.json()["observations"]
    assert [entry[name] for name in ("step_time_s", "error_ratio", "covered")] == [None] * 3
    assert entry["out_of_memory"]
    assert client.get("/v1/observations").json()["items"] == [entry]
    answer = client.post("/v1/predict", json=PAIR).json()
    assert not answer["fits"]
    assert answer["reasons"][0].startswith(
        "does not fit: ran out of memory together on v100, although predicted"
    )
    assert 'cotenant_out_of_memory_total{predicted_to_fit="true"} 1.0' in client.get("/metrics").text
    # It says nothing of step times, and is kept.
    assert recent(client.app.state.service) == error_by_day(client.app.state.service) == []  # type: ignore[attr-defined]
    assert "No step times reported" in client.get("/").text
    again = start()
    assert not again.post("/v1/predict", json=PAIR).json()["fits"]
    client.post("/v1/observations", json={"observations": [{"of": PAIR, "out_of_memory": True}]})
    assert 'cotenant_out_of_memory_total{predicted_to_fit="false"} 1.0' in client.get("/metrics").text


def test_a_withdrawn_observation_has_no_effect_in_any_process(start: Start) -> None:
    one, other = start(), start()
    asked = {"device": "v100", "jobs": ["resnet18-cifar"]}

    def step_s(client: TestClient) -> float:
        answer: float = client.post("/v1/predict", json=asked).json()["members"][0]["step_time_s"]["value"]
        return answer

    before = step_s(one)
    told = [{"of": asked, "step_time_s": 0.4}, {"of": PAIR, "out_of_memory": True}]
    entries = one.post("/v1/observations", json={"observations": told}).json()["observations"]
    until(lambda: step_s(other) == pytest.approx(0.4, rel=0.01), "the other process learns it")
    assert one.delete(f"/v1/observations/{entries[0]['id']}").status_code == 204
    for client in (one, other):
        until(lambda client=client: step_s(client) == before, "it is forgotten")
        assert not client.post("/v1/predict", json=PAIR).json()["fits"], "the other one is not"
        assert [o["id"] for o in client.get("/v1/observations").json()["items"]] == [entries[1]["id"]]
    assert other.delete(f"/v1/observations/{entries[1]['id']}").status_code == 204
    for client in (one, other):
        until(lambda client=client: client.post("/v1/predict", json=PAIR).json()["fits"], "nothing is left")
    assert step_s(start()) == before
    gone = problem(one.delete(f"/v1/observations/{entries[0]['id']}"), 404)
    assert "unknown observation" in gone["detail"]
    problem(one.delete("/v1/observations/0"), 422)
    again = one.post("/v1/observations", json={"observations": told[1:]}).json()["observations"]
    assert again[0]["id"] > entries[1]["id"], "a repeated DELETE must not delete another observation"


def test_nothing_is_placed_where_it_ran_out_of_memory(client: TestClient) -> None:
    tenant, job = PAIR["jobs"]
    gpus = [{"id": "0", "device": "v100", "tenants": [{"job": tenant, "iterations_left": 100.0}]}]
    client.put("/v1/cluster", json={"nodes": [{"name": "a", "gpus": gpus}]})
    asked = {"job": job, "iterations": 100, "max_slowdown": 9}
    placed = client.post("/v1/placements", json=asked).json()
    assert placed["gpu"] == "0"
    told = {"of": PAIR, "out_of_memory": True, "placement_id": placed["id"]}
    assert client.post("/v1/observations", json={"observations": [told]}).status_code == 201
    assert "ran out of memory" in client.get(f"/jobs/{placed['id']}").text
    assert client.post(f"/v1/placements/{placed['id']}/end").status_code == 200
    assert client.post("/v1/placements", json=asked).json()["gpu"] is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"step_time_s": 0.1}, "step_time_s of a set that ran out of memory"),
        ({"memory_bytes": 1e9}, "memory_bytes of a set that ran out of memory"),
        ({"out_of_memory": False}, "nothing was observed"),
        ({"of": {"device": "v100", "jobs": ["resnet18-cifar"]}}, "out_of_memory is implausible"),
        ({"of": PAIR | {"device": "a100", "sharing": "mig"}}, "on its slice, such as a100:mig=1g"),
    ],
)
def test_bad_reports_of_memory(client: TestClient, change: dict[str, Any], word: str) -> None:
    body = {"observations": [{"of": PAIR, "out_of_memory": True, **change}]}
    answer = problem(client.post("/v1/observations", json=body), 422)
    assert word in answer["detail"]
    assert "observations[0]" in answer["detail"]
    assert client.get("/v1/observations").json()["items"] == []


def test_memory_and_utilisation_of_a_job_alone(client: TestClient) -> None:
    alone = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.12}
    taken = {"memory_bytes": 3e9, "utilization_ratio": 0.25}
    posted = client.post("/v1/observations", json={"observations": [alone | taken]})
    assert posted.status_code == 201
    (entry,) = client.get("/v1/observations").json()["items"]
    assert {name: entry[name] for name in taken} == taken
    asked = {"device": "v100", "jobs": ["resnet18-cifar", "lstm-wikitext2"]}
    answer = client.post("/v1/predict", json=asked).json()
    assert answer["members"][0]["job"] == "resnet18-cifar"
    assert answer["members"][0]["solo_step_time_s"]["value"] == pytest.approx(0.12, rel=0.006)
    assert any("memory (once) and utilisation (once) alone on v100" in reason for reason in answer["reasons"])
    for change in ({"utilization_ratio": 25}, {"memory_bytes": 3.0}, {"of": asked}):
        told = client.post("/v1/observations", json={"observations": [alone | taken | change]})
        assert told.status_code == 422
    assert "observed of jobs alone only" in told.json()["detail"]


def test_more_memory_than_the_device_has_is_refused(client: TestClient) -> None:
    """Otherwise the job would fit on no GPU of the type that it ran on."""
    asked = {"device": "v100", "jobs": ["resnet18-cifar"]}
    body = {"observations": [{"of": asked, "step_time_s": 0.12, "memory_bytes": 20e9}]}
    told = client.post("/v1/observations", json=body)
    assert told.status_code == 422
    assert "observations[0]: memory_bytes exceeds the device's memory" in told.json()["detail"]
    assert client.post("/v1/predict", json=asked).json()["fits"]


@pytest.mark.parametrize(("told", "asked"), [("V100", "v100"), ("v100", "v100-16gb")])
def test_every_spelling_of_a_gpu_type_is_recognised(client: TestClient, told: str, asked: str) -> None:
    alone = {"of": {"device": told, "jobs": ["resnet18-cifar"]}, "step_time_s": 0.12, "memory_bytes": 3e9}
    posted = client.post("/v1/observations", json={"observations": [alone]}).json()
    assert posted["observations"][0]["device"] == "v100"
    answer = client.post("/v1/predict", json={"device": asked, "jobs": ["resnet18-cifar"]}).json()
    assert answer["device"] == "v100"
    assert answer["members"][0]["step_time_s"]["value"] == pytest.approx(0.12, rel=0.006)
    body = {"device": asked, "job": "resnet18-cifar"}
    (point,) = client.post("/v1/layer-throughput", json=body).json()["points"]
    assert point["memory_bytes"] == pytest.approx(3e9, rel=0.006)


def test_a_job_with_its_defaults_written_out_is_the_same_job(start: Start, tmp_path: Path) -> None:
    plain, full = "resnet18-cifar", "resnet18-cifar:batch_size=128,optimizer=momentum"
    for told, asked in ((plain, full), (full, plain)):
        client = start(database_url=f"sqlite:///{tmp_path}/{len(told)}.db")
        body = {"of": {"device": "v100", "jobs": [told]}, "step_time_s": 0.12}
        assert client.post("/v1/observations", json={"observations": [body]}).status_code == 201
        sets = [{"device": "v100", "jobs": [job]} for job in (told, asked)]
        one, other = (client.post("/v1/predict", json=one).json()["members"][0] for one in sets)
        assert one["step_time_s"]["value"] == pytest.approx(0.12, rel=0.006)
        assert all(one[name] == other[name] for name in ("solo_step_time_s", "step_time_s", "slowdown"))


def test_a_registered_graph_with_its_batch_size_is_the_same_job(client: TestClient) -> None:
    body = {"workload": "resnet18-cifar", "batch_size": 48}
    registered = client.post("/v1/workloads", json=body).json()["workload"]
    plain, full = registered, f"{registered}:batch_size=48"
    for told, jobs in (
        (plain, [plain]),
        (full, [full, "lstm-wikitext2"]),
        (plain, ["lstm-wikitext2", plain]),
    ):
        seen = {"of": {"device": "v100", "jobs": jobs}, "member": jobs.index(told), "step_time_s": 0.15}
        assert client.post("/v1/observations", json={"observations": [seen] * 3}).status_code == 201
    service = client.app.state.service  # type: ignore[attr-defined]
    until(
        lambda: sorted(row["count"] for row in corrections_of(service.belief().posterior)) == [3, 6],
        "the set has one row with all its observations",
    )
    answers = [
        client.post("/v1/predict", json={"device": "v100", "jobs": [job, "lstm-wikitext2"]}).json()
        for job in (plain, full)
    ]
    one, other = (answer["members"][0] for answer in answers)
    assert one["solo_step_time_s"]["value"] == pytest.approx(0.15, rel=0.006)
    assert all(one[name] == other[name] for name in ("solo_step_time_s", "step_time_s", "slowdown"))


def test_idempotency(client: TestClient) -> None:
    body = {"observations": [seen()]}
    first = client.post("/v1/observations", json=body, headers={"Idempotency-Key": "a"})
    assert client.post("/v1/observations", json=body, headers={"Idempotency-Key": "a"}).json() == first.json()
    assert len(client.get("/v1/observations").json()["items"]) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"member": 2}, 422),
        ({"step_time_s": 0}, 422),
        ({"step_time_s": 14.01}, 422),
        ({"step_time_s": 0.00139}, 422),
        ({"observed_at": 1.7e9}, 422),
        ({"observed_at": 9e10}, 422),
        ({"placement_id": "nowhere"}, 404),
        ({"of": {"device": "x", "jobs": ["resnet18-cifar"]}, "member": 0}, 404),
    ],
)
def test_bad_input_stores_nothing(client: TestClient, change: dict[str, Any], status: int) -> None:
    problem(client.post("/v1/observations", json={"observations": [seen(), seen(**change)]}), status)
    assert client.get("/v1/observations").json()["items"] == []


def test_a_step_time_far_from_the_prediction_is_refused(client: TestClient) -> None:
    """Such as milliseconds for seconds: one of them would distort every prediction for its job."""
    answer = client.post("/v1/observations", json={"observations": [seen(step_time_s=140)]})
    detail = problem(answer, 422)["detail"]
    assert "observations[0]: step_time_s is implausible" in detail
    assert "expected 0.0014 to 14 s, 1/100 to 100 times the predicted 0.14 s, got 140 s" in detail
    # A user with such a step states its solo time.
    slow = {"device": "v100", "jobs": ["resnet18-cifar:step_time_s=100"]}
    assert problem(
        client.post("/v1/observations", json={"observations": [seen(of=slow, member=0, step_time_s=1e30)]}),
        422,
    )
    for step_time_s in (0.0015, 13.9):
        body = {"observations": [seen(step_time_s=step_time_s)]}
        assert client.post("/v1/observations", json=body).status_code == 201


def test_the_database_tells_the_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose clock was slow by a day forgot keys at once, and executed repeated requests."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 90_000.0)
    once = {"Idempotency-Key": "a"}
    first = client.post("/v1/observations", json={"observations": [seen()]}, headers=once).json()
    graph = client.post("/v1/workloads", json={"workload": "resnet18-cifar", "batch_size": 96}).json()
    service = client.app.state.service  # type: ignore[attr-defined]
    upkeep(service)
    assert client.post("/v1/observations", json={"observations": [seen()]}, headers=once).json() == first
    for at in (first["observations"][0]["observed_at"], graph["created_at"]):
        assert at == pytest.approx(real(), abs=LONG_S)
    assert [day["count"] for day in error_by_day(service)] == [1]


def test_what_is_stored_is_not_answered_with_an_error(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers repeat a request that failed; the next poll takes in what could not be at once."""
    service = client.app.state.service  # type: ignore[attr-defined]

    def told() -> None:
        raise StoreError("the store does not respond")

    with monkeypatch.context() as patch:
        patch.setattr(service.feedback, "told", told)
        assert client.post("/v1/observations", json={"observations": [seen()]}).status_code == 201
    assert len(client.get("/v1/observations").json()["items"]) == 1
    assert "cotenant_prediction_error_ratio_count 1.0" in client.get("/metrics").text
    until(lambda: corrections_of(service.belief().posterior), "the next poll learns from it")


def test_observations_past_retention_are_refused(client: TestClient) -> None:
    """Rows older than `retention_s` by their own time would be deleted at once."""
    service = client.app.state.service  # type: ignore[attr-defined]
    for days, status in ((89.9, 201), (90.1, 422)):
        body = {"observations": [seen(observed_at=time.time() - 86400 * days)]}
        answer = client.post("/v1/observations", json=body)
        assert answer.status_code == status, answer.text
    assert "at most 90 days ago" in problem(answer, 422)["detail"]
    upkeep(service)
    assert len(client.get("/v1/observations").json()["items"]) == 1
