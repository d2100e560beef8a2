"""The training job that a Kubernetes pod's annotations describe; field names in any letter case, as in Go."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from profiling.devices.mig import VARIANT
from profiling.errors import InputError
from profiling.names import one_of
from profiling.workload import JOB_OPTIONS, Workload, option_value
from scheduling.placement.ranking import OBJECTIVES

PREFIX = "cotenant.dev/"
# The `mixed` MIG strategy of NVIDIA's device plugin names slices so. A GPU or slice that is time-sliced or shared by MPS
# can be renamed to `.shared`.
_RESOURCE = re.compile(rf"(?:nvidia\.com/(?:gpu|mig-(\d+g\.\d+gb){VARIANT})(\.shared)?|amd\.com/gpu)")
_ANY_SLICE_RESOURCE = re.compile(r"nvidia\.com/mig-(?:\d+c\.)?(\d+g\.\d+gb)?.*")
_COUNT = re.compile(r"[0-9]{1,5}")
_OURS = ("iterations", "max_slowdown", "objective")
_Kind = tuple[str | None, bool]  # MIG profile, or None for a GPU; whether it is a share


@dataclass(frozen=True, slots=True)
class PodJob:
    """The training job that a pod's annotations describe.

    Attributes:
        gpus: GPUs, or slices of one kind, that its containers request, at least 1.
        mig_profile: the kind of slice, e.g. `3g.20gb`; None for GPUs.
    """

    workload: Workload
    iterations: float | None
    max_slowdown: float
    objective: str
    gpus: int
    mig_profile: str | None = None


def field(value: Any, name: str) -> Any:
    """The member `name` of a JSON object, in any letter case; None if missing."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    folded = name.lower()
    return next((v for k, v in value.items() if isinstance(k, str) and k.lower() == folded), None)


def name_of(pod: dict[str, Any]) -> str:
    """Namespace and name, in at most 200 characters."""
    metadata = field(pod, "metadata")
    return f"{field(metadata, 'namespace') or 'default'}/{field(metadata, 'name')}"[:200]


def job_id_of(pod: dict[str, Any]) -> str:
    """Namespace, name and, if the pod has one, UID: a later pod of the same name may get another GPU.

    In at most the 200 characters of a tenant's `job_id`.
    """
    uid = field(field(pod, "metadata"), "uid")
    return f"{name_of(pod)}/{uid}"[:200] if uid else name_of(pod)


def read_job(pod: dict[str, Any]) -> PodJob | None:
    """The job of a pod; None if it has no `cotenant.dev/workload` and so is not ours.

    `cotenant.dev/workload` holds a SPEC; other annotations are SPEC keys with hyphens, such as
    `cotenant.dev/batch-size`, and `iterations`, `max-slowdown`, `objective`.

    Raises:
        InputError: unknown annotation or wrong value; slices of several kinds, GPUs together with slices, or parts
            of a slice; not a pod.
    """
    annotations = field(field(pod, "metadata"), "annotations") or {}
    if not isinstance(annotations, dict):
        raise _no_pod("metadata.annotations", "an object", annotations)
    own = {
        key.removeprefix(PREFIX).replace("-", "_"): str(value)
        for key, value in annotations.items()
        if isinstance(key, str) and key.startswith(PREFIX)
    }
    spec = own.pop("workload", None)
    if spec is None:
        return None
    values = Workload.parse(spec).to_mapping()
    ours: dict[str, float] = {}
    objective = "jct"
    for key, text in own.items():
        if key in JOB_OPTIONS:
            values[key] = option_value(key, text, f"annotation {PREFIX}{key.replace('_', '-')}")
        elif key == "objective":
            if text not in OBJECTIVES:
                raise InputError(
                    f"annotation {PREFIX}objective",
                    expected=one_of(text[:80], OBJECTIVES),
                    got=repr(text[:80]),
                )
            objective = text
        elif key in _OURS:
            ours[key] = _number(key, text)
        else:
            known = sorted(name.replace("_", "-") for name in (*JOB_OPTIONS, *_OURS))
            name = key.replace("_", "-")[:80]
            raise InputError(f"unknown annotation {PREFIX}{name}", expected=one_of(name, known), got=name)
    gpus, mig_profile = gpu_request(pod)
    return PodJob(
        Workload.from_mapping(values),
        ours.get("iterations"),
        ours.get("max_slowdown", 2.0),
        objective,
        gpus,
        mig_profile,
    )


def gpu_request(pod: dict[str, Any]) -> tuple[int, str | None]:
    """Total GPUs or MIG slices that the containers of `pod` request, at least 1, and the slices' profile.

    Any number of shares (`nvidia.com/gpu.shared`) is one GPU: they give a pod no more of it, and no second one.

    Raises:
        InputError: slices of several kinds, GPUs together with slices, or parts of a slice; containers are not a
            list.
    """
    spec = field(pod, "spec")
    asked, before, sidecars = Counter[_Kind](), Counter[_Kind](), Counter[_Kind]()
    for container in _containers(spec, "containers"):
        asked.update(_requested(container))
    for container in _containers(spec, "initContainers"):
        requested = _requested(container)
        if field(container, "restartPolicy") == "Always":  # a sidecar, which runs beside all that start later
            sidecars.update(requested)
        else:  # they run one by one before the others, on the same GPUs
            before |= sidecars + requested
    kinds = (asked + sidecars) | before
    profiles = {profile for profile, _ in kinds}
    if len(profiles) > 1:
        raise InputError(
            "pod requests several kinds of GPU",
            expected="nvidia.com/gpu, or nvidia.com/mig-PROFILE of one profile",
            got=", ".join(sorted(profile or "GPU" for profile in profiles)),
        )
    profile = next(iter(profiles), None)
    return max(1, kinds[profile, False]), profile


def _containers(spec: Any, name: str) -> list[Any]:
    containers = field(spec, name) or []
    if not isinstance(containers, list):
        raise _no_pod(f"spec.{name}", "a list", containers)
    return containers


def _requested(container: Any) -> Counter[_Kind]:
    """GPUs and MIG slices that a container requests.

    Raises:
        InputError: another kind of slice, which would otherwise count as no request and so as a whole card.
    """
    requested = Counter[_Kind]()
    limits = field(field(container, "resources"), "limits") or {}
    for name, value in limits.items() if isinstance(limits, dict) else ():
        if not isinstance(name, str) or not _COUNT.fullmatch(str(value)):
            continue
        if match := _RESOURCE.fullmatch(name):
            requested[match[1], match[2] is not None] += int(value)
        elif int(value) and (other := _ANY_SLICE_RESOURCE.fullmatch(name)):
            raise InputError(
                "pod requests another kind of MIG slice",
                expected=f"a whole slice such as nvidia.com/mig-{other[1] or '3g.20gb'}",
                got=name[:80],
                hint="compute instances (1c.3g.20gb) share a slice's memory and cannot be placed one by one",
            )
    return requested


def _no_pod(where: str, expected: str, got: Any) -> InputError:
    return InputError(f"Pod has another {where}", expected=expected, got=repr(got)[:80])


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"annotation {PREFIX}{key.replace('_', '-')} is not a number",
            expected="a number",
            got=repr(text[:80]),
        ) from None
