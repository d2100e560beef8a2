"""Jobs of a Kubernetes cluster, from pods: the output of `kubectl get pods -A -o json`.

That of `kubectl get pods,events -A -o json` is read, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from math import isfinite
from typing import Any

from profiling.devices.mig import VARIANT
from profiling.errors import InputError
from scheduling.traces.logged import LoggedJob, stamp_s

# From the outermost: a JobSet has several Jobs.
_GANG_LABELS = (
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "volcano.sh/job-name", "ray.io/cluster",
    "batch.kubernetes.io/job-name", "job-name",
)  # fmt: skip
# A card shared by time slicing, and a slice shared by several pods, are renamed on request (`gpu.shared`); a compute
# instance is a part of a slice (`mig-1c.3g.20gb`).
_GPU = re.compile(rf"/(gpu|mig-(\d+c\.)?\d+g\.\d+gb{VARIANT})(\.shared)?$")
# Events that end a pod; `Started` begins it.
_ENDS = ("Killing", "Completed", "Evicted", "Preempted", "Failed")
# Phases of pods that have not ended.
_ACTIVE = ("Pending", "Running")
# Phases of pods that have.
_OVER = ("Failed", "Succeeded")
_Events = dict[tuple[str, str], list[dict[str, Any]]]


def is_pod_list(body: Any) -> bool:
    """Whether a JSON document is a list of pods or of events."""
    return isinstance(body, dict) and body.get("kind") in ("List", "PodList", "EventList") and "items" in body


def read_pods(body: dict[str, Any]) -> list[LoggedJob]:
    """One row per job: pods with the same job label in a namespace are a gang; other pods are separate jobs.

    In a gang with GPUs, pods without GPUs (a launcher) do not count. A job has the most GPUs that its pods had at
    one time, because a pod that is tried again takes the place of the one that failed. It lasts as long as any of
    them ran; waiting between attempts does not count. Times are those of the containers, or of the pod's events if
    its status has none; pods that did not end, by their phase if they have one, have no duration. The user is the
    namespace, the deadline `activeDeadlineSeconds`, the weight by `priority`.

    Raises:
        InputError: only events, which do not state how many GPUs a pod requests.
    """
    events: _Events = defaultdict(list)
    for item in body["items"]:
        about = item.get("involvedObject") or item.get("regarding") if isinstance(item, dict) else None
        if about and about.get("kind") == "Pod":
            events[about.get("namespace", "default"), about.get("name", "")].append(item)
    if events and not any(i.get("kind", "Pod") == "Pod" and "spec" in i for i in body["items"]):
        raise InputError(
            "events without pods",
            expected="`kubectl get pods,events -A -o json`",
            hint="events do not state how many GPUs a pod requests",
        )
    gangs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for pod in body["items"]:
        if isinstance(pod, dict) and pod.get("kind", "Pod") == "Pod" and "metadata" in pod:
            meta = pod["metadata"]
            labels = meta.get("labels") or {}
            name = next((labels[key] for key in _GANG_LABELS if key in labels), meta["name"])
            gangs[meta.get("namespace", "default"), name].append(pod)
    with_gpus = {name: own for name, pods in gangs.items() if (own := [p for p in pods if _gpus(p) != 0])}
    return [
        _job(f"{space}/{name}", space, with_gpus.get((space, name), pods), events)
        for (space, name), pods in gangs.items()
    ]


def _priority(pod: dict[str, Any]) -> float:
    return float((pod.get("spec") or {}).get("priority") or 0)


def _job(name: str, space: str, pods: list[dict[str, Any]], events: _Events) -> LoggedJob:
    spans = [_span_s(pod, events.get((space, pod["metadata"]["name"]), [])) for pod in pods]
    deadlines = [d for pod in pods if (d := (pod.get("spec") or {}).get("activeDeadlineSeconds"))]
    running = (pod for pod, (_, stop) in zip(pods, spans, strict=True) if stop != stop)
    duration_s, gpus = _together(spans, [_gpus(pod) for pod in pods])
    return LoggedJob(
        name,
        min(stamp_s(pod["metadata"].get("creationTimestamp")) for pod in pods),
        duration_s,
        gpus,
        space,
        deadline_s=float(min(deadlines)) if deadlines else None,
        state=next(((pod.get("status") or {}).get("phase", "") for pod in running), ""),
        level=max(_priority(pod) for pod in pods),
    )


def _together(spans: Sequence[tuple[float, float]], gpus: Sequence[float]) -> tuple[float, float]:
    """Seconds in which any pod ran, and the most GPUs at one time.

    If a time is unknown, NaN seconds and the GPUs of all pods.
    """
    if not isfinite(sum(start + stop for start, stop in spans)) or not isfinite(sum(gpus)):
        return sum(stop - start for start, stop in spans), sum(gpus)
    changes = [(start, 1, own) for (start, _), own in zip(spans, gpus, strict=True)]
    changes += [(stop, -1, -own) for (_, stop), own in zip(spans, gpus, strict=True)]
    duration_s = most = now = 0.0
    running, since_s = 0, 0.0
    for at_s, pods, own in sorted(changes):  # at one time, ends before starts
        duration_s += at_s - since_s if running > 0 else 0.0
        running, now, since_s = running + pods, now + own, at_s
        most = max(most, now)
    return duration_s, most


def _gpus(pod: dict[str, Any]) -> float:
    """GPUs that a pod holds: those of all containers, or of its largest init container if that has more.

    Init containers run one by one before the others on the same GPUs, except sidecars (`restartPolicy: Always`),
    which run beside them.
    """
    spec = pod.get("spec") or {}
    before = spec.get("initContainers") or []
    sidecars = [c for c in before if c.get("restartPolicy") == "Always"]
    together = sum(map(_requested, [*spec.get("containers", []), *sidecars]))
    return max([together, *(_requested(c) for c in before if c not in sidecars)])


def _requested(container: dict[str, Any]) -> float:
    """GPUs of a container: resources whose name ends in `/gpu` (nvidia.com, amd.com), and MIG slices as one each."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return sum(_quantity(count) for name, count in asked.items() if _GPU.search(name))


