"""Utilisation and memory of a training job's GPU, behind NVML's real bindings."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from serving.integrations.gpu_usage import GpuUsage, visible_uuid
from tests.profiling.measure.fake_nvml import NO_PERMISSION, NOT_SUPPORTED, FakeNvml, install

GIB = 1 << 30


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return install(monkeypatch, FakeNvml())


def taken(library: FakeNvml, *, samples: int = 3) -> dict[str, float]:
    usage = GpuUsage()
    for _ in range(samples):
        usage.sample()
    result = usage.take()
    assert usage.take() == {}
    usage.close()
    assert library.opened == 0
    return result


def uuid() -> str:
    usage = GpuUsage()
    found = usage.uuid()
    usage.close()
    return found


def test_the_memory_is_that_of_the_process(library: FakeNvml) -> None:
    library.processes = [(4711, 3 * GIB), (os.getpid(), 2 * GIB)]
    assert taken(library) == {"utilization_ratio": pytest.approx(0.8), "memory_bytes": 2 * GIB}
    assert library.asked == {0}


@pytest.mark.parametrize("processes", [[], [(4711, 3 * GIB)]])
def test_or_all_that_is_in_use_if_processes_are_hidden(
    library: FakeNvml, processes: list[tuple[int, int]]
) -> None:
    library.processes = processes
    assert taken(library)["memory_bytes"] == 4 * GIB


def test_nothing_is_taken_without_a_sample(library: FakeNvml) -> None:
    assert taken(library, samples=0) == {}


@pytest.mark.parametrize("visible", ["1", "1,0"])
def test_the_first_visible_gpu(library: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "utilization_ratio" in taken(library)
    assert library.asked == {1}


def test_the_gpu_that_torch_uses(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def by_uuid(uuid: Any, handle: object) -> int:
        asked.append(uuid.value)
        return library._nvmlDeviceGetHandleByIndex_v2(SimpleNamespace(value=1), handle)

    monkeypatch.setattr(library, "nvmlDeviceGetHandleByUUID", by_uuid, raising=False)
    reserved_bytes = [0, 0]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,  # as in any thread but the loop's
        device_count=lambda: 2,
        memory_reserved=lambda device: reserved_bytes[device],
        get_device_properties=lambda device: SimpleNamespace(
            name="NVIDIA H200", uuid=("aaaa1111", "bbbb2222")[device]
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa1111")
    assert taken(library) == {}, "nothing is on a GPU yet"
    assert uuid() == visible_uuid() == ""
    reserved_bytes[1] = GIB
    assert "utilization_ratio" in taken(library)
    assert (asked[0], library.asked) == (b"GPU-bbbb2222", {1})
    assert uuid() == visible_uuid() == "bbbb2222"


def test_a_slice_is_not_taken_for_its_card(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_reserved=lambda _: GIB,
        get_device_properties=lambda _: SimpleNamespace(uuid="aaaa1111"),  # as CUDA 11 answers for all slices
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "MIG-dddd4444")
    assert uuid() == visible_uuid() == "dddd4444"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({}, "aaaa1111"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "bbbb2222"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc3333"}, "cccc3333"),
        ({"NVIDIA_VISIBLE_DEVICES": "MIG-dddd4444"}, "dddd4444"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "aaaa1111"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-cccc3333,GPU-bbbb2222"}, "aaaa1111"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, ""),
    ],
)
def test_the_uuid_of_the_gpu(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: dict[str, str], expected: str
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name, value in visible.items():
        monkeypatch.setenv(name, value)
    assert uuid() == expected


class OfMig(FakeNvml):
    """The first card is partitioned; of its slices, the process sees those in places `seen`, in the second card's name."""

    def __init__(self, *seen: int) -> None:
        super().__init__()
        self.seen = seen

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, _pending: Any) -> int:
        current._obj.value = int(self._number(handle) == 0)
        return 0

    def _nvmlDeviceGetHandleByUUID(self, _uuid: Any, handle: Any) -> int:
        return self._nvmlDeviceGetHandleByIndex_v2(SimpleNamespace(value=0), handle)

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        count._obj.value = 7
        return 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: Any, place: Any, out: Any) -> int:
        if place.value not in self.seen:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        return self._nvmlDeviceGetHandleByIndex_v2(SimpleNamespace(value=1), out)


@pytest.mark.parametrize("with_torch", [False, True])
def test_the_uuid_of_a_slice(monkeypatch: pytest.MonkeyPatch, with_torch: bool) -> None:
    """That of the card would be that of its other slices' jobs, too; torch may give that."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if with_torch:
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            memory_reserved=lambda _: GIB,
            get_device_properties=lambda _: SimpleNamespace(name="NVIDIA H200 MIG 1g.18gb", uuid="aaaa1111"),
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    for seen, expected in (((3,), "bbbb2222"), ((3, 4), ""), ((), "")):
        install(monkeypatch, OfMig(*seen))
        assert uuid() == expected
    assert visible_uuid() == ""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "MIG-dddd4444")
    assert uuid() == visible_uuid() == "dddd4444"


def test_the_uuid_of_a_card_without_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(refuse={"nvmlDeviceGetMigMode": NOT_SUPPORTED}))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert uuid() == "aaaa1111"


def test_what_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    under_mig = FakeNvml(refuse={"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED})
    assert taken(install(monkeypatch, under_mig)) == {"memory_bytes": 4 * GIB}
    hidden = FakeNvml(refuse={"nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION})
    assert taken(install(monkeypatch, hidden)) == {"utilization_ratio": pytest.approx(0.8)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert taken(install(monkeypatch, FakeNvml())) != {}, "the variable is unset"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert taken(FakeNvml()) == {}


def test_older_bindings_tell_no_memory(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, "nvmlMemory_v2")
    assert taken(library) == {"utilization_ratio": pytest.approx(0.8)}


def test_without_a_driver() -> None:
    usage = GpuUsage()
    usage.sample()
    assert usage.take() == {}
    usage.close()
