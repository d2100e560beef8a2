"""GPU samples through NVML's real bindings over a Python library, also without functions or privileges."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pynvml
import pytest

from profiling.devices.discovery import discover_gpus, visible_gpu
from profiling.errors import UnavailableError
from profiling.measure.device_usage import UsageMeter
from profiling.measure.environment import _GPU_VARIABLES, describe_environment, device_name
from profiling.measure.nvml import GPM_LEAST_S, DeviceUsage, NvmlSampler
from profiling.measure.run import _name_slices
from profiling.measure.settings import MeasureSettings
from profiling.measure.sharing import MigSlice, mig_slices, sharing_in_force
from tests.profiling.measure.fake_nvml import NO_PERMISSION, NOT_SUPPORTED, FakeMig, FakeNvml, install
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def sampled(sampler: NvmlSampler, windows: int = 1) -> DeviceUsage:
    for _ in range(windows):
        sampler.begin()
        until(lambda: len(sampler._series.get("power_w", [])) >= 3, "three samples")
        time.sleep(GPM_LEAST_S)
        usage = sampler.end()
    sampler.close()
    return usage


def test_every_reading_in_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, FakeNvml())
    sampler = NvmlSampler(interval_s=0.01)
    usage = sampled(sampler, windows=2)
    assert sampler.notes == []
    assert usage.samples > 1
    assert usage.utilization_ratio == pytest.approx(0.8)
    assert usage.memory_bandwidth_ratio == pytest.approx(0.25)
    assert usage.memory_bytes == 5 << 30
    assert usage.process_memory_bytes == {4711: 3 << 30}
    assert usage.power_w == pytest.approx(512.0)
    assert usage.sm_clock_hz == pytest.approx(1.98e9)
    assert usage.temperature_c == pytest.approx(51.0)
    assert usage.pcie_send_bytes_per_s == pytest.approx(1e6)
    assert usage.pcie_receive_bytes_per_s == pytest.approx(2e6)
    assert usage.throttle_reasons == ("sw-power-cap",)
    assert usage.counters == pytest.approx(
        {
            "graphics_active_ratio": 0.1,
            "sm_active_ratio": 0.2,
            "sm_occupancy_ratio": 0.3,
            "tensor_active_ratio": 0.5,
            "memory_bandwidth_active_ratio": 1.0,
        }
    )
    assert usage.counters_source == "nvml-gpm"
    assert library.samples == 0


def test_older_drivers_are_read_through_the_functions_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlGpmQueryDeviceSupport",
    )
    install(monkeypatch, FakeNvml(without=missing))
    sampler = NvmlSampler(interval_s=0.01)
    usage = sampled(sampler)
    assert usage.process_memory_bytes == {4711: 3 << 30}
    assert usage.temperature_c == pytest.approx(49.0)
    assert usage.throttle_reasons == ("hw-slowdown",)
    assert usage.power_w == pytest.approx(345.0)
    assert usage.counters == {}
    assert any(note.startswith("no MPS processes") for note in sampler.notes)
    assert any(note.startswith("no profiling counters") for note in sampler.notes)
    assert any("dcgmi is not installed" in note for note in sampler.notes)


def test_a_missing_privilege_omits_one_reading_and_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = {
        "nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION,
        "nvmlDeviceGetComputeRunningProcesses_v2": NO_PERMISSION,
        "nvmlDeviceGetPcieThroughput": NOT_SUPPORTED,
        "nvmlGpmSampleGet": NO_PERMISSION,
    }
    library = install(monkeypatch, FakeNvml(refuse=refuse))
    sampler = NvmlSampler(interval_s=0.01)
    usage = sampled(sampler, windows=3)
    assert usage.process_memory_bytes == {}
    assert usage.pcie_send_bytes_per_s is None
    assert usage.utilization_ratio == pytest.approx(0.8)
    assert len([n for n in sampler.notes if n.startswith("no processes")]) == 1
    assert len([n for n in sampler.notes if n.startswith("no PCIe traffic")]) == 1
    assert library.samples == 0


def test_utilisation_excludes_the_time_before_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML reports the mean of the past sixth of a second: at first 90 %, from the time before the window."""
    library = install(monkeypatch, FakeNvml())
    began = time.monotonic()

    def rates(_handle: Any, rates: Any) -> int:
        rates._obj.gpu = 90 if time.monotonic() - began < 1 / 6 else 10
        return 0

    def traffic(_handle: Any, _counter: Any, value: Any) -> int:
        value._obj.value = (
            0 if time.monotonic() - began < 0.05 else 7_000_000
        )  # the members start after 30 ms
        return 0

    monkeypatch.setattr(library, "_nvmlDeviceGetUtilizationRates", rates, raising=False)
    monkeypatch.setattr(library, "_nvmlDeviceGetPcieThroughput", traffic, raising=False)
    usage = sampled(NvmlSampler(interval_s=0.01))
    assert usage.utilization_ratio == pytest.approx(0.1)
    assert usage.pcie_receive_bytes_per_s == pytest.approx(7e9)