def _quantity(text: object) -> float:
    """A number as Kubernetes writes it, `2` or `500m`; NaN for anything else."""
    number = str(text)
    try:
        return float(number[:-1]) / 1000 if number.endswith("m") else float(number)
    except ValueError:
        return float("nan")


def _span_s(pod: dict[str, Any], events: list[dict[str, Any]]) -> tuple[float, float]:
    """First start and last end of the pod's containers, or by its events; the end is NaN while one runs.

    A pod whose containers were restarted begins when its node took it, because it has held its GPUs since and the
    status has the last run only. One whose containers could not start has no length, nor has an evicted one whose
    status says no more.
    """
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    ended = [(s.get("state") or {}).get("terminated") for s in containers]
    nan = float("nan")
    if not ended or not all(ended):
        starts = [_event_s(e, "firstTimestamp") for e in events if e.get("reason") == "Started"]
        stops = [_event_s(e, "lastTimestamp") for e in events if e.get("reason") in _ENDS]
        if status.get("phase") in _ACTIVE:
            stops = []  # a container that failed its probe was killed and started again
        start = min(starts) if starts else stamp_s(status.get("startTime"))
        if not stops and not containers and status.get("phase") in _OVER:
            # Evicted: its last change of state, if it is stated.
            changes = [stamp_s(c.get("lastTransitionTime")) for c in status.get("conditions") or []]
            stops = [max([start, *filter(isfinite, changes)])]
        return start, max(stops) if stops else nan
    starts = [stamp_s(e.get("startedAt")) for e in ended if e]
    if any(s.get("restartCount") for s in containers):
        starts.append(stamp_s(status.get("startTime")))
    stops = [stamp_s(e.get("finishedAt")) for e in ended if e]
    stop = max(stops) if isfinite(sum(stops)) else nan
    return min((at for at in starts if at > 0), default=stop), stop  # containerd writes 1970 for no start


def _event_s(event: dict[str, Any], stamp: str) -> float:
    """Time of an event; newer ones only have `eventTime`."""
    return stamp_s(event.get(stamp) or event.get("eventTime"))
