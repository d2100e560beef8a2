"""POST /v1/slice-plans."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.problems import problem

JOBS = ["resnet18-cifar:batch_size=64", "vgg11-cifar:batch_size=64"]
BODY: dict[str, Any] = {"device": "a100", "jobs": JOBS}


def planned(client: TestClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/slice-plans", json=BODY | changes)
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    return plan


def jobs_of(plan: dict[str, Any]) -> list[str]:
    return sorted(job["job"] for part in plan["slices"] for job in part["jobs"])


@pytest.mark.parametrize("objective", ["throughput", "jct", "fairness"])
def test_every_job_is_placed_as_it_was_named(client: TestClient, objective: str) -> None:
    plan = planned(client, objective=objective)
    assert jobs_of(plan) == sorted(JOBS)
    assert (plan["placed"], plan["waiting"], plan["objective"]) == (2, [], objective)
    for part in plan["slices"]:
        for job in part["jobs"]:
            lower, upper = job["step_time_interval_s"]
            assert lower < job["step_time_s"] < upper
    assert plan["alternatives"]
    assert plan["reasons"]


def test_without_sharing_each_job_has_a_slice(client: TestClient) -> None:
    plan = planned(client, sharing=[])
    assert plan["kind"] == "mig"
    assert max(len(part["jobs"]) for part in plan["slices"]) == 1
    assert planned(client, sharing=[], mig=False)["placed"] == 1


def test_what_was_observed_counts(client: TestClient) -> None:
    before = planned(client, sharing=[])
    (slow,) = [part for part in before["slices"] for job in part["jobs"] if job["job"] == JOBS[0]]
    seen = {"of": {"device": slow["device"], "jobs": JOBS[:1]}, "member": 0}
    step_s = 1.7 * slow["jobs"][0]["step_time_s"]
    body = {"observations": [seen | {"step_time_s": step_s}] * 3}
    assert client.post("/v1/observations", json=body).status_code == 201
    after = planned(client, sharing=[])
    assert jobs_of(after) == sorted(JOBS)
    there = [
        job["step_time_s"]
        for part in after["slices"]
        if part["device"] == slow["device"]
        for job in part["jobs"]
        if job["job"] == JOBS[0]
    ]
    assert not there or there == [pytest.approx(step_s, rel=0.01)]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"device": "a101"}, 404, "a101"),
        ({"jobs": ["nonsense"]}, 404, "unknown model"),
        ({"jobs": JOBS * 7}, 422, ""),
        ({"jobs": []}, 422, ""),
        ({"iterations": [5.0]}, 422, "iterations do not match the jobs"),
        ({"sharing": ["mig"]}, 422, ""),
        ({"jobs": ["vgg11-cifar:batch_size=900000"]}, 409, "no job fits on a100"),
    ],
)
def test_bad_input(client: TestClient, changes: dict[str, Any], status: int, words: str) -> None:
    assert words in problem(client.post("/v1/slice-plans", json=BODY | changes), status)["detail"]
