"""The set that a job of the stored cluster runs in."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.handlers.upkeep import upkeep
from serving.store import Store

JOBS = {"a": "resnet18-cifar", "b": "lstm-wikitext2", "c": "bert-base-squad", "d": "resnet50-imagenet"}


def tenant(name: str) -> dict[str, Any]:
    return {"job": JOBS[name], "iterations_left": 1e6, "job_id": name}


def store(
    client: TestClient, *gpus: str, assumed: bool = True, device: str = "v100", **parameters: float
) -> None:
    """GPUs of one node with these jobs."""
    mark = {"tenants_assumed": True} if assumed else {}
    described = [
        {"id": str(k), "device": device, "tenants": [tenant(name) for name in names]} | mark
        for k, names in enumerate(gpus)
    ]
    nodes = [{"name": "n", "gpus": described}]
    done = client.put("/v1/cluster", params={"replace_tenants": True} | parameters, json={"nodes": nodes})
    assert done.status_code == 200, done.text


def see(client: TestClient, job_id: str, uuid: str) -> Any:
    return client.put("/v1/cluster/tenants", params={"job_id": job_id}, json={"gpu_uuid": uuid})


def jobs_beside(client: TestClient, job_id: str) -> list[str] | int:
    answer = client.get("/v1/cluster/tenants", params={"job_id": job_id})
    if answer.status_code != 200:
        return answer.status_code
    (entry,) = answer.json()["tenants"]
    assert entry["of"]["jobs"][entry["member"]] == JOBS[job_id]
    return [name for job in entry["of"]["jobs"] for name in JOBS if JOBS[name] == job]


def test_jobs_of_a_gpu(client: TestClient) -> None:
    store(client, "ab", "c", assumed=False)
    assert [jobs_beside(client, name) for name in "abc"] == [["a", "b"], ["a", "b"], ["c"]]
    assert see(client, "a", "GPU-1").json() == client.get("/v1/cluster/tenants?job_id=a").json()
    assert jobs_beside(client, "a") == ["a", "b"], "the scheduler knows"


def test_jobs_that_say_which_gpu_they_see(client: TestClient) -> None:
    store(client, "ab", "c")
    assert client.get("/v1/cluster").json()["cluster"]["nodes"][0]["gpus"][0]["tenants_assumed"] is True
    assert client.get("/").text.count("perhaps not on this GPU") == 2
    problem = see(client, "a", "GPU-1")
    assert problem.status_code == 409
    assert problem.json()["got"] == "none from b and 1 more"
    assert see(client, "b", "GPU-2").status_code == 409
    answer = see(client, "c", "GPU-1").json()["tenants"][0]
    assert (answer["gpu"], answer["of"]["jobs"], answer["member"]) == ("GPU-1", [JOBS["a"], JOBS["c"]], 1)
    assert [jobs_beside(client, name) for name in "abc"] == [["a", "c"], ["b"], ["a", "c"]]
    store(client, "ab", "cd")
    assert jobs_beside(client, "a") == 409, "a new job has not said anything yet"
    see(client, "d", "GPU-2")
    assert [jobs_beside(client, name) for name in "bd"] == [["b", "d"], ["b", "d"]]
    stored = client.get("/v1/cluster").json()["cluster"]
    assert [t["gpu_uuid"] for gpu in stored["nodes"][0]["gpus"] for t in gpu["tenants"]] == [
        "GPU-1", "GPU-2", "GPU-1", "GPU-2",
    ]  # fmt: skip
    assert client.put("/v1/cluster", json=stored).status_code == 200, "as it was read"
    placed = client.post("/v1/place", json={"job": "resnet18-cifar", "iterations": 9, "cluster": stored})
    assert placed.status_code == 200
    store(client, "ac", "bd", assumed=False)
    assert jobs_beside(client, "a") == ["a", "c"]
    of = [client.get("/v1/cluster/tenants", params={"job_id": name}).json() for name in "ac"]
    store(client, "bda", "c", assumed=False)
    store(client, "bd", "ac", assumed=False)
    for entry in (entry for answer in of for entry in answer["tenants"]):
        entry["gpu"] = "1"
    assert [client.get("/v1/cluster/tenants", params={"job_id": name}).json() for name in "ac"] == of
    store(client, "abcd", "")
    assert jobs_beside(client, "b") == ["b", "d"], (
        "a job that is taken for one on another GPU has said it before"
    )


def test_jobs_that_see_other_gpus_than_they_are_stored_on(client: TestClient) -> None:
    """A pod may take the place of another one of its name, and get another GPU."""
    store(client, "ab", "c", assumed=False)
    for name, uuid in (("a", "GPU-1"), ("b", "GPU-1"), ("c", "GPU-2")):
        assert see(client, name, uuid).status_code == 200
    problem = see(client, "a", "GPU-3").json()
    assert (problem["status"], problem["got"]) == (409, "GPU-1, GPU-3 on 0")
    assert [jobs_beside(client, name) for name in "abc"] == [409, 409, ["c"]]
    see(client, "b", "GPU-3")
    assert [jobs_beside(client, name) for name in "abc"] == [["a", "b"], ["a", "b"], ["c"]]
    see(client, "b", "GPU-2")
    see(client, "a", "GPU-2")
    assert [jobs_beside(client, name) for name in "abc"] == [409] * 3
    store(client, "", "abc", assumed=False)
    assert jobs_beside(client, "a") == ["a", "b", "c"], "as soon as the cluster says the same"


def test_jobs_on_slices_of_a_card_see_their_own(client: TestClient) -> None:
    gpu = {"device": "a100", "sharing": "mig", "tenants": [tenant("a"), tenant("b")]}
    client.put("/v1/cluster", json={"nodes": [{"name": "n", "gpus": [gpu]}]})
    assert [see(client, "a", "MIG-1").status_code, see(client, "b", "MIG-2").status_code] == [200, 200]


def test_a_job_that_has_grown_to_several_gpus(client: TestClient) -> None:
    store(client, "ab", "")
    see(client, "a", "GPU-1")
    store(client, "ab", "a")
    see(client, "b", "GPU-1")
    assert see(client, "a", "GPU-1").json()["got"] == "none from a and 1 more"
    assert client.get("/v1/cluster").text.count("gpu_uuid") == 1


def test_slices_of_another_profile_are_others(client: TestClient) -> None:
    nodes = [
        {"id": str(k), "device": f"a100:mig={part}", "tenants": [tenant(name)], "tenants_assumed": True}
        for k, (part, name) in enumerate([("3g", "a"), ("3g", "b"), ("1g", "c")])
    ]
    client.put("/v1/cluster", json={"nodes": [{"name": "n", "gpus": nodes}]})
    assert see(client, "a", "MIG-1").status_code == 409
    assert see(client, "b", "MIG-2").status_code == 200
    assert [jobs_beside(client, name) for name in "abc"] == [["a"], ["b"], 409]


def test_a_job_on_several_gpus_cannot_say_it(client: TestClient) -> None:
    store(client, "a", "a", assumed=False)
    assert len(see(client, "a", "GPU-1").json()["tenants"]) == 2
    store(client, "a", "a")
    assert see(client, "a", "GPU-1").status_code == 409


@pytest.mark.parametrize("uuid", ["", "GPU 1", "x" * 101, "GPU-\0"])
def test_what_is_no_uuid(client: TestClient, uuid: str) -> None:
    store(client, "a")
    assert see(client, "a", uuid).status_code == 422


def test_an_unknown_job(client: TestClient) -> None:
    store(client, "a")
    assert see(client, "z", "GPU-1").status_code == 404
    assert client.put("/v1/cluster/tenants", json={"gpu_uuid": "GPU-1"}).status_code == 422


def test_no_set_is_answered_while_the_cluster_is_outdated(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs may have started and ended unnoticed since."""
    store(client, "ab", assumed=False, valid_s=600)
    assert jobs_beside(client, "a") == ["a", "b"]
    assert "outdated" not in client.get("/").text
    valid_until = client.get("/v1/cluster").json()["valid_until"]
    assert valid_until == pytest.approx(time.time() + 600, abs=60)

    monkeypatch.setattr(Store, "now", lambda *_: valid_until + 90)
    assert jobs_beside(client, "a") == 409
    assert see(client, "a", "GPU-1").json()["got"] == "90 s too late so far"
    assert "should have stored it again 90 s ago" in client.get("/").text
    assert jobs_beside(client, "no-such-job") == 404
    upkeep(client.app.state.service)  # type: ignore[attr-defined]
    assert "\ncotenant_cluster_outdated 1.0" in client.get("/metrics").text

    store(client, "a", assumed=False, valid_s=600)
    assert jobs_beside(client, "a") == ["a"]
    monkeypatch.setattr(Store, "now", lambda *_: valid_until + 1e9)
    store(client, "ab", assumed=False)
    assert jobs_beside(client, "a") == ["a", "b"], "nobody promised to store it again"
    assert client.get("/v1/cluster").json()["valid_until"] is None
    upkeep(client.app.state.service)  # type: ignore[attr-defined]
    assert "\ncotenant_cluster_outdated 0.0" in client.get("/metrics").text


@pytest.mark.parametrize("seconds", [0, -1, "inf", "nan", "soon"])
def test_times_that_are_not_valid(client: TestClient, seconds: float | str) -> None:
    answer = client.put("/v1/cluster", params={"valid_s": seconds}, json={"nodes": []})
    assert answer.status_code == 422, answer.text
