"""Decisions that wait together are made together, and each gets its own response."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from profiling.errors import UnavailableError
from scheduling.placement.grouping import GroupedGpus
from serving.handlers import reserving
from serving.handlers.reserving import Reserver
from serving.store import Store
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.waiting import LONG_S, until_async

JOB = {"job": "resnet18-cifar", "iterations": 100}  # two on one GPU slow each other
HUGE = {"job": "resnet18-cifar:batch_size=100000"}  # fits nowhere


def nodes(count: int) -> dict[str, Any]:
    return {"nodes": [{"name": "n", "count": count, "gpus": [{"device": "v100"}]}]}


def warm(start: Start, count: int) -> Any:
    """A client of a service with this many empty GPUs that has already predicted `JOB`."""
    client = start()
    client.put("/v1/cluster", json=nodes(count))
    client.post("/v1/place", json=JOB)
    return client


async def together(
    app: Any, gate: threading.Event, requests: list[tuple[Any, dict[str, str]]]
) -> list[httpx.Response]:
    """POST placements while the first one's turn is held up, so that the others wait together."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=LONG_S) as http:

        def post(body: Any, headers: dict[str, str]) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(http.post("/v1/placements", json=body, headers=headers))

        first = post(JOB, {})
        await until_async(lambda: gate.entered, "the first decision begins")  # type: ignore[attr-defined]
        rest = [post(body, headers) for body, headers in requests]
        await until_async(lambda: gate.queued == 1 + len(rest), "all wait")  # type: ignore[attr-defined]
        gate.set()
        return await asyncio.gather(first, *rest)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Blocks whoever begins to decide."""
    event, begin, enqueue = threading.Event(), reserving._begin, Reserver._enqueue
    event.entered, event.queued = False, 0  # type: ignore[attr-defined]

    def counted(reserver: Reserver, request: Any) -> None:
        event.queued += 1  # type: ignore[attr-defined]
        enqueue(reserver, request)

    def held(service: Any) -> Any:
        event.entered = True  # type: ignore[attr-defined]
        event.wait(LONG_S)
        return begin(service)

    monkeypatch.setattr(reserving, "_begin", held)
    monkeypatch.setattr(Reserver, "_enqueue", counted)
    monkeypatch.setattr(reserving, "_TOGETHER_S", LONG_S)
    return event


def test_a_group_is_one_transaction_and_each_sees_earlier_ones(
    start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = warm(start, 12)
    writes, write = [], Store.write
    monkeypatch.setattr(Store, "write", lambda store: writes.append(1) or write(store))
    before = client.get("/v1/cluster").json()["version"]
    answers = client.portal.call(together, client.app, gate, [(JOB, {})] * 10)  # type: ignore[union-attr]
    entries = [answer.json() for answer in answers]
    assert [answer.status_code for answer in answers] == [201] * 11
    assert len({entry["node"] for entry in entries}) == 11, "each on a GPU of its own"
    assert len({entry["sequence"] for entry in entries}) == 11
    assert sorted(entry["cluster_version"] for entry in entries) == list(range(before + 1, before + 12))
    assert len(writes) < 11


def test_a_group_uses_its_lane_once_and_adds_each_tenant_once(
    start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a decision saw equals what the store returns, so nothing is computed for it again."""
    client = warm(start, 60)
    placing, take_in = client.app.state.service.batcher.placing, GroupedGpus._write  # type: ignore[attr-defined]
    calls, taken, run = [], [], placing.run

    def counted(grouped: GroupedGpus, new: dict[int, Any]) -> None:
        taken.extend(new)
        take_in(grouped, new)

    async def one_call(*arguments: Any) -> Any:
        calls.append(1)
        return await run(*arguments)

    monkeypatch.setattr(placing, "run", one_call)
    monkeypatch.setattr(GroupedGpus, "_write", counted)
    answers = client.portal.call(together, client.app, gate, [(JOB, {})] * 10)  # type: ignore[union-attr]
    assert [answer.status_code for answer in answers] == [201] * 11
    assert len(calls) == 2, "the first one, and those that waited meanwhile"
    assert client.post("/v1/place", json=JOB).status_code == 200
    assert len(taken) == 11


