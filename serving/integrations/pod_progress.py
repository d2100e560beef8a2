"""How many iterations Kubernetes pods have left, by how long they have run and how fast the service says they are.

One that states none has an hour's worth left, however long it has run, as have jobs of unknown length in Slurm and Ray
(docs/scheduling.md says why).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from profiling.errors import InputError, UnavailableError
from scheduling.clusters.importers.pods import PodJob, field, job_id_of, read_job
from scheduling.core.limits import unknown_steps
from scheduling.traces.logged import stamp_s
from serving.integrations.ask import ServiceClient

_LEAST_LEFT_RATIO = 0.01  # of a pod that runs longer than predicted


@dataclass(frozen=True, slots=True)
class _Done:
    """Iterations that a pod has done from `start_s` to `until_s`."""

    start_s: float
    until_s: float
    iterations: float = 0.0


class PodProgress:
    """Counts the iterations of pods that state how many they do.

    Between two looks a pod does as many as its predicted step time allows beside the tenants that its GPU has now; a
    pod seen for the first time has run like this from the start of its containers. One whose containers start again
    counts from there.

    Args:
        client: asked for step times, once for each set of tenants until `forget_steps`.
        clock: seconds since 1970.
    """

    def __init__(self, client: ServiceClient, clock: Callable[[], float] = time.time) -> None:
        self._client, self._clock = client, clock
        self._steps: dict[str, list[float] | None] = {}
        self._responds = True
        self._done: dict[str, _Done] = {}

    def forget_steps(self) -> None:
        """Ask again for step times, because the service may have learned."""
        self._steps.clear()

    def subtract(self, cluster: dict[str, Any], pods: Iterable[dict[str, Any]]) -> None:
        """Lower `iterations_left` of the tenants in a body of `PUT /v1/cluster`, to no less than 1 %.

        Those of unknown length get an hour's worth alone on their GPU. Pods whose step time the service does not know
        keep what they had.
        """
        now_s = self._clock()
        self._responds = True
        starts, open_ended = dict[str, float](), set[str]()
        for pod in pods:
            job = _job_of(pod)
            if job is not None and job.iterations is None:
                open_ended.add(job_id_of(pod))
            elif job is not None and (start_s := _start_s(pod)) is not None:
                starts[job_id_of(pod)] = start_s
        steps = self._step_times(cluster, set(starts))
        before, self._done = self._done, {}
        for name, start_s in starts.items():
            done = before.get(name, _Done(start_s, start_s))
            if done.start_s != start_s:
                done = _Done(start_s, start_s)
            if name in steps:
                more = max(now_s - done.until_s, 0.0) / steps[name]
                done = _Done(start_s, max(now_s, done.until_s), done.iterations + more)
            self._done[name] = done
        for gpu in _gpus(cluster):
            for tenant in gpu["tenants"]:
                if tenant.get("job_id") in self._done:
                    total = tenant["iterations_left"]
                    left = total - self._done[tenant["job_id"]].iterations
                    tenant["iterations_left"] = max(left, _LEAST_LEFT_RATIO * total)
                elif tenant.get("job_id") in open_ended and (alone := self._asked(gpu, [tenant["job"]])):
                    tenant["iterations_left"] = unknown_steps(alone[0])

    def _step_times(self, cluster: dict[str, Any], names: Collection[str]) -> dict[str, float]:
        """Seconds per step of the tenants with these names, as far as the service knows; a gang is as fast as its slowest."""
        steps: dict[str, float] = {}
        for gpu in _gpus(cluster):
            own = [tenant.get("job_id") for tenant in gpu["tenants"]]
            if not any(name in names for name in own):
                continue
            known = self._asked(gpu, [tenant["job"] for tenant in gpu["tenants"]])
            for name, step_s in zip(own, known or (), strict=False):
                steps[name] = max(step_s, steps.get(name, 0.0))
        return steps

    def _asked(self, gpu: dict[str, Any], jobs: list[Any]) -> list[float] | None:
        """Seconds per step of jobs that run together on a GPU; None if the service does not know."""
        key = json.dumps([gpu["device"], gpu["sharing"], jobs], sort_keys=True)
        if key not in self._steps and self._responds:
            try:
                self._steps[key] = self._client.step_times_s(gpu["device"], gpu["sharing"], jobs)
            except UnavailableError:  # each further question in this look might wait for an answer
                self._responds = False
        return self._steps.get(key)


def without_progress(cluster: dict[str, Any]) -> dict[str, Any]:
    """A body of `PUT /v1/cluster` without `iterations_left`, by which two looks are compared."""
    nodes = [
        {
            **node,
            "gpus": [
                {**gpu, "tenants": [{**tenant, "iterations_left": None} for tenant in gpu["tenants"]]}
                for gpu in node["gpus"]
            ],
        }
        for node in cluster["nodes"]
    ]
    return {**cluster, "nodes": nodes}


def _gpus(cluster: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (gpu for node in cluster["nodes"] for gpu in node["gpus"])


def _job_of(pod: dict[str, Any]) -> PodJob | None:
    """The job of a pod; None if it has none, or its annotations have a mistake."""
    try:
        return read_job(pod)
    except InputError:
        return None


def _start_s(pod: dict[str, Any]) -> float | None:
    """When the last container of a running pod started, in seconds since 1970: the job may be any of them.

    None if that is not known.
    """
    status = field(pod, "status")
    if field(status, "phase") != "Running":
        return None
    containers = field(status, "containerStatuses") or []
    running = [field(field(container, "state"), "running") for container in containers]
    starts = [stamp_s(field(state, "startedAt")) for state in running if state]
    start_s = max(starts, default=math.nan) if containers else stamp_s(field(status, "startTime"))
    return start_s if math.isfinite(start_s) else None
