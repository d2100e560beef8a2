"""A training loop that reports its step times."""

from __future__ import annotations

import logging
import threading
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from serving.integrations import step_times
from serving.integrations.step_times import StepTimes
from tests.profiling.measure.fake_nvml import FakeNvml, install
from tests.waiting import LONG_S

JOB, OTHER = "resnet18-cifar:memory_bytes=9e9", "lstm-wikitext2:memory_bytes=4e9"


class Loop:
    """A loop on a clock of its own, which reports every six seconds.

    What the thread does is done at once, unless `threaded`.
    """

    def __init__(self, client: TestClient, threaded: bool = False, **named: str) -> None:
        self.client, self.now_s, self.down = client, 0.0, False
        transport, named = httpx.MockTransport(self._answer), named or {"job_id": "a/train"}
        self.steps = StepTimes(
            "http://cotenant", **named, every_s=6.0, transport=transport, clock=lambda: self.now_s
        )
        if not threaded:
            self.steps._thread = self.steps._measured = self  # type: ignore[assignment]

    def start(self) -> None:
        self.steps._before = self.steps._where()

    def put(self, blocks: list[float] | None) -> None:
        if blocks is not None:
            self.steps._end(blocks)

    def join(self, timeout_s: float) -> None:
        pass

    def is_alive(self) -> bool:
        return False

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("refused")
        headers = {"content-type": "application/json"}
        path = request.url.raw_path.decode()
        answer = self.client.request(request.method, path, content=request.content, headers=headers)
        return httpx.Response(answer.status_code, content=answer.content)

    def run(self, steps: int, step_s: float) -> None:
        for _ in range(steps):
            self.now_s += step_s
            self.steps.done()


@pytest.fixture
def loop(client: TestClient) -> Loop:
    seat(client, JOB, OTHER)
    return Loop(client)


def seat(client: TestClient, *jobs: str, gpus: int = 1) -> None:
    tenants = [
        {"job": job, "iterations_left": 1e6, "job_id": "a/train" if job == JOB else "a/other"} for job in jobs
    ]
    nodes = [
        {"name": "n", "gpus": [{"id": str(k), "device": "v100", "tenants": tenants} for k in range(gpus)]}
    ]
    done = client.put("/v1/cluster", params={"replace_tenants": True}, json={"nodes": nodes})
    assert done.status_code == 200, done.text


def observed(client: TestClient) -> list[tuple[int, float | None]]:
    """Number of jobs and step time of all observations, oldest first."""
    items = client.get("/v1/observations").json()["items"]
    return [(len(o["jobs"]), o["step_time_s"]) for o in items][::-1]


def test_the_set_is_reported_with_the_median_step_time(client: TestClient) -> None:
    seat(client, OTHER, JOB)
    loop = Loop(client, threaded=True)
    with loop.steps:
        loop.run(10, 1.0)  # which compile and tune
        loop.run(20, 0.2)
        loop.run(1, 60.0)  # a checkpoint
        loop.run(19, 0.2)
    (entry,) = client.get("/v1/observations").json()["items"]
    assert [job.split(":")[0] for job in entry["jobs"]] == ["lstm-wikitext2", "resnet18-cifar"]
    assert (entry["member"], entry["device"]) == (1, "v100")
    assert entry["step_time_s"] == pytest.approx(0.2)


def test_a_set_is_reported_three_times_and_again_if_it_has_changed(client: TestClient, loop: Loop) -> None:
    with loop.steps:
        loop.run(10 + 7 * 30, 0.2)
        loop.run(60, 0.21)
        loop.run(60, 0.3)
    assert [step_s for _, step_s in observed(client)] == pytest.approx([0.2] * 3 + [0.3])


def test_a_window_in_which_the_set_changed_is_not_reported(client: TestClient, loop: Loop) -> None:
    with loop.steps:
        loop.run(10, 0.2)
        seat(client, JOB)
        loop.run(40, 0.15)  # an average of both sets
        loop.run(70, 0.1)
    assert observed(client) == [(1, pytest.approx(0.1))]