def test_short_windows_have_memory_but_no_utilisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = install(monkeypatch, FakeNvml())
    monkeypatch.setattr("profiling.measure.nvml.LAG_S", 60.0)
    sampler = NvmlSampler(interval_s=0.01)
    sampler.begin()
    until(lambda: len(sampler._series.get("memory", [])) >= 3, "three samples")
    usage = sampler.end()
    sampler.close()
    assert usage.memory_bytes == 5 << 30
    assert (usage.utilization_ratio, usage.power_w, usage.counters) == (None, None, {})
    assert sampler.notes == []
    assert library.samples == 0


def test_counters_need_a_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over less, a Hopper's are invalid; the next, longer window has them again."""
    library = install(monkeypatch, FakeNvml())
    sampler = NvmlSampler(interval_s=0.01)
    monkeypatch.setattr("profiling.measure.nvml.GPM_LEAST_S", 60.0)
    sampler.begin()
    until(lambda: len(sampler._series.get("power_w", [])) >= 3, "three samples")
    assert sampler.end().counters == {}
    monkeypatch.setattr("profiling.measure.nvml.GPM_LEAST_S", GPM_LEAST_S)
    assert sampled(sampler).counters != {}
    assert sampler.notes == []
    assert library.samples == 0


def test_a_counter_that_is_no_number_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, FakeNvml())
    measured = library._nvmlGpmMetricsGet

    def metrics(request: Any) -> int:
        code = measured(request)
        request._obj.metrics[0].value = float("nan")
        return code

    monkeypatch.setattr(library, "_nvmlGpmMetricsGet", metrics, raising=False)
    counters = sampled(NvmlSampler(interval_s=0.01)).counters
    assert "graphics_active_ratio" not in counters
    assert counters["sm_active_ratio"] == pytest.approx(0.2)


@pytest.mark.parametrize(("visible", "number"), [("1", 1), ("1,0", 1), ("GPU-bbbb", 1), ("0", 0)])
def test_the_gpu_visible_to_cuda_is_sampled(
    visible: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch, FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sampled(NvmlSampler(interval_s=0.01))
    assert library.asked == {number}


def _missing() -> str:
    raise PackageNotFoundError


def test_environment_record(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml())
    assert device_name("cuda") == "h200"
    assert visible_gpu().memory_bytes == 150e9
    monkeypatch.setattr(
        "importlib.metadata.version", lambda package: f"{package}-1" if "13" in package else _missing()
    )
    facts = describe_environment("cuda")
    assert facts["gpu"] == "NVIDIA H200"
    assert facts["driver"] == "580.65"
    assert facts["power_limit_w"] == pytest.approx(700.0)
    assert facts["mig_mode"] == 0
    assert (facts["ecc_mode"], facts["persistence_mode"]) == (1, 1)
    assert facts["nvidia-cudnn-cu13"] == "nvidia-cudnn-cu13-1"
    assert "nvidia-cudnn-cu13" not in describe_environment("cpu")
    assert mig_slices() == []
    for name in _GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    plain = describe_environment("cuda")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    changed = describe_environment("cuda")
    assert changed["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert changed["fingerprint"] != plain["fingerprint"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for read in (device_name, describe_environment):
        with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES"):
            read("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(UnavailableError, match="CUDA sees no GPU number 0"):
        device_name("cuda")


def test_nvml_is_shut_down_by_all_who_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, FakeNvml())
    discover_gpus()
    describe_environment("cuda")
    mig_slices()
    sampler = NvmlSampler()
    assert library.opened == 1
    sampler.close()
    assert library.opened == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert NvmlSampler().notes == ["no device samples: NVML NVMLError_InvalidArgument"]
    assert mig_slices() == []
    with pytest.raises(UnavailableError):
        visible_gpu()
    assert library.opened == 0


def test_a_gpu_that_does_not_respond_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = FakeNvml()
    handle_of = lost._nvmlDeviceGetHandleByIndex_v2

    def handle(index: Any, handle: Any) -> int:
        return handle_of(index, handle) if index.value else int(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(lost, "_nvmlDeviceGetHandleByIndex_v2", handle, raising=False)
    install(monkeypatch, lost)
    assert [spec.name for spec in discover_gpus()] == ["h200"]
    refuse = {"nvmlDeviceGetHandleByIndex_v2": int(pynvml.NVML_ERROR_GPU_IS_LOST)}
    library = install(monkeypatch, FakeNvml(refuse=refuse))
    with pytest.raises(UnavailableError, match="no GPU"):
        discover_gpus()
    assert library.opened == 0


def test_a_virtual_gpu_has_no_maximum_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(refuse={"nvmlDeviceGetMaxClockInfo": NOT_SUPPORTED}))
    assert visible_gpu().name == "h200"


def test_reasons_for_missing_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml(refuse={"nvmlInitWithFlags": int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)}))
    assert NvmlSampler().notes == ["no device samples: NVML NVMLError_DriverNotLoaded"]
    assert describe_environment("cuda")["nvml"] == "not available: NVMLError_DriverNotLoaded"
    assert mig_slices() == []
    with pytest.raises(UnavailableError, match="no NVIDIA driver"):
        visible_gpu()