def test_a_failing_decision_fails_alone(start: Start, gate: threading.Event) -> None:
    client = start()
    client.put("/v1/cluster", json=nodes(8))
    once = {"Idempotency-Key": "k"}
    asked: list[tuple[Any, dict[str, str]]] = [(JOB, {}), (HUGE, {}), (JOB, once), (JOB, once), (JOB, {})]
    _, small, huge, first, again, last = client.portal.call(together, client.app, gate, asked)  # type: ignore[union-attr]
    assert [a.status_code for a in (small, first, again, last)] == [201] * 4
    assert first.json() == again.json()
    problem(huge, 409)
    problem(client.post("/v1/placements", json=JOB | {"iterations": 7}, headers=once), 422)
    assert len(client.get("/v1/placements").json()["items"]) == 4


def test_one_idempotency_key_with_two_bodies_serves_one_of_them(start: Start, gate: threading.Event) -> None:
    """Whichever arrives first: requests sent together may arrive in any order."""
    client = start()
    client.put("/v1/cluster", json=nodes(8))
    once = {"Idempotency-Key": "k"}
    asked = [(JOB, once), (JOB | {"iterations": 7}, once)]
    _, *answers = client.portal.call(together, client.app, gate, asked)  # type: ignore[union-attr]
    assert sorted(answer.status_code for answer in answers) == [201, 422]
    assert len(client.get("/v1/placements").json()["items"]) == 2