def test_slow_steps_are_reported_after_thirty(client: TestClient, loop: Loop) -> None:
    with loop.steps:
        loop.run(10 + 29, 5.0)
        assert observed(client) == []
        loop.run(1, 5.0)
    assert observed(client) == [(2, pytest.approx(5.0))]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), [(2, None)]),
        (RuntimeError("CUDA error: out of memory"), [(2, None)]),
        (MemoryError("out of memory"), []),
        (RuntimeError("no such file"), []),
    ],
)
def test_a_set_that_runs_out_of_gpu_memory(
    client: TestClient, loop: Loop, error: Exception, expected: list[Any]
) -> None:
    with pytest.raises(type(error)), loop.steps:
        raise error
    assert observed(client) == expected
    asked = {"device": "v100", "jobs": [JOB, OTHER]}
    assert client.post("/v1/predict", json=asked).json()["fits"] == (not expected)


@pytest.mark.parametrize("jobs", [(JOB,), (JOB, OTHER)])
def test_utilisation_and_memory_of_a_job_alone(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, jobs: tuple[str, ...]
) -> None:
    install(monkeypatch, FakeNvml())
    seat(client, *jobs)
    loop = Loop(client)
    assert loop.steps._usage is not None
    with loop.steps:
        loop.run(20, 0.2)
        loop.steps._usage.sample()
        loop.run(20, 0.2)
    (entry,) = client.get("/v1/observations").json()["items"]
    alone = (pytest.approx(0.8), 4 << 30)
    assert (entry["utilization_ratio"], entry["memory_bytes"]) == (alone if len(jobs) == 1 else (None, None))


def test_utilisation_while_the_first_steps_compile_does_not_count(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch, FakeNvml())
    seat(client, JOB)
    loop = Loop(client)
    assert loop.steps._usage is not None
    with loop.steps:
        library.busy_percent = 0
        loop.steps._usage.sample()
        loop.run(10, 20.0)
        library.busy_percent = 80
        loop.steps._usage.sample()
        loop.run(40, 0.2)
    (entry,) = client.get("/v1/observations").json()["items"]
    assert entry["utilization_ratio"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((JOB, OTHER), (JOB,), []),
        ((JOB,), (OTHER, JOB), [(2, None)]),
        ((JOB, OTHER), (OTHER, JOB), [(2, None)]),
    ],
)
def test_a_job_is_not_blamed_for_the_memory_of_one_that_has_left(
    client: TestClient, before: tuple[str, ...], now: tuple[str, ...], expected: list[Any]
) -> None:
    seat(client, *before)
    steps = Loop(client).steps
    steps.__enter__()
    seat(client, *now)
    steps.__exit__(RuntimeError, RuntimeError("CUDA error: out of memory"), None)
    assert observed(client) == expected


