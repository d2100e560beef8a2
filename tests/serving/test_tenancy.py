"""The stored cluster keeps its promises whatever happens to inventory, placements and time."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from serving.app import create_app
from serving.config import ServiceConfig
from serving.feedback import POLL_S
from serving.handlers.placements import expire
from serving.handlers.tenancy import NEXT, SEATED
from serving.store.tables import PlacementRow
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TableSource
from tests.waiting import until

CLUSTER: dict[str, Any] = {
    "nodes": [{"name": name, "gpus": [{"id": str(n), "device": "v100"} for n in range(2)]} for name in "ab"]
}
JOB = {"job": "lstm-wikitext2", "iterations": 1000}


def seats(client: TestClient) -> dict[str, tuple[str, str]]:
    """Placement to (node, GPU), for all tenants that the service placed."""
    cluster = client.get("/v1/cluster").json()["cluster"]
    return {
        t["placement_id"]: (n["name"], g["id"])
        for n in cluster["nodes"] for g in n["gpus"] for t in g["tenants"] if "placement_id" in t
    }  # fmt: skip


def test_a_cluster_can_be_put_back(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    placed = client.post("/v1/placements", json=JOB).json()
    read = client.get("/v1/cluster").json()["cluster"]
    assert client.put("/v1/cluster", json=read).status_code == 200
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 200, "tenants left out stay"
    assert seats(client) == {placed["id"]: (placed["node"], placed["gpu"])}
    assert client.post(f"/v1/placements/{placed['id']}/confirm").json()["state"] == "confirmed"
    assert (
        client.post(f"/v1/placements/{placed['id']}/progress", json={"iterations_left": 5}).status_code == 200
    )


def test_an_inventory_does_not_drop_or_double_book(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    placed = client.post("/v1/placements", json=JOB).json()
    node, place = placed["node"], (placed["node"], placed["gpu"])
    without = {"nodes": [n for n in CLUSTER["nodes"] if n["name"] != node]}
    other = {"gpus": [{"id": g["id"], "device": "t4"} for g in CLUSTER["nodes"][0]["gpus"]]}
    tenant = {"job": "resnet18-cifar", "iterations_left": 5}
    booked = {"gpus": [{"id": placed["gpu"], "device": "v100", "tenants": [tenant]}]}
    for refused in (
        client.put("/v1/cluster", json=without), client.put(f"/v1/cluster/nodes/{node}", json=other),
        client.put(f"/v1/cluster/nodes/{node}", json=booked), client.delete(f"/v1/cluster/nodes/{node}"),
        client.put(f"/v1/cluster/nodes/{node}", json={"gpus": []}),
    ):  # fmt: skip
        assert placed["id"] in problem(refused, 409)["detail"]
    assert seats(client) == {placed["id"]: place}
    assert client.put("/v1/cluster?replace_tenants=true", json=without).status_code == 200
    assert client.get(f"/v1/placements/{placed['id']}").json()["state"] == "ended"
    assert seats(client) == {}


def test_replacing_tenants_keeps_those_listed(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    kept, dropped = (client.post("/v1/placements", json=JOB).json() for _ in range(2))
    cluster = client.get("/v1/cluster").json()["cluster"]
    for node in cluster["nodes"]:
        for gpu in node["gpus"]:
            gpu["tenants"] = [t for t in gpu["tenants"] if t.get("placement_id") == kept["id"]]
    assert client.put("/v1/cluster?replace_tenants=true", json=cluster).status_code == 200
    assert list(seats(client)) == [kept["id"]]
    assert client.get(f"/v1/placements/{dropped['id']}").json()["state"] == "ended"
    for node in cluster["nodes"]:  # a placement cannot be moved by hand
        for gpu in node["gpus"]:
            gpu["tenants"] = [{"job": "lstm-wikitext2", "iterations_left": 1, "placement_id": kept["id"]}]
    problem(client.put("/v1/cluster?replace_tenants=true", json=cluster), 422)
    assert list(seats(client)) == [kept["id"]]


def test_a_placed_jobs_budget_holds_for_its_lifetime(client: TestClient) -> None:
    client.put("/v1/cluster", json={"nodes": [{"name": "a", "gpus": [{"device": "v100"}]}]})
    first = client.post(
        "/v1/placements", json={"job": "resnet18-cifar", "iterations": 1e5, "max_slowdown": 1.1}
    ).json()
    assert first["state"] == "decided"
    assert (
        client.get("/v1/cluster").json()["cluster"]["nodes"][0]["gpus"][0]["tenants"][0]["max_slowdown"]
        == 1.1
    )
    late = client.post(
        "/v1/placements", json={"job": "resnet18-cifar", "iterations": 10, "max_slowdown": 50.0}
    ).json()
    assert late["state"] == "waiting", "the newcomer would slow the first one 1.4 times"
    client.put("/v1/cluster", json=client.get("/v1/cluster").json()["cluster"])
    late = client.post(
        "/v1/placements", json={"job": "resnet18-cifar", "iterations": 10, "max_slowdown": 50.0}
    ).json()
    assert late["state"] == "waiting"


def test_a_workload_in_use_is_not_deleted(client: TestClient) -> None:
    entry = client.post("/v1/workloads", json={"workload": "lstm-wikitext2"}).json()
    client.put("/v1/cluster", json=CLUSTER)
    placed = client.post("/v1/placements", json={"job": entry["workload"], "iterations": 5}).json()
    refused = client.delete(f"/v1/workloads/{entry['hash']}")
    assert placed["id"] in problem(refused, 409)["detail"]
    client.post(f"/v1/placements/{placed['id']}/end")
    assert client.delete(f"/v1/workloads/{entry['hash']}").status_code == 204


def test_an_unknown_tenant_affects_no_other(client: TestClient) -> None:
    entry = client.post("/v1/workloads", json={"workload": "lstm-wikitext2"}).json()
    client.put("/v1/cluster", json=CLUSTER)
    client.post("/v1/placements", json={"job": entry["workload"], "iterations": 5})
    service = client.app.state.service  # type: ignore[attr-defined]
    with service.store.write() as session:  # as a restore of an older copy may leave it
        from serving.store.tables import WorkloadRow

        session.delete(session.get(WorkloadRow, entry["hash"]))
    service.graphs.clear()
    service.graph_changes += 1
    answer = client.post("/v1/placements", json=JOB)
    assert answer.status_code == 201, answer.text
    assert answer.json()["state"] == "decided"


def test_a_deleted_workload_disappears_everywhere_within_two_seconds(start: Start) -> None:
    first, other = start(), start()
    entry = first.post("/v1/workloads", json={"workload": "lstm-wikitext2"}).json()
    asked = {"device": "v100", "jobs": [entry["workload"]]}
    assert other.post("/v1/predict", json=asked).status_code == 200
    assert first.delete(f"/v1/workloads/{entry['hash']}").status_code == 204
    until(lambda: other.post("/v1/predict", json=asked).status_code != 200, "the other process learns")
    assert POLL_S <= 1.0, "it looks often enough"
    problem(other.post("/v1/predict", json=asked), 404)


def test_a_job_without_reports_is_shown_as_stale_and_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(stale_s=600.0)
    client.put("/v1/cluster", json=CLUSTER)
    placed = client.post("/v1/placements", json=JOB).json()
    client.post(f"/v1/placements/{placed['id']}/confirm")
    assert client.get(f"/v1/placements/{placed['id']}").json()["stale"] is False
    store = client.app.state.service.store  # type: ignore[attr-defined]
    now = store.now
    monkeypatch.setattr(store, "now", lambda session: now(session) + 1000)
    assert client.get(f"/v1/placements/{placed['id']}").json()["stale"] is True
    assert placed["id"] in seats(client)
    assert 'href="/?placed=not+reporting#placements">1 placed job has</a>' in client.get("/").text
    assert (
        f"/jobs/{placed['id']}" in client.get("/?placed=not+reporting").text.partition('id="placements"')[2]
    )
    client.put(f"/v1/cluster/nodes/{placed['node']}", json={"gpus": CLUSTER["nodes"][0]["gpus"]})
    assert client.get(f"/v1/placements/{placed['id']}").json()["stale"] is False


def test_a_repeated_confirmation_is_a_report(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    client = start(stale_s=600.0)
    client.put("/v1/cluster", json=CLUSTER)
    url = f"/v1/placements/{client.post('/v1/placements', json=JOB).json()['id']}"
    client.post(f"{url}/confirm")
    store = client.app.state.service.store  # type: ignore[attr-defined]
    now = store.now
    monkeypatch.setattr(store, "now", lambda session: now(session) + 1000)
    assert client.get(url).json()["stale"] is True
    assert client.post(f"{url}/confirm").json()["state"] == "confirmed"
    assert client.get(url).json()["stale"] is False
    ended = client.post(f"{url}/end").json()
    monkeypatch.setattr(store, "now", lambda session: now(session) + 2000)
    assert client.post(f"{url}/end").json() == ended


def test_concurrent_decisions_all_succeed(start: Start) -> None:
    """16 callers of two services: no placement is refused because of concurrent ones."""
    clients = [start(), start()]
    clients[0].put(
        "/v1/cluster", json={"nodes": [{"name": "n", "count": 8, "gpus": [{"device": "v100", "count": 4}]}]}
    )
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: clients[i % 2].post("/v1/placements", json=JOB), range(60)))
    assert {a.status_code for a in answers} == {201}
    assert len(seats(clients[0])) == sum(a.json()["state"] == "decided" for a in answers)


class StoredCluster(RuleBasedStateMachine):
    """Inventory changes, placements and expiry in any order, against a model of the promises."""

    placements = Bundle("placements")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="cotenant-state-")
        config = ServiceConfig(database_url=f"sqlite:///{self.folder.name}/s.db", log_level="error")
        self.client = TestClient(create_app(config, TableSource()), base_url="http://127.0.0.1")
        self.client.__enter__()
        self.states: dict[str, str] = {}
        self.places: dict[str, tuple[str, str]] = {}

    def teardown(self) -> None:
        self.client.__exit__(None, None, None)
        self.folder.cleanup()

    @initialize()
    def inventory(self) -> None:
        assert self.client.put("/v1/cluster", json=CLUSTER).status_code == 200

    @rule(target=placements, job=st.sampled_from(["lstm-wikitext2", "resnet18-cifar"]))
    def place(self, job: str) -> Any:
        answer = self.client.post("/v1/placements", json={"job": job, "iterations": 100})
        if answer.status_code != 201:
            assert answer.status_code == 422, answer.text  # no GPU is left
            return multiple()
        entry = answer.json()
        self.states[entry["id"]] = entry["state"]
        if entry["state"] == "decided":
            self.places[entry["id"]] = (entry["node"], entry["gpu"])
        return entry["id"]

    @rule(key=placements, state=st.sampled_from(["confirmed", "ended"]))
    def change(self, key: str, state: str) -> None:
        answer = self.client.post(f"/v1/placements/{key}/{'confirm' if state == 'confirmed' else 'end'}")
        if state == self.states[key] or state in NEXT[self.states[key]]:
            assert answer.status_code == 200
            self.states[key] = state
        else:
            assert answer.status_code == 409

    @rule()
    def read_and_put(self) -> None:
        cluster = self.client.get("/v1/cluster").json()["cluster"]
        assert self.client.put("/v1/cluster", json=cluster).status_code == 200

    @rule(node=st.sampled_from("ab"), force=st.booleans())
    def delete(self, node: str, force: bool) -> None:
        answer = self.client.delete(f"/v1/cluster/nodes/{node}?replace_tenants={str(force).lower()}")
        seated = [k for k, s in self.states.items() if s in SEATED and self.places[k][0] == node]
        if answer.status_code == 200:
            assert force or not seated
            self.states |= dict.fromkeys(seated, "ended")
        else:
            assert answer.status_code in (404, 409)
            assert answer.status_code == 404 or (seated and not force)

    @rule(node=st.sampled_from("ab"), gpus=st.integers(0, 2), force=st.booleans())
    def put(self, node: str, gpus: int, force: bool) -> None:
        body = {"gpus": [{"id": str(n), "device": "v100"} for n in range(gpus)]}
        url = f"/v1/cluster/nodes/{node}?replace_tenants={str(force).lower()}"
        answer = self.client.put(url, json=body)
        on_node = [k for k, s in self.states.items() if s in SEATED and self.places[k][0] == node]
        gone = [k for k in on_node if force or int(self.places[k][1]) >= gpus]
        if answer.status_code == 409:
            assert gone
            assert not force
        else:
            assert answer.status_code in (200, 201)
            assert force or not gone
            self.states |= dict.fromkeys(gone, "ended")

    @rule(key=placements)
    def time_passes(self, key: str) -> None:
        service = self.client.app.state.service  # type: ignore[attr-defined]
        with service.store.write() as session:
            row = session.get(PlacementRow, key)
            if row.state == "decided":
                row.expires_at = 0.0
                self.states[key] = "expired"
                session.flush()
            expire(session, service.store.now(session))

    @rule(key=consumes(placements))
    def progress(self, key: str) -> None:
        answer = self.client.post(f"/v1/placements/{key}/progress", json={"iterations_left": 3})
        assert answer.status_code == (200 if self.states[key] in SEATED else 409)

    @invariant()
    def promises_hold(self) -> None:
        promised = {key: self.places[key] for key, state in self.states.items() if state in SEATED}
        assert seats(self.client) == promised
        stored = {p["id"]: p["state"] for p in self.client.get("/v1/placements?limit=200").json()["items"]}
        assert stored == self.states


StoredCluster.TestCase.settings = settings(
    max_examples=4,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestStoredCluster = pytest.mark.filterwarnings("ignore")(StoredCluster.TestCase)
