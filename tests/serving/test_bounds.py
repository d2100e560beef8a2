"""One request must not stop the rest: numbers in range, counts summed before expansion, work that ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from predictor.types import Prediction
from profiling.errors import InputError, LimitError
from profiling.workload import ColocationSet, Workload
from serving import capturing
from serving.capturing import Captures
from serving.http import decode
from serving.job_ranges import RANGES
from serving.lanes import Lane
from serving.metrics import Metrics
from serving.schemas import job_of
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource
from tests.waiting import LONG_S, until, until_async

NODE = {"nodes": [{"name": "a", "gpus": [{"device": "v100"}]}]}


@pytest.mark.parametrize("step", ["5e-324", "1e-310", "1e300", "-1", "0", "nan", "inf"])
def test_impossible_step_times(client: TestClient, step: str) -> None:
    spec = f"resnet18-cifar:step_time_s={step}"
    problem(client.post("/v1/place", json={"job": spec, "cluster": NODE}), 422)
    if step not in ("nan", "inf"):
        job = {"workload": "resnet18-cifar", "step_time_s": float(step)}
        problem(client.post("/v1/place", json={"job": job, "cluster": NODE}), 422)
    client.put("/v1/cluster", json=NODE)
    annotations = {"cotenant.dev/workload": "resnet18-cifar", "cotenant.dev/step-time-s": step}
    body = {"Pod": {"metadata": {"annotations": annotations}}, "NodeNames": ["a"]}
    never = client.post("/extender/filter", json=body).json()["FailedAndUnresolvableNodes"]
    assert "step_time_s" in next(iter(never.values()))
    assert client.post("/extender/prioritize", json=body).json() == [{"Host": "a", "Score": 0}]
    assert client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": NODE}).status_code == 200


def test_every_number_of_a_job_has_a_range() -> None:
    for name, (least, most) in RANGES.items():
        if name in ("iterations", "iterations_left", "max_slowdown", "bandwidth_bytes_per_s"):
            continue
        for value in (least, most):
            job_of(
                f"resnet18-cifar:{name}={int(value) if float(value).is_integer() and 'ratio' not in name else value}"
            )
        with pytest.raises(InputError, match=name):
            job_of(f"resnet18-cifar:{name}={int(most * 2 + 1)}")


@pytest.mark.parametrize(
    "cluster",
    [
        {"nodes": [{"count": 100_000, "gpus": []}, {"count": 100_000, "gpus": []}]},
        {"nodes": [{"name": f"n{k}", "count": 100_000, "gpus": [{"device": "v100", "count": 1024}]} for k in range(30)]},
        {"nodes": [{"name": "a", "count": 100_000, "gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 1}] * 5}]}]},
    ],
)  # fmt: skip
def test_counts_are_summed_before_they_are_expanded(client: TestClient, cluster: Any) -> None:
    for answer in (
        client.put("/v1/cluster", json=cluster),
        client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": cluster}),
    ):
        assert "too large" in problem(answer, 413)["detail"]


def test_tenants_of_a_gpu_are_as_many_as_a_set_may_have(client: TestClient) -> None:
    """Predicting a thousand takes minutes and tens of gigabytes."""

    def cluster(count: int) -> Any:
        tenants = [{"job": "resnet18-cifar", "iterations_left": k + 1} for k in range(count)]
        return {"nodes": [{"name": "a", "gpus": [{"device": "v100", "tenants": tenants}]}]}

    for answer in (
        client.put("/v1/cluster", json=cluster(17)),
        client.put("/v1/cluster/nodes/a", json=cluster(17)["nodes"][0]),
        client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": cluster(17)}),
    ):
        body = problem(answer, 413)
        assert body["detail"].startswith("a GPU has too many tenants")
        assert (body["expected"], body["got"]) == ("at most 16 (set_jobs)", "17")
    assert client.put("/v1/cluster", json=cluster(16)).status_code == 200
    assert client.post("/v1/place", json={"job": "resnet18-cifar"}).json()["decision"] == "wait"


def test_long_bodies_are_read_once_and_without_collecting_garbage(client: TestClient) -> None:
    """Either would hold up all requests for seconds."""
    rounds: list[str] = []

    def count(phase: str, _: Any) -> None:
        rounds.append(phase)

    lists = b"[" + b"[]," * 200_000 + b"[]]"
    gc.callbacks.append(count)
    try:
        assert len(decode(lists, list)) == 200_001
    finally:
        gc.callbacks.remove(count)
    assert len(rounds) < 20
    assert gc.isenabled()
    wrong = b'{"device":"v100","jobs":[{"workload":"resnet18-cifar","batch_size":0}],"more":' + lists + b"}"
    body = problem(
        client.post("/v1/predict", content=wrong, headers={"content-type": "application/json"}), 422
    )
    assert body["expected"] == "int >= 1"
    assert "got" not in body


class Heavy(TablePredictor):
    """Waits at its gate for every new job."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.met = threading.Event(), 0

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        for asked in sets:
            if any(w.batch_size and w.batch_size > 1000 for w in asked.workloads):
                self.met += 1
                self.gate.wait(LONG_S)
        return super().predict_many(sets)