def test_without_with_it_says_so(client: TestClient, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.run(100, 0.2)
    assert [
        r.message for r in caplog.records if r.name == "cotenant.step_times" and r.levelno >= logging.WARNING
    ] == ["step times are reported inside `with StepTimes(...) as steps:` only"]


@pytest.fixture
def alone(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """The loop of a job alone on a GPU with NVML."""
    install(monkeypatch, FakeNvml())
    seat(client, JOB)
    return Loop(client)


def test_a_step_time_is_not_lost_with_a_refused_memory(
    client: TestClient, alone: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = alone
    with loop.steps:
        loop.run(10, 0.2)
        monkeypatch.setattr(loop.steps._usage, "take", lambda: {"memory_bytes": 1e12})
        loop.run(30, 0.2)
    (entry,) = client.get("/v1/observations").json()["items"]
    assert (entry["step_time_s"], entry["memory_bytes"]) == (pytest.approx(0.2), None)


def test_a_step_time_whose_answer_is_lost_is_not_reported_again_without_memory(
    client: TestClient, alone: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = alone
    with loop.steps:
        loop.run(10, 0.2)
        monkeypatch.setattr(loop.steps._usage, "take", lambda: {"memory_bytes": 3e9})
        answer = loop._answer

        def lost(request: httpx.Request) -> httpx.Response:
            answered = answer(request)
            if request.method == "POST":
                raise httpx.ReadTimeout("no answer")
            return answered

        monkeypatch.setattr(loop.steps._client, "_transport", httpx.MockTransport(lost))
        loop.run(30, 0.2)
    assert len(observed(client)) == 1


def test_by_its_placement(client: TestClient) -> None:
    nodes = [{"name": "n", "gpus": [{"id": "0", "device": "v100"}]}]
    client.put("/v1/cluster", json={"nodes": nodes})
    placed = client.post("/v1/placements", json={"job": JOB, "iterations": 1000}).json()
    loop = Loop(client, placement_id=placed["id"])
    with loop.steps:
        loop.run(40, 0.2)
    (entry,) = client.get("/v1/observations").json()["items"]
    assert entry["placement_id"] == placed["id"]


def test_a_job_on_several_gpus_reports_nothing(
    client: TestClient, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    seat(client, JOB, gpus=2)
    with loop.steps:
        loop.run(100, 0.2)
    assert observed(client) == []
    assert [
        r.message for r in caplog.records if r.name == "cotenant.step_times" and r.levelno >= logging.WARNING
    ] == ["the job is on several GPUs; its step times are not reported"]


def test_on_a_node_whose_scheduler_does_not_know_the_gpus(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"a/train": JOB, "a/other": OTHER, "a/third": OTHER}
    seated = [[], [{"job": job, "iterations_left": 1e6, "job_id": name} for name, job in names.items()]]
    gpus = [
        {"id": str(k), "device": "v100", "tenants": t, "tenants_assumed": True} for k, t in enumerate(seated)
    ]
    assert client.put("/v1/cluster", json={"nodes": [{"name": "n", "gpus": gpus}]}).status_code == 200
    loops = [Loop(client, job_id=name) for name in names]
    for loop, uuid in zip(loops, ("GPU-1", "GPU-1", "GPU-2"), strict=True):
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", uuid)
        with loop.steps:
            loop.run(10 + 30, 0.2)
    assert [n for n, _ in observed(client)] == [1], (
        "the last one knows that it is alone; the others knew too little"
    )
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1")
    again = Loop(client, job_id="a/train")
    with again.steps:
        again.run(40, 0.3)
    newest = client.get("/v1/observations").json()["items"][0]
    assert [job.split(":")[0] for job in newest["jobs"]] == ["lstm-wikitext2", "resnet18-cifar"]


def test_the_loop_goes_on_without_the_service(
    client: TestClient, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.down = True
    with caplog.at_level(logging.WARNING), loop.steps:
        loop.run(100, 0.2)
        loop.down = False
        loop.run(60, 0.2)
    warnings = [
        r.message for r in caplog.records if r.name == "cotenant.step_times" and r.levelno >= logging.WARNING
    ]
    assert warnings == ["GET /v1/cluster/tenants: ConnectError: refused"]
    assert len(observed(client)) == 1


@pytest.mark.parametrize(
    "answer", [{}, [], "welcome", {"tenants": [{"node": "n"}]}, {"tenants": []}, {"tenants": None}]
)
def test_the_loop_goes_on_with_answers_of_something_else(
    answer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a proxy that answers every request."""
    failed = list[Any]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    with (
        caplog.at_level(logging.WARNING),
        StepTimes("http://cotenant", "a/train", every_s=0.0, transport=transport) as steps,
    ):
        for _ in range(100):
            steps.done()
    assert failed == []
    assert len([r for r in caplog.records if r.name == "cotenant.step_times"]) == 1


def test_the_end_does_not_break_a_request_that_takes_long(
    client: TestClient, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, failed = threading.Event(), list[Any]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(step_times, "_TIMEOUT_S", 0.01)

    def answer(request: httpx.Request) -> httpx.Response:
        answers.wait(LONG_S)
        return loop._answer(request)

    steps = StepTimes("http://cotenant", "a/train", every_s=0.0, transport=httpx.MockTransport(answer))
    with steps:
        for _ in range(40):
            steps.done()
    answers.set()
    steps._thread.join(LONG_S)
    assert failed == []


def test_a_refusal_that_comes_again_is_logged_once(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    seat(client, JOB)
    loop = Loop(client)
    with loop.steps:
        loop.run(40, 1000.0)
        loop.run(60, 1001.0)
    (warning,) = [
        r.message for r in caplog.records if r.name == "cotenant.step_times" and r.levelno >= logging.WARNING
    ]
    assert "step_time_s is implausible" in warning


def test_a_job_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTENANT_JOB_ID", raising=False)
    with pytest.raises(ValueError, match="no job is named"):
        StepTimes("http://cotenant")
    monkeypatch.setenv("COTENANT_JOB_ID", "a/train")
    assert StepTimes("http://cotenant")._named == {"job_id": "a/train"}