def test_a_failed_decision_is_answered_to_all_that_waited_for_it(
    start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise UnavailableError("the store does not respond")

    client = warm(start, 4)
    decide, groups = Reserver._decide, []

    async def decide_first(reserver: Reserver, group: list[Any]) -> None:
        groups.append(len(group))
        await (decide if len(groups) == 1 else fail)(reserver, group)

    monkeypatch.setattr(Reserver, "_decide", decide_first)
    first, *rest = client.portal.call(together, client.app, gate, [(JOB, {})] * 3)  # type: ignore[union-attr]
    assert first.status_code == 201
    assert [answer.status_code for answer in rest] == [503] * 3
    assert groups == [1, 3]


def meanwhile(client: Any, change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a `change` once, when `client` has read the cluster and not yet decided."""
    begin, changes = reserving._begin, [change]

    def changed(service: Any) -> Any:
        state, leave = begin(service)
        if service is client.app.state.service and changes:
            changes.pop()()
        return state, leave

    monkeypatch.setattr(reserving, "_begin", changed)


def test_a_gpu_taken_meanwhile_leads_to_a_new_decision(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the other process holds its turn for too long."""
    first, other = start(), start()
    first.put("/v1/cluster", json=nodes(2))
    intruded: list[Any] = []
    meanwhile(first, lambda: intruded.append(other.post("/v1/placements", json=JOB)), monkeypatch)
    placed = first.post("/v1/placements", json=JOB)
    assert [placed.status_code, intruded[0].status_code] == [201, 201]
    assert placed.json()["node"] != intruded[0].json()["node"]


def test_a_gpu_exchanged_meanwhile_leads_to_a_new_decision(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job fits on the old GPU, but not on the new one of the same name."""
    first, other = start(), start()
    first.put("/v1/cluster", json={"nodes": [{"name": "n", "gpus": [{"device": "a100-80gb"}]}]})

    def exchange() -> None:
        put = other.put("/v1/cluster/nodes/n", json={"gpus": [{"device": "k80"}]})
        assert put.status_code == 200

    meanwhile(first, exchange, monkeypatch)
    problem(first.post("/v1/placements", json={"job": "resnet18-cifar:batch_size=2000"}), 409)
    assert first.get("/v1/placements").json()["items"] == []


def test_a_tenant_exchanged_meanwhile_leads_to_a_new_decision(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite gives the newcomer the row of the tenant that has just left."""
    first, other = start(), start()
    first.put("/v1/cluster", json=nodes(1))
    light = {"job": "lstm-wikitext2", "iterations": 1e6}
    leaving = first.post("/v1/placements", json=light).json()["id"]

    def exchange() -> None:
        other.post(f"/v1/placements/{leaving}/end")
        strict = {"job": "resnet18-cifar", "iterations": 1e6, "max_slowdown": 1.0}
        assert other.post("/v1/placements", json=strict).json()["state"] == "decided"

    meanwhile(first, exchange, monkeypatch)
    assert (
        first.post("/v1/placements", json={"job": "resnet18-cifar", "iterations": 1e6}).json()["state"]
        == "waiting"
    )


def test_a_budget_tightened_meanwhile_leads_to_a_new_decision(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = start(), start()
    first.put("/v1/cluster", json=nodes(1))
    light = {"job": "resnet18-cifar", "iterations": 1e6, "max_slowdown": 3.0}
    first.post("/v1/placements", json=light)

    def tighten() -> None:
        cluster = other.get("/v1/cluster").json()["cluster"]
        cluster["nodes"][0]["gpus"][0]["tenants"][0]["max_slowdown"] = 1.0
        assert other.put("/v1/cluster?replace_tenants=true", json=cluster).status_code == 200

    meanwhile(first, tighten, monkeypatch)
    assert (
        first.post("/v1/placements", json={"job": "resnet18-cifar", "iterations": 1e6}).json()["state"]
        == "waiting"
    )


def test_a_workload_deleted_meanwhile_is_not_placed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion elsewhere is noticed a little later, and nothing could be placed beside its tenant."""
    first, other = start(), start()
    first.put("/v1/cluster", json=nodes(1))
    entry = first.post("/v1/workloads", json={"workload": "lstm-wikitext2"}).json()
    deleted: list[Any] = []
    meanwhile(first, lambda: deleted.append(other.delete(f"/v1/workloads/{entry['hash']}")), monkeypatch)
    refused = first.post("/v1/placements", json={"job": entry["workload"], "iterations": 5})
    assert deleted[0].status_code == 204
    assert "not registered" in problem(refused, 404)["detail"]
    assert first.post("/v1/placements", json=JOB).json()["state"] == "decided"


def test_callers_are_refused_when_too_many_wait(start: Start, gate: threading.Event) -> None:
    client = start(queue_length=3)
    client.put("/v1/cluster", json=nodes(12))
    answers = client.portal.call(together, client.app, gate, [(JOB, {})] * 8)  # type: ignore[union-attr]
    assert sorted(answer.status_code for answer in answers) == [201] * 4 + [503] * 5
    assert 'cotenant_requests_refused_total{reason="reserving_length"} 5.0' in client.get("/metrics").text


def test_a_caller_that_left_does_not_keep_its_place(start: Start, gate: threading.Event) -> None:
    client = start(queue_length=1)
    client.put("/v1/cluster", json=nodes(4))

    async def leave() -> list[int]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=LONG_S
        ) as http:
            posted = []
            for number in range(3):
                posted.append(asyncio.create_task(http.post("/v1/placements", json=JOB)))
                await until_async(lambda n=number: gate.queued == n + 1, "it waits")  # type: ignore
                if number == 0:
                    await until_async(lambda: gate.entered, "the first decision begins")  # type: ignore
                elif number == 1:
                    posted[1].cancel()
                    await asyncio.wait([posted.pop()])
            gate.set()
            return [answer.status_code for answer in await asyncio.gather(*posted)]

    assert client.portal.call(leave) == [201, 201]  # type: ignore[union-attr]


@pytest.mark.parametrize("held", [True, False])
def test_turns(tmp_path: Any, held: bool) -> None:
    store, other = Store(f"sqlite:///{tmp_path}/s.db"), Store(f"sqlite:///{tmp_path}/s.db")
    leave = store.take_turn(LONG_S)
    assert leave is not None
    if not held:
        leave()
    files = psutil.Process().num_fds()
    again = other.take_turn(0.05)
    assert (again is None) == held
    assert psutil.Process().num_fds() - files == (0 if held else 1)
    for end in {leave} if held else {again}:
        end()
    assert other.take_turn(LONG_S) is not None