def test_new_workloads_of_one_request_are_bounded(start: Start) -> None:
    client = start(new_workloads=10)
    sets = [
        {"device": device, "jobs": [f"resnet18-cifar:batch_size={n}"]}
        for n in range(1, 30)
        for device in ("v100", "p100")
    ]
    refused = problem(client.post("/v1/predict/batch", json={"sets": sets}), 413)
    assert "too many new workloads" in refused["detail"]
    assert "got 29" in refused["detail"], "on however many devices"
    assert client.post("/v1/predict/batch", json={"sets": sets[:20]}).status_code == 200


def test_new_workloads_are_refused_while_requests_are_shed(start: Start) -> None:
    client = start(shed_delay_s=0.01, spare_ratio=1e-6)
    delay = client.app.state.service.delay  # type: ignore[attr-defined]
    bodies = [{"device": "v100", "jobs": [f"resnet18-cifar:batch_size={n}"]} for n in (8, 16, 32)]
    assert client.post("/v1/predict", json=bodies[0]).status_code == 200
    for _ in range(10):
        delay.refused()
        delay.adapt(0.0)
    assert client.post("/v1/predict", json=bodies[1]).status_code == 200, "one may begin at once"
    refused = client.post("/v1/predict", json=bodies[2])
    assert "new workloads wait" in problem(refused, 503)["detail"]
    assert int(refused.headers["retry-after"]) > 1000
    for body in bodies[:2]:
        assert client.post("/v1/predict", json=body).status_code == 200, "the model has met it"


def test_work_ends_with_its_request(start: Start, source: TableSource) -> None:
    source.predictor = heavy = Heavy()
    client = start()
    sets = [{"device": "v100", "jobs": [f"resnet18-cifar:batch_size={1000 + n}"]} for n in range(1, 200)]
    problem(client.post("/v1/predict/batch", json={"sets": sets}, headers={"X-Timeout-S": "0.5"}), 504)
    heavy.gate.set()
    lane = client.app.state.service.batcher.encoding  # type: ignore[attr-defined]
    until(lambda: lane.idle, "nothing goes on")
    assert heavy.met < 100, "most was left"


def test_a_large_batch_does_not_delay_others(start: Start) -> None:
    client = start()
    sets = [{"device": "v100", "jobs": ["resnet18-cifar", "lstm-wikitext2"] * 8}] * 1000

    async def ask() -> int:
        import httpx

        turns = 0
        transport = httpx.ASGITransport(client.app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=LONG_S
        ) as http:
            await http.post("/v1/predict", json=sets[0])
            task = asyncio.create_task(http.post("/v1/predict/batch", json={"sets": sets}))
            while not task.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert (await task).status_code == 200
        return turns

    turns: int = client.portal.call(ask)  # type: ignore[union-attr]
    assert turns > len(sets) / 64, "the event loop goes on with others between the parts of a batch"