def test_a_record_notes_other_processes_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, FakeNvml())
    with UsageMeter("cuda", MeasureSettings()) as meter:
        library.processes.append((4712, 1 << 30))  # a job of the run
        assert "processes of others that used the GPU: 1" in meter.notes


def test_slices_of_a_gpu_in_mig_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeMig("3g.71gb", "2g.35gb"))
    # CUDA never uses a card in MIG mode as a whole.
    assert device_name("cuda") == "h200:mig=3g"
    assert mig_slices() == [MigSlice("MIG-0", "3g.71gb"), MigSlice("MIG-1", "2g.35gb")]
    with sharing_in_force("mig", "cuda", 2) as sharing:
        assert sharing.mode == "mig"
        assert sharing.slices == ["3g.71gb", "2g.35gb"]
        assert [e["CUDA_VISIBLE_DEVICES"] for e in sharing.environments] == ["MIG-0", "MIG-1"]
    for mode, members in (("mig", 3), ("time-slice", 2)):
        with sharing_in_force(mode, "cuda", members) as sharing:
            assert sharing.mode == "time-slice"
            assert sharing.environments == [{"CUDA_VISIBLE_DEVICES": "MIG-0"}] * members
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert device_name("cuda") == "h200:mig=2g"
    assert visible_gpu().sm_count == 32
    # The other slice belongs to someone else.
    assert mig_slices() == [MigSlice("MIG-1", "2g.35gb")]
    record = {"device": device_name("cuda"), "members": [{}, {}]}
    _name_slices(record, ["2g.35gb", "1g.18gb+me"])
    assert record == {"device": "h200", "members": [{"device": "h200:mig=2g"}, {"device": "h200:mig=1g"}]}


@pytest.mark.parametrize(
    ("title", "profile", "name"),
    [
        (b"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "1g.24gb+gfx", "rtx-pro-6000:mig=1g"),
        # Slices of this card are not in the catalogue.
        (b"NVIDIA B200", "1g.23gb", "b200:mig=1g.23gb"),
    ],
)
def test_a_slice_never_passes_for_the_whole_card(
    title: bytes, profile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = install(monkeypatch, FakeMig(profile))
    name_of = library._nvmlDeviceGetName

    def renamed(handle: Any, text: Any, length: Any) -> int:
        code = name_of(handle, text, length)
        text.value = text.value.replace(b"NVIDIA H200", title)
        return int(code)

    monkeypatch.setattr(library, "_nvmlDeviceGetName", renamed, raising=False)
    assert device_name("cuda") == name
    record = {"device": name, "members": [{}]}
    _name_slices(record, [profile])
    assert record == {"device": name.partition(":")[0], "members": [{"device": name}]}


@pytest.mark.parametrize(("slices", "used", "pids"), [(1, 1 << 30, [4701]), (2, 3 << 30, [4701, 4702])])
def test_memory_is_summed_over_the_slices_in_use(
    slices: int, used: int, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third slice belongs to someone else; the memory of the whole card may not be read."""
    install(monkeypatch, FakeMig("1g.18gb", "1g.18gb", "2g.35gb"))
    usage = sampled(NvmlSampler(interval_s=0.01, slices=slices))
    assert usage.memory_bytes == used
    assert sorted(usage.process_memory_bytes) == pids


def test_mig_mode_without_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeMig())
    with pytest.raises(UnavailableError, match="in MIG mode, but has no slice"):
        device_name("cuda")
