"""Pods of a Kubernetes cluster as jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError
from tests.scheduling.traces.reading import ignored, read, seconds


def pod(
    name: str, start: str, end: str | None, gpus: int, labels: dict[str, str], **spec: object
) -> dict[str, object]:
    state = {"terminated": {"startedAt": start, "finishedAt": end}} if end else {"running": {}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "vision",
            "creationTimestamp": "2024-05-01T10:00:00Z",
            "labels": labels,
        },
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}], **spec},
        "status": {"startTime": start, "containerStatuses": [{"state": state}]},
    }


def test_kubernetes(tmp_path: Path) -> None:
    gang = {"training.kubeflow.org/job-name": "big"}
    pods = [
        pod("big-0", "2024-05-01T10:01:00Z", "2024-05-01T10:11:00Z", 4, gang, priority=1000),
        pod(
            "big-1", "2024-05-01T10:02:00Z", "2024-05-01T10:12:00Z", 4, gang,
            priority=1000, activeDeadlineSeconds=3600,
        ),
        pod("one", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 1, {}, priority=0),
        pod("runs", "2024-05-01T10:01:00Z", None, 1, {}),
        pod("no-gpu", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 0, {}, priority=2_000_000_000),
        pod("launcher", "2024-05-01T10:00:00Z", None, 0, gang),
    ]  # fmt: skip
    pods[3]["status"]["phase"] = "Running"  # type: ignore[index]
    big, small = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))
    assert (big.id, big.gpus, seconds(big), big.user) == ("vision/big", 8, 660.0, "vision")
    assert (big.priority, big.deadline_s) == (2.0, 3600.0)
    assert (small.id, small.gpus, seconds(small), small.priority, small.deadline_s) == (
        "vision/one",
        1,
        60.0,
        1.0,
        None,
    )
    assert ignored(tmp_path / "pods.json") == {
        "has not ended": (1, ("Running",)),
        "requests no whole GPU": (1, ()),
    }


@pytest.mark.parametrize("label", ["jobset.sigs.k8s.io/jobset-name", "volcano.sh/job-name", "ray.io/cluster"])
def test_kubernetes_pods_of_other_controllers_are_gangs(tmp_path: Path, label: str) -> None:
    pods = [
        pod(
            f"train-{k}", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 4,
            {label: "train", "batch.kubernetes.io/job-name": f"train-{k}"} if "jobset" in label else {label: "train"},
        )
        for k in range(2)
    ]  # fmt: skip
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))
    assert (job.id, job.gpus, seconds(job)) == ("vision/train", 8, 60.0)


@pytest.mark.parametrize(
    ("spans", "gpus", "duration_s"),
    [
        ([("10:00:00", "10:01:00"), ("10:06:00", "10:08:00")], 2, 180.0),  # tried again after five minutes
        ([("10:00:00", "10:01:00"), ("10:01:00", "10:03:00")], 2, 180.0),  # within the same second
        ([("10:00:00", "10:01:00"), ("10:00:30", "10:03:00")], 4, 180.0),
        ([("10:00:00", "10:03:00"), ("10:00:00", "10:00:00"), ("10:01:00", "10:03:00")], 4, 180.0),
        ([("10:00:00", "10:04:00"), ("10:01:00", "10:02:00"), ("10:02:00", "10:03:00")], 4, 240.0),
    ],
)
def test_kubernetes_pods_tried_again_are_not_side_by_side(
    tmp_path: Path, spans: list[tuple[str, str]], gpus: int, duration_s: float
) -> None:
    label = {"batch.kubernetes.io/job-name": "train"}
    pods = [
        pod(f"train-{k}", f"2024-05-01T{start}Z", f"2024-05-01T{end}Z", 2, label)
        for k, (start, end) in enumerate(spans)
    ]
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))
    assert (job.gpus, seconds(job)) == (gpus, duration_s)
    pods.append(pod("train-again", "2024-05-01T11:00:00Z", None, 2, label))
    with pytest.raises(InputError, match="has not ended"):
        read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))


def test_kubernetes_containers_that_restarted_or_could_not_start(tmp_path: Path) -> None:
    pods = [
        pod(name, "2024-05-01T10:01:00Z", "2024-05-01T11:00:00Z", 1, {})
        for name in ("restarted", "unable", "sidecar")
    ]
    last = "2024-05-01T10:59:00Z"
    for one, started in zip(pods, (last, "1970-01-01T00:00:00Z", last), strict=True):
        one["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = started  # type: ignore[index]
    pods[0]["status"]["containerStatuses"][0]["restartCount"] = 3  # type: ignore[index]
    unable = {"state": {"terminated": {"startedAt": None, "finishedAt": "2024-05-01T10:59:00Z"}}}
    pods[2]["status"]["containerStatuses"].insert(0, unable)  # type: ignore[index]
    restarted, sidecar = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))
    assert (restarted.id, seconds(restarted)) == ("vision/restarted", 59 * 60.0)
    assert (sidecar.id, seconds(sidecar)) == ("vision/sidecar", 60.0)
    assert ignored(tmp_path / "pods.json") == {"ran for less than 1 s, or never": (1, ())}


@pytest.mark.parametrize("quantity", ["500m", "1.5", "many"])
def test_kubernetes_pods_with_a_fraction_of_a_gpu(tmp_path: Path, quantity: str) -> None:
    pods = [pod(name, "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 1, {}) for name in ("whole", "part")]
    pods[1]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = quantity  # type: ignore[index]
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": pods}))
    assert job.id == "vision/whole"
    assert list(ignored(tmp_path / "pods.json")) == ["does not request a whole number of GPUs"]


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-3g.20gb",
        "nvidia.com/mig-1g.10gb.me",
        "nvidia.com/mig-1g.24gb-me",
        "nvidia.com/mig-1g.24gb.gfx",
        "nvidia.com/mig-1c.3g.20gb",
        "amd.com/gpu",
    ],
)
def test_kubernetes_slices_and_shared_gpus_count_as_one(tmp_path: Path, resource: str) -> None:
    part: Any = pod("part", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 0, {})
    part["spec"]["containers"][0]["resources"]["limits"] = {
        resource: "1",
        "cpu": "8",
        "example.com/gpus": "3",
    }
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": [part]}))
    assert (job.id, job.gpus) == ("vision/part", 1)


@pytest.mark.parametrize(
    ("own", "before", "policy", "gpus"),
    [(0, 1, None, 1), (2, 1, None, 2), (1, 4, None, 4), (2, 1, "Always", 3)],
)
def test_kubernetes_init_containers_run_before_the_others_and_sidecars_beside_them(
    tmp_path: Path, own: int, before: int, policy: str | None, gpus: int
) -> None:
    first = {"resources": {"limits": {"nvidia.com/gpu": str(before)}}, "restartPolicy": policy}
    one = pod("one", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", own, {}, initContainers=[first])
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": [one]}))
    assert job.gpus == gpus


@pytest.mark.parametrize(("changed", "length_s"), [(None, 60.0), ("2024-05-01T10:00:40Z", 90.0)])
def test_kubernetes_evicted_pods_of_a_job_do_not_leave_it_open(
    tmp_path: Path, changed: str | None, length_s: float
) -> None:
    label = {"job-name": "again"}
    evicted = pod("again-0", "2024-05-01T10:00:10Z", None, 2, label)
    status = {"phase": "Failed", "reason": "Evicted", "startTime": "2024-05-01T10:00:10Z"}
    if changed:
        status |= {"conditions": [{"type": "DisruptionTarget", "lastTransitionTime": changed}]}
    evicted = {**evicted, "status": status}
    tried = pod("again-1", "2024-05-01T10:01:00Z", "2024-05-01T10:02:00Z", 2, label)
    (job,) = read(tmp_path / "pods.json", json.dumps({"kind": "List", "items": [evicted, tried]}))
    assert (job.gpus, seconds(job)) == (2, length_s)


def test_kubernetes_events_supply_times_missing_in_the_status(tmp_path: Path) -> None:
    about = {"kind": "Pod", "namespace": "vision", "name": "runs"}
    events = [
        {
            "kind": "Event",
            "involvedObject": about,
            "reason": "Started",
            "firstTimestamp": "2024-05-01T10:01:30Z",
        },
        {
            "kind": "Event",
            "regarding": about,
            "reason": "Killing",
            "eventTime": "2024-05-01T10:03:30.000000Z",
        },
    ]
    pods = [pod("runs", "2024-05-01T10:01:00Z", None, 2, {})]
    (job,) = read(tmp_path / "both.json", json.dumps({"kind": "List", "items": [*pods, *events]}))
    assert (job.id, job.gpus, seconds(job)) == ("vision/runs", 2, 120.0)
    with pytest.raises(InputError, match="events without pods"):
        read(tmp_path / "events.json", json.dumps({"kind": "EventList", "items": events}))
    pods[0]["status"]["phase"] = "Running"  # type: ignore[index]  # its liveness probe failed: it was started again
    with pytest.raises(InputError, match=r"has not ended.*Running"):
        read(tmp_path / "both.json", json.dumps({"kind": "List", "items": [*pods, *events]}))
