"""Clusters read from the output of nvidia-smi."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from profiling.errors import InputError
from scheduling.clusters.importers import import_cluster
from scheduling.core.snapshot import ClusterSnapshot

CSV = """index, name, memory.total [MiB], mig.mode.current
0, NVIDIA A100-SXM4-40GB, 40960 MiB, Disabled
1, NVIDIA A100-SXM4-80GB, 81920 MiB, Enabled
2, NVIDIA GeForce RTX 3090, 24576 MiB, [N/A]
"""
LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-2)
GPU 1: Tesla V100-SXM2-32GB (UUID: GPU-2)
"""


def gpu_rows(cluster: ClusterSnapshot) -> list[tuple[str, str, str, str]]:
    return [(node.name, gpu.id, gpu.device, gpu.sharing) for node, gpu in cluster.gpus()]


OF_SLICES = (
    (1, 0),
    (1, 1),
    (1, 2),
    (2, 0),
    (2, 1),
    (5, 0),
)  # GPU and compute instances, as older drivers name them


def slices(profiles: Sequence[str], uuids: Sequence[str]) -> ClusterSnapshot:
    lines = [
        f"  MIG {profile:<12} Device {number:>2}: (UUID: {uuid})"
        for number, (profile, uuid) in enumerate(zip(profiles, uuids, strict=True))
    ]
    return import_cluster("nvidia-smi", "\n".join(["GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1b)", *lines]))


@pytest.mark.parametrize(
    "uuids", [[f"MIG-{k}" for k in range(6)], [f"MIG-GPU-1b/{gpu}/{compute}" for gpu, compute in OF_SLICES]]
)
def test_compute_instances_count_as_the_slice_that_they_share(uuids: list[str]) -> None:
    profiles = ("1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "1c.3g.20gb", "2c.3g.20gb", "1g.5gb")
    assert [row[1:] for row in gpu_rows(slices(profiles, uuids))] == [
        ("0.0", "a100:mig=3g", "mps"),
        ("0.3", "a100:mig=3g", "mps"),
        ("0.5", "a100:mig=1g", "time-slice"),
    ]


def test_partly_used_slices_are_told_apart_where_the_driver_says() -> None:
    cluster = slices(["1c.3g.20gb"] * 2, [f"MIG-GPU-1b/{k + 1}/0" for k in range(2)])
    assert [row[1] for row in gpu_rows(cluster)] == ["0.0", "0.1"]


def test_a_column_of_nvidia_smi_that_is_there_twice() -> None:
    with pytest.raises(InputError, match=r"a column twice: .* got name"):
        import_cluster(
            "nvidia-smi", "index, name, memory.total [MiB], name\n0, Tesla T4, 15360 MiB, Tesla T4\n"
        )


def test_nvidia_smi() -> None:
    assert gpu_rows(import_cluster("nvidia-smi", CSV, node="here")) == [
        ("here", "0", "a100", "time-slice"),
        ("here", "1", "a100-80gb", "mig"),
        ("here", "2", "rtx-3090", "time-slice"),
    ]
    assert [row[1:3] for row in gpu_rows(import_cluster("nvidia-smi", LISTED))] == [
        ("0.0", "a100:mig=3g"),
        ("0.1", "a100:mig=1g"),
        ("1", "v100-32gb"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        "Unable to determine the device handle for GPU2: 0000:81:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 0000:81:00.0: GPU is lost.  Reboot the system",
        "WARNING: infoROM is corrupted at gpu 0000:41:00.0",
    ],
)
def test_what_nvidia_smi_says_of_a_broken_gpu_is_no_gpu(message: str) -> None:
    for text in (CSV, LISTED):
        whole = gpu_rows(import_cluster("nvidia-smi", text))
        for told in (f"{message}\n{text}", f"{text}{message}\n"):
            assert gpu_rows(import_cluster("nvidia-smi", told)) == whole


def test_profiles_that_differ_in_media_engines_and_graphics_are_the_same_slice() -> None:
    listed = "GPU 0: NVIDIA RTX PRO 6000 Blackwell Workstation Edition (UUID: GPU-1b)\n" + "".join(
        f"  MIG {profile:<15} Device  {i}: (UUID: MIG-{i})\n"
        for i, profile in enumerate(("1g.24gb+gfx", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb"))
    )
    devices = [row[2] for row in gpu_rows(import_cluster("nvidia-smi", listed))]
    assert devices == ["rtx-pro-6000:mig=1g"] * 4
