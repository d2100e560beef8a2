"""What a pod's containers request of GPUs, and what its annotations state."""

from __future__ import annotations

from typing import Any

import pytest

from profiling.errors import InputError
from scheduling.clusters.importers.pods import gpu_request, read_job


def container(resource: str, count: str, **fields: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {resource: count}}, **fields}


@pytest.mark.parametrize(
    ("containers", "before", "requested"),
    [
        ([container("nvidia.com/gpu", "2")], [container("nvidia.com/gpu", "1")] * 3, (2, None)),
        ([{"name": "c"}], [container("nvidia.com/gpu", "2")], (2, None)),
        (
            [container("nvidia.com/gpu", "2"), container("nvidia.com/gpu", "1")],
            [container("nvidia.com/gpu", "1", restartPolicy="Always"), container("nvidia.com/gpu", "3")],
            (4, None),
        ),
        ([{"name": "c"}], [container("nvidia.com/mig-3g.20gb", "1")], (1, "3g.20gb")),
        (  # The init container runs beside the sidecar that was started before it ...
            [container("nvidia.com/gpu", "1")],
            [container("nvidia.com/gpu", "1", restartPolicy="Always"), container("nvidia.com/gpu", "2")],
            (3, None),
        ),
        (  # ... but not beside one that is started after it.
            [container("nvidia.com/gpu", "1")],
            [container("nvidia.com/gpu", "2"), container("nvidia.com/gpu", "1", restartPolicy="Always")],
            (2, None),
        ),
        ([container("amd.com/gpu", "2")], [], (2, None)),
        ([container("nvidia.com/gpu.shared", "2")], [], (1, None)),
        ([container("nvidia.com/gpu.shared", "2"), container("nvidia.com/gpu.shared", "1")], [], (1, None)),
        ([container("nvidia.com/mig-3g.20gb.shared", "3")], [], (1, "3g.20gb")),
        ([container("nvidia.com/mig-1g.24gb.me.all", "1")], [], (1, "1g.24gb")),
        ([container("nvidia.com/mig-1g.24gb-me", "1")], [], (1, "1g.24gb")),
    ],
)
def test_init_containers_and_sidecars_request_gpus_too(
    containers: list[Any], before: list[Any], requested: tuple[int, str | None]
) -> None:
    """As in the scheduler: the sum of what runs together, or the most that runs before it."""
    assert gpu_request({"spec": {"containers": containers, "initContainers": before}}) == requested


def test_annotations_are_listed_by_name() -> None:
    """Not in the order of a set, which changes from run to run."""
    annotations = {"cotenant.dev/workload": "resnet18-cifar", "cotenant.dev/zzz": "1"}
    with pytest.raises(InputError) as told:
        read_job({"metadata": {"annotations": annotations}})
    listed = (told.value.expected or "").removeprefix("one of ").split(", ")
    assert listed[0] == "activation-checkpointing"
    assert listed == sorted(listed)