def test_a_stuck_lane_is_not_ready(
    start: Start, source: TableSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("serving.service.os", SimpleNamespace(_exit=ended.append))
    gate = threading.Event()

    class Stuck(TablePredictor):
        def predict_arrays(self, sets: Sequence[ColocationSet]) -> Any:
            gate.wait(LONG_S)
            return super().predict_arrays(sets)

    source.predictor = Stuck()
    client = start(stuck_s=1.0)
    body = {"job": "resnet18-cifar", "cluster": NODE}
    try:
        problem(client.post("/v1/place", json=body, headers={"X-Timeout-S": "0.2"}), 504)
        until(lambda: client.get("/v1/health/ready").status_code == 503, "not ready")
        assert "sketching" in problem(client.get("/v1/health/ready"), 503)["detail"]
        assert client.get("/v2/health/ready").json() == {"ready": False}
        assert client.get("/v1/health/live").status_code == 200
        assert until(lambda: ended, "the process ends where it stays so")[0] == 70
    finally:
        gate.set()


class Slow(TablePredictor):
    """Waits at its gate before every answer for many sets."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.asked = threading.Event(), 0

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> Any:
        if len(sets) > 100:
            self.asked += 1
            self.gate.wait(LONG_S)
        return super().predict_arrays(sets)


def pairs_of_gpus(jobs: int) -> list[dict[str, Any]]:
    """A V100 for each pair of so many different jobs."""
    names = [f"resnet18-cifar:step_time_s={0.1 + k / 1000}" for k in range(jobs)]
    pairs = [(a, b) for a in names for b in names if a < b]
    return [{"device": "v100", "tenants": [{"job": j, "iterations_left": 9} for j in pair]} for pair in pairs]


def test_a_huge_cluster_in_a_body_does_not_delay_placements(start: Start, source: TableSource) -> None:
    slow = source.predictor = Slow()
    client = start(queue_wait_s=0.5)
    client.put("/v1/cluster", json=NODE)
    body = {"job": "resnet18-cifar", "cluster": {"nodes": [{"name": "a", "gpus": pairs_of_gpus(60)}]}}
    try:
        with ThreadPoolExecutor() as pool:
            huge = pool.submit(client.post, "/v1/place", json=body)
            until(lambda: slow.asked or huge.done(), "it is being decided")
            placed = client.post("/v1/placements", json={"job": "resnet18-cifar", "iterations": 9})
            asked = client.post("/v1/place", json={"job": "resnet18-cifar"})
            assert not huge.done()
            slow.gate.set()
            assert huge.result().status_code == 200
    finally:
        slow.gate.set()
    assert (placed.status_code, asked.status_code) == (201, 200)


def test_clusters_in_bodies_do_not_wait_for_a_huge_one(start: Start, source: TableSource) -> None:
    slow = source.predictor = Slow()
    client = start()
    huge = {"job": "resnet18-cifar", "cluster": {"nodes": [{"name": "a", "gpus": pairs_of_gpus(60)}]}}
    try:
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(client.post, "/v1/place", json=huge) for _ in range(2)]
            until(lambda: slow.asked == 2 or any(one.done() for one in both), "both are being decided")
            small = client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": NODE})
            assert not any(one.done() for one in both)
            slow.gate.set()
            assert [one.result().status_code for one in both] == [200, 200]
    finally:
        slow.gate.set()
    assert small.status_code == 200


def test_a_decision_stops_when_nobody_waits_for_it(start: Start, source: TableSource) -> None:
    """Else one on a large cluster blocks the lane until the process is restarted."""
    slow = source.predictor = Slow()
    client = start()
    body = {"job": "resnet18-cifar", "cluster": {"nodes": [{"name": "a", "gpus": pairs_of_gpus(60)}]}}
    timeout_s = 0.5
    while not slow.asked:  # a busy machine may take longer to get there
        problem(client.post("/v1/place", json=body, headers={"X-Timeout-S": f"{timeout_s:g}"}), 504)
        timeout_s *= 2
    slow.gate.set()
    assert client.post("/v1/place", json={"job": "resnet18-cifar", "cluster": NODE}).status_code == 200
    assert slow.asked == 1


def _sleep(workload: Workload) -> Any:
    time.sleep(10 * LONG_S)


def _eat(workload: Workload) -> Any:
    return len(bytearray(2**33))


def _nothing() -> None:
    pass


def _name(workload: Workload) -> str:
    return workload.model


def test_an_idle_capture_process_that_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = Captures(Metrics(), 1, LONG_S, 2**31)
    monkeypatch.setattr(capturing, "capture", _name)

    async def run() -> None:
        lane = Lane("encoding", Metrics(), wait_s=LONG_S, stuck_s=100 * LONG_S)
        assert await lane.run(captures.graph, Workload("alpha")) == "alpha"
        broken = captures._pool
        (process,) = broken._pool_manager.worker_manager.workers.values()
        process.kill()
        await until_async(lambda: not broken.active, "the pool is broken")
        assert await lane.run(captures.graph, Workload("beta")) == "beta"

    try:
        asyncio.run(run())
    finally:
        captures.close()


def test_a_replacement_capture_process_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = Captures(Metrics(), 1, 100 * LONG_S, 2**31)
    monkeypatch.setattr(capturing, "capture_first", _nothing)

    async def run() -> None:
        lane = Lane("encoding", Metrics(), wait_s=LONG_S, stuck_s=100 * LONG_S)
        captures.warm()
        first = captures._warming
        await until_async(first.done, "a first capture")
        monkeypatch.setattr(capturing, "capture", _name)
        assert await lane.run(captures.graph, Workload("alpha")) == "alpha"
        assert captures._warming is first, "the process goes on"
        monkeypatch.setattr(capturing, "capture", _sleep)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await lane.run(captures.graph, Workload("beta"))
        await until_async(lambda: captures._warming is not first, "another process captures first")

    try:
        asyncio.run(run())
    finally:
        captures.close()


def test_captures_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At their time limit, at their memory limit, and when their client has left."""
    job = Workload("resnet18-cifar")
    captures = Captures(Metrics(), 1, 1.0, 2**31)

    async def run() -> None:
        lane = Lane("encoding", Metrics(), wait_s=LONG_S, stuck_s=100 * LONG_S)
        monkeypatch.setattr(capturing, "capture", _sleep)
        with pytest.raises(LimitError, match="too long"):
            await lane.run(captures.graph, job)
        captures.seconds = 5 * LONG_S
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await lane.run(captures.graph, job)
        await until_async(lambda: lane.idle, "the call of who left ends")
        monkeypatch.setattr(capturing, "capture", _eat)
        async with asyncio.timeout(LONG_S):  # there is one process, and it does not sleep any more
            with pytest.raises(LimitError):
                await lane.run(captures.graph, job)

    try:
        asyncio.run(run())
    finally:
        captures.close()


class Longest(TablePredictor):
    """Notes the most sets predicted in one call."""

    longest = 0

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        self.longest = max(self.longest, len(sets))
        return super().predict_many(sets)


def test_observations_are_predicted_in_parts(start: Start, source: TableSource) -> None:
    """Model and corrections alike: thousands of large sets in one call would make the lane stuck."""
    source.predictor = longest = Longest()
    client = start()
    seen = {"of": {"device": "v100", "jobs": ["resnet18-cifar", "lstm-wikitext2"]}, "step_time_s": 0.1}
    answer = client.post("/v1/observations", json={"observations": [seen] * 300})
    assert (answer.status_code, len(answer.json()["observations"])) == (201, 300)
    assert longest.longest == 64
