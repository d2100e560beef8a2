"""Reports measured step times from a training loop. Needs `httpx`; the Python client contains a copy."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue
from statistics import median
from types import TracebackType
from typing import Any, Self

import httpx

from .gpu_usage import GpuUsage, visible_uuid  # in either package

log = logging.getLogger("cotenant.step_times")

# Steps whose mean is one measurement: a loop that reads its loss now and then waits for the GPU only in those steps.
_BLOCK = 10
# Fewest of these in a report; one may hold an evaluation or a checkpoint.
_LEAST_BLOCKS = 3
# Reports of one set, which the service then answers as observed, and the change that is reported nevertheless.
_REPORTS, _CHANGED = 3, 1.1
_TIMEOUT_S = 5.0
_SAMPLE_S = 1.0
_OUT_OF_MEMORY = ("OutOfMemoryError", "ResourceExhaustedError")  # torch, TensorFlow


class StepTimes:
    """Measures the steps of a training job, and reports them with the set of jobs on its GPU.

    Usage: `with StepTimes(url, job_id) as steps:` around the loop, and `steps.done()` after each step.

    About once a minute, the median of the means over ten steps is reported, if the stored cluster has the job on one GPU,
    beside the same jobs at both ends of that minute. A set is reported three times, and again once its step time has
    changed by a tenth; of a job alone, the GPU's utilisation and memory, too, if `nvidia-ml-py` is installed. A set that
    runs out of GPU memory is reported as well, unless a job has left it within that minute: it may have been what held
    the memory. A thread does this; what fails is logged (logger `cotenant.step_times`), and the loop goes on.

    Args:
        url: base URL of the service.
        job_id: of the job in the stored cluster (a pod's NAMESPACE/NAME/UID in Kubernetes); by default, `COTENANT_JOB_ID`.
        placement_id: instead of it, the `id` of the job's placement.
        token: bearer token of scope `place`; by default, `COTENANT_TOKEN`.
        every_s: seconds between reports, or 30 steps if these take longer.
        usage: whether to report utilisation and memory.
        transport, clock: how to send requests, and to tell the time in seconds; for tests.

    Raises:
        ValueError: no job is named.
    """

    def __init__(
        self,
        url: str,
        job_id: str | None = None,
        *,
        placement_id: str | None = None,
        token: str | None = None,
        every_s: float = 60.0,
        usage: bool = True,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        job_id = job_id or os.environ.get("COTENANT_JOB_ID")
        if not job_id and not placement_id:
            raise ValueError("no job is named: expected job_id, placement_id or COTENANT_JOB_ID")
        self._named = {"placement_id": placement_id} if placement_id else {"job_id": job_id}
        token = token or os.environ.get("COTENANT_TOKEN")
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT_S,
            transport=transport,
            verify=httpx.create_ssl_context(),
            trust_env=False,
        )
        self._every_s, self._clock = every_s, clock
        # The first steps, which compile and tune, do not count.
        self._steps, self._blocks = -_BLOCK, list[float]()
        self._window_s = self._block_s = clock()
        self._measured: SimpleQueue[list[float] | None] = SimpleQueue()
        self._usage = GpuUsage() if usage else None
        self._before: dict[str, Any] | None = None
        self._reported: dict[str, list[float]] = {}
        self._logged, self._started = "", False
        self._thread = threading.Thread(target=self._run, name="cotenant-step-times", daemon=True)

    def __enter__(self) -> Self:
        self._started = True
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._measured.put(None)
        self._thread.join(2 * _TIMEOUT_S)
        if error is not None and _is_out_of_memory(error) and (where := self._where()):
            if _some_left(self._before, where):
                self._log("a job has left the GPU; that it ran out of memory is not reported")
            else:
                self._send(where | {"out_of_memory": True})
        if self._thread.is_alive():  # with a service that takes long to answer
            return
        if self._usage is not None:
            self._usage.close()
        self._client.close()

    def done(self) -> None:
        """Say that a step has been done."""
        self._steps += 1
        if self._steps % _BLOCK:
            return
        if not self._started:
            self._log("step times are reported inside `with StepTimes(...) as steps:` only")
        now_s = self._clock()
        if self._steps:
            self._blocks.append((now_s - self._block_s) / _BLOCK)
        else:
            self._window_s = now_s
            self._measured.put([])
        self._block_s = now_s
        if now_s - self._window_s >= self._every_s and len(self._blocks) >= _LEAST_BLOCKS:
            self._measured.put(self._blocks)
            self._blocks, self._window_s = [], now_s

    def _run(self) -> None:
        self._before = self._where()
        while True:
            try:
                blocks = self._measured.get(timeout=_SAMPLE_S)
            except Empty:
                if self._usage is not None:
                    self._usage.sample()
                continue
            if blocks is None:
                return
            self._end(blocks)

    def _end(self, blocks: list[float]) -> None:
        """Report a window if the set was the same when it began, which is when the one before ended.

        The first one, of no blocks, is that of the steps that do not count.
        """
        before, self._before = self._before, self._where()
        usage = self._usage.take() if self._usage is not None else {}
        if blocks and self._before is not None and self._before == before:
            alone = len(before["of"]["jobs"]) == 1
            self._report(before, median(blocks), usage if alone else {})

    def _report(self, where: dict[str, Any], step_time_s: float, usage: dict[str, float]) -> None:
        told = self._reported.setdefault(json.dumps(where, sort_keys=True), [])
        if len(told) >= _REPORTS and 1 / _CHANGED < step_time_s / told[-1] < _CHANGED:
            return
        step = where | {"step_time_s": step_time_s}
        status = self._send(step | usage)
        if (
            status == 422 and usage
        ):  # memory may be refused, such as that of a larger card than the cluster names
            status = self._send(step)
        if status == 201:
            told.append(step_time_s)

    def _where(self) -> dict[str, Any] | None:
        """The fields of an observation that name the job's set, and the job in it; None if it is not known."""
        path, uuid = "/v1/cluster/tenants", self._usage.uuid() if self._usage is not None else visible_uuid()
        if uuid:  # which GPU of the node it is may be known to nobody else
            status, answer = self._request("PUT", path, params=self._named, json={"gpu_uuid": uuid})
        else:
            status, answer = self._request("GET", path, params=self._named)
        if status != 200:
            return None
        try:
            places = [
                {name: place[name] for name in ("of", "member", "placement_id")}
                for place in answer["tenants"]
            ]
        except (KeyError, TypeError):
            places = []
        if not places:  # perhaps of a proxy that answers everything
            self._log(f"{path}: not an answer of the service: {json.dumps(answer):.300}", path)
            return None
        if len(places) > 1:
            self._log("the job is on several GPUs; its step times are not reported")
            return None
        return places[0]

    def _send(self, observation: dict[str, Any]) -> int:
        return self._request("POST", "/v1/observations", json={"observations": [observation]})[0]

    def _request(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON of the answer; with a warning, another status than of a success and None, 0 without an answer."""
        status = 0
        try:
            response = self._client.request(method, path, **more)
            if response.is_success:
                return response.status_code, response.json()
            status = response.status_code
            kind, problem = str(status), f"{status} {response.text:.300}"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            kind = type(error).__name__
            problem = f"{kind}: {error}"
        self._log(f"{method} {path}: {problem}", f"{path} {kind}")
        return status, None

    def _log(self, message: str, kind: str = "") -> None:
        """Log a message unless it is of the last one's kind, which by default is its text."""
        kind = kind or message
        if kind != self._logged:
            self._logged = kind
            log.warning("%s", message)


def _some_left(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether a job of the set before is no longer there."""
    if before is None or before["of"]["device"] != now["of"]["device"]:
        return False
    return not Counter(before["of"]["jobs"]) <= Counter(now["of"]["jobs"])


def _is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU; that of the host is a `MemoryError`."""
    return type(error).__name__ in _OUT_OF_MEMORY or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )
