"""On which GPUs the Kubernetes controller seats pods that say which one they see."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.app import create_app
from serving.config import ServiceConfig
from serving.integrations.api_server import ApiServer
from serving.integrations.ask import ServiceClient
from serving.integrations.kubernetes import look
from tests.scheduling.clusters.test_pod_tenants import node, train
from tests.serving.integrations.kubernetes_stand_in import (
    CONFIG,
    StandIn,
    Stored,
    looks,
    nothing,
    stand_in,
)
from tests.serving.live import serve
from tests.serving.table import TableSource

__all__ = ["stand_in"]


def test_pods_are_seated_as_they_say(tmp_path: Path, stand_in: tuple[StandIn, ApiServer]) -> None:
    state, api = stand_in
    state.nodes, state.pods = [node("a")], [train(name, where="a") for name in "123"]
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        service = ServiceClient(f"http://127.0.0.1:{port}")

        def seats() -> list[list[str]]:
            assert look(service, CONFIG, api)
            (stored,) = httpx.get(f"{service.url}/v1/cluster").json()["cluster"]["nodes"]
            return [[t["job_id"] for t in gpu["tenants"]] for gpu in stored["gpus"]]

        assert seats() == [["ml/1", "ml/3"], ["ml/2"]]
        for name, uuid in (("1", "GPU-A"), ("2", "GPU-B"), ("3", "GPU-B")):
            url = f"{service.url}/v1/cluster/tenants"
            httpx.put(url, params={"job_id": f"ml/{name}"}, json={"gpu_uuid": uuid})
        assert seats() == [["ml/1"], ["ml/2", "ml/3"]]
        answer = httpx.get(url, params={"job_id": "ml/3"}).json()["tenants"]
        assert (answer[0]["gpu"], len(answer[0]["of"]["jobs"])) == ("1", 2)
        state.pods = state.pods[1:]
        assert seats() == [[], ["ml/2", "ml/3"]], "they stay where they are"


def test_seats_outlast_a_restart_of_the_controller_and_a_pause_of_the_service(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes, state.pods = [node("a")], [train(name, where="a") for name in "12"]
    said = [{"job_id": f"ml/{name}", "gpu_uuid": "A"} for name in "12"]
    stored = {"nodes": [{"gpus": [{"id": "1", "tenants": said}]}], "links": []}
    service: Any = Stored()

    def respond(*, responds: bool) -> None:
        answer = {"version": service.version, "cluster": stored} if responds else None
        monkeypatch.setattr(service, "cluster", lambda: answer)

    turns = [partial(respond, responds=responds) for responds in (False, True)]
    turns[1]()
    looks(monkeypatch, service, replace(CONFIG, repeat_s=1e-9), api, *turns, nothing)
    seats = [[len(gpu["tenants"]) for gpu in body["nodes"][0]["gpus"]] for body in service.bodies]
    assert seats == [[0, 2]] * len(seats)
    assert len(seats) > 1


def test_a_pod_has_not_said_what_one_of_its_name_said_before(
    tmp_path: Path, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes, state.pods = [node("a")], [train(name, where="a") for name in "12"]
    for item in state.pods:
        item["metadata"]["uid"] = "0f3c"
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        service = ServiceClient(f"http://127.0.0.1:{port}")
        tenants = f"{service.url}/v1/cluster/tenants"

        def jobs() -> list[str]:
            assert look(service, CONFIG, api)
            (stored,) = httpx.get(f"{service.url}/v1/cluster").json()["cluster"]["nodes"]
            return sorted(t["job_id"] for gpu in stored["gpus"] for t in gpu["tenants"])

        for job in jobs():
            httpx.put(tenants, params={"job_id": job}, json={"gpu_uuid": "GPU-A"})
        first, second = jobs()
        assert len(httpx.get(tenants, params={"job_id": second}).json()["tenants"][0]["of"]["jobs"]) == 2
        state.pods[0] = deepcopy(state.pods[0])
        state.pods[0]["metadata"]["uid"] = "77ab"
        again, second = jobs()
        assert httpx.get(tenants, params={"job_id": second}).status_code == 409
        assert httpx.put(tenants, params={"job_id": first}, json={"gpu_uuid": "GPU-A"}).status_code == 404
        httpx.put(tenants, params={"job_id": again}, json={"gpu_uuid": "GPU-B"})
        assert len(httpx.get(tenants, params={"job_id": second}).json()["tenants"][0]["of"]["jobs"]) == 1


class Told(Stored):
    """A service to which pods have `said` their GPUs' UUIDs."""

    def __init__(self, said: dict[str, str]) -> None:
        super().__init__()
        self.said = said

    def cluster(self) -> dict[str, Any]:
        body = deepcopy(self.bodies[-1]) if self.bodies else {"nodes": []}
        for gpu in (gpu for one in body["nodes"] for gpu in one["gpus"]):
            for tenant in gpu["tenants"]:
                tenant |= {"gpu_uuid": uuid} if (uuid := self.said.get(tenant["job_id"])) else {}
        return {"version": self.version, "cluster": body}

    def seats(self) -> list[list[list[str]]]:
        """Pods by GPU of the first node, of each upload."""
        return [
            [[t["job_id"].removeprefix("ml/") for t in gpu["tenants"]] for gpu in body["nodes"][0]["gpus"]]
            for body in self.bodies
        ]


def test_seats_that_pods_say_while_others_are_stored_do_not_alternate(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes, state.pods = [node("a")], [train(name) for name in "123"]
    service: Any = Told({})

    def the_last() -> None:
        service.said["ml/3"] = "GPU-B"

    def the_others() -> None:
        service.said |= {"ml/1": "GPU-A", "ml/2": "GPU-A"}

    turns = the_last, the_others, *[nothing] * 6
    looks(monkeypatch, service, replace(CONFIG, repeat_s=1e-9), api, *turns)
    guessed, after_the_last, *after_the_others = service.seats()
    assert (guessed, after_the_last) == ([["1", "3"], ["2"]], [["3", "2"], ["1"]])
    assert after_the_others == [[["3"], ["1", "2"]]], "one upload, then no change"


def test_a_controller_that_starts_again_seats_pods_as_they_have_said(
    monkeypatch: pytest.MonkeyPatch, stand_in: tuple[StandIn, ApiServer]
) -> None:
    state, api = stand_in
    state.nodes, state.pods = [node("a")], [train(name) for name in "123"]
    service: Any = Told({"ml/1": "GPU-A", "ml/2": "GPU-B", "ml/3": "GPU-B"})
    looks(monkeypatch, service, CONFIG, api)
    looks(monkeypatch, service, CONFIG, api, nothing)
    assert service.seats() == [[["1", "3"], ["2"]], [["1"], ["2", "3"]]]
