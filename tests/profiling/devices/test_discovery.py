from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from profiling.devices import discover, discover_cpu, discover_gpus, get_device
from profiling.devices.discovery import _rates, match_catalogue
from profiling.errors import UnavailableError


def test_cpu_is_found_with_the_cores_the_process_may_use() -> None:
    spec = discover_cpu()
    assert spec.sm_count == len(os.sched_getaffinity(0))
    assert spec.memory_bytes > 2**28
    assert 1e8 < spec.clock_hz < 1e10
    assert spec.fp32_flops >= 16 * spec.clock_hz


def test_gpus_are_found_or_a_message_explains_why_not() -> None:
    everything = [s.name for s in discover()]
    assert everything[-1] == "cpu"
    if len(everything) == 1:
        with pytest.raises(UnavailableError, match=r"driver|NVML"):
            discover_gpus()
    else:
        assert [s.name for s in discover_gpus()] == everything[:-1]


@pytest.mark.parametrize(
    ("title", "gib", "name"),
    [
        ("Tesla V100-SXM2-16GB", 16, "v100"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32gb"),
        ("NVIDIA GeForce RTX 3090", 24, "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24, None),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"),
        ("NVIDIA H200", 139.7, "h200"),
        ("Tesla K80", 11.2, "k80"),
        ("NVIDIA GeForce RTX 2080 Ti", 10.7, "rtx-2080-ti"),
        ("Quadro RTX 6000", 23.6, "quadro-rtx-6000"),
        ("Tesla V100-PCIE-32GB", 31.7, "v100-pcie-32gb"),
        ("NVIDIA A100-PCIE-40GB", 39.4, "a100-pcie"),
        ("NVIDIA A100 80GB PCIe", 79.2, "a100-pcie-80gb"),
        ("NVIDIA H100 PCIe", 79.6, "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", 79.6, "h100"),
        ("NVIDIA H100 NVL", 93.6, "h100-nvl"),
        ("NVIDIA H200 NVL", 140.4, None),
        ("NVIDIA B200", 178.4, "b200"),
        ("NVIDIA A10", 22.5, "a10"),
        ("NVIDIA A10G", 22.1, "a10g"),
        ("NVIDIA L40S", 44.4, "l40s"),
        ("Tesla P4", 7.4, "p4"),
        ("NVIDIA TITAN V", 11.8, "titan-v"),
        ("NVIDIA GeForce RTX 2070 SUPER", 7.8, "rtx-2070-super"),
        ("NVIDIA GeForce RTX 2070", 7.8, None),
        ("GeForce RTX 2060 with Max-Q Design", 5.8, "rtx-2060-max-q"),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", 8.0, None),
        ("NVIDIA GeForce RTX 4060 Ti", 16.0, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8.0, None),
        ("NVIDIA GeForce RTX 4090 D", 24.0, None),
        ("NVIDIA GeForce RTX 3080", 9.8, "rtx-3080"),
        ("NVIDIA GeForce RTX 3080", 12.0, None),
        ("NVIDIA GeForce RTX 3080 Ti", 12.0, "rtx-3080-ti"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 16.0, None),
        ("NVIDIA GeForce RTX 4070 Ti", 12.0, "rtx-4070-ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16.0, None),
        ("NVIDIA GeForce RTX 4080", 16.0, "rtx-4080"),
        ("NVIDIA GeForce RTX 4080 SUPER", 16.0, None),
        ("NVIDIA GeForce RTX 5080", 15.9, "rtx-5080"),
        ("NVIDIA GeForce RTX 5080 Laptop GPU", 15.9, None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 95.6, "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 95.6, "rtx-pro-6000-max-q"),
        ("NVIDIA RTX A6000", 47.5, "rtx-a6000"),
        ("NVIDIA RTX A5000", 23.7, "rtx-a5000"),
        ("NVIDIA RTX A5000 Laptop GPU", 16.0, None),
        ("NVIDIA RTX 6000 Ada Generation", 47.5, "rtx-6000-ada"),
        ("NVIDIA RTX 5000 Ada Generation", 31.5, None),
        ("NVIDIA A800 40GB Active", 39.5, "a800-40gb-active"),
        ("NVIDIA GH200 480GB", 94.5, "gh200"),
        ("NVIDIA GH200 120GB", 95.6, "gh200"),
        ("NVIDIA GH200 144G HBM3e", 143.4, "gh200-144gb"),
        # Not in the catalogue, and none of the types with similar names.
        ("NVIDIA H20", 95.6, None),
        ("NVIDIA L20", 44.5, None),
        ("NVIDIA A800-SXM4-80GB", 79.2, None),
        ("NVIDIA H800", 79.6, None),
        ("Some new thing", 24, None),
    ],
)
def test_product_titles_match_the_catalogue(title: str, gib: float, name: str | None) -> None:
    device = match_catalogue(title, gib * 2**30)
    assert (device.name if device else None) == name


@pytest.mark.parametrize(
    "name",
    [
        "v100", "a30", "rtx-2080-ti", "rtx-3080", "rtx-3080-ti", "rtx-3090", "a40", "l4", "rtx-4070-ti", "rtx-4080",
        "rtx-4090", "rtx-5080", "rtx-5090", "p100",
    ],
)  # fmt: skip
def test_rates_from_cores_and_clock_match_the_data_sheet(name: str) -> None:
    spec = get_device(name)
    capability = tuple(map(int, spec.compute_capability.split(".")))
    cores = round(spec.fp32_flops / (2 * spec.clock_hz) / 64) * 64
    rates = _rates(capability, cores, spec.clock_hz, name.startswith("rtx-"))
    assert rates["sm_count"] == spec.sm_count
    for field in ("fp32_flops", "fp16_flops", "bf16_flops", "tf32_flops", "fp8_flops"):
        assert rates[field] == pytest.approx(getattr(spec, field), rel=0.03), field


def test_rates_of_a_blackwell_ultra() -> None:
    """HGX B300's data sheet: 2.25 PFLOP/s in FP16 and BF16 and 4.5 in FP8 per GPU."""
    rates = _rates((10, 3), 148 * 128, 1.92e9, geforce=False)
    assert rates["sm_count"] == 148
    for field, value in (("fp16_flops", 2.25e15), ("bf16_flops", 2.25e15), ("fp8_flops", 4.5e15)):
        assert rates[field] == pytest.approx(value, rel=0.05), field


def test_a_gpu_of_an_unknown_architecture_still_has_a_rate() -> None:
    rates = _rates((99, 0), 1280, 1e9, geforce=False)
    assert rates == {"sm_count": 10, "fp32_flops": 2.56e12}


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        # Its title gives the memory of the CPU, unless it says HBM.
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA Nothing", None),
    ],
)
def test_a_title_suffices_if_memory_may_not_be_read(title: str, name: str | None) -> None:
    spec = match_catalogue(title, None)
    assert (spec and spec.name) == name


class _Driver:
    """NVML as of one GPU that the catalogue lacks; reading its bus and link fails where `old`."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM, NVML_CLOCK_MEM = "sm", "mem"

    def __init__(self, capability: tuple[int, int], old: bool = False) -> None:
        self.capability, self.old = capability, old

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        values: dict[str, object] = {
            "Count": 1,
            "HandleByIndex": None,
            "Name": b"NVIDIA GeForce RTX 9999",
            "MemoryInfo": SimpleNamespace(total=48 * 2**30),
            "CudaComputeCapability": self.capability,
            "NumGpuCores": 16384,
            "MemoryBusWidth": 384,
            "MaxPcieLinkGeneration": 4,
            "MaxPcieLinkWidth": 8,
        }
        what = name.removeprefix("nvmlDeviceGet")

        def answer(*given: object) -> object:
            if self.old and what in ("MemoryBusWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth"):
                raise self.NVMLError("not supported")
            return {"sm": 2500, "mem": 10500}[str(given[1])] if what == "MaxClockInfo" else values[what]

        return answer


def test_a_gpu_that_the_catalogue_lacks_is_described_by_what_nvml_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("profiling.devices.discovery.open_nvml", lambda: _Driver((8, 9)))
    (found,) = discover_gpus()
    assert (found.name, found.architecture, found.compute_capability) == ("geforce-rtx-9999", "ada", "8.9")
    assert found.sm_count == 128
    assert found.fp32_flops == 2 * 16384 * 2.5e9
    assert found.memory_bytes == 48 * 2**30
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(1.008e12)  # the data sheet's, of an RTX 4090
    assert found.pcie_bytes_per_s == pytest.approx(0.985e9 * 8 * 2)
    assert found.source.startswith("NVML: NVIDIA GeForce RTX 9999")


def test_an_unknown_gpu_of_which_little_can_be_read_has_nominal_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("profiling.devices.discovery.open_nvml", lambda: _Driver((99, 0), old=True))
    (found,) = discover_gpus()
    assert (found.architecture, found.sm_count) == ("", 128)
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(2 * 10.5e9 * 256 / 8)
    assert found.pcie_bytes_per_s == pytest.approx(0.985e9 * 16)
