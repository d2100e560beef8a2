"""Discovers this machine's devices: GPUs via NVML, the CPU via the operating system."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiling.devices.catalogue import device_from_mapping, list_devices
from profiling.devices.compute_capability import compute_capabilities
from profiling.devices.mig import MIG_OPTION, has_mig, slice_of
from profiling.devices.nvml import open_nvml
from profiling.devices.spec import DeviceSpec
from profiling.devices.visible import no_answer, visible_handle, visible_slice
from profiling.errors import UnavailableError

_ARCHITECTURES = {
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    7: "volta",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
}
# Words in a product title that denote another type than the rest of the title.
_VARIANTS = {"ti", "super", "laptop", "mobile", "max", "d", "ceo", "nvl", "server"}


def discover() -> list[DeviceSpec]:
    """The GPUs of this machine, if NVML finds any, then its CPU."""
    try:
        gpus = discover_gpus()
    except UnavailableError:
        gpus = []
    return [*gpus, discover_cpu()]


def discover_gpus() -> list[DeviceSpec]:
    """One type per NVIDIA GPU of this machine that NVML can read, in its order.

    A GPU in the catalogue has the catalogue's rates and the memory that NVML reports. The rates of any other follow
    from its core count, clocks and bus width.

    Raises:
        UnavailableError: no NVML library, no driver, or no GPU.
    """
    gpus: list[DeviceSpec] = []
    error: Exception | None = None
    with open_nvml() as nvml:
        for i in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)))
            except nvml.NVMLError as failure:  # it fell off the bus, or belongs to others
                error = failure
    if not gpus:
        raise UnavailableError(
            "the NVIDIA driver sees no GPU", got=error and str(error), hint="check nvidia-smi"
        )
    return gpus


def visible_gpu() -> DeviceSpec:
    """The type of the first GPU or MIG slice that CUDA sees, given CUDA_VISIBLE_DEVICES.

    Raises:
        UnavailableError: no NVML library, no driver, or no such GPU.
    """
    with open_nvml() as nvml:
        try:
            card, profile = _gpu(nvml, visible_handle(nvml)), visible_slice(nvml)
            if not profile:
                return card
            # Of other cards only the name is known, but a slice must not pass for the whole card.
            return (
                slice_of(card, profile)
                if has_mig(card.name)
                else replace(card, name=f"{card.name}{MIG_OPTION}{profile}")
            )
        except nvml.NVMLError as error:
            raise no_answer(error) from None


def discover_cpu() -> DeviceSpec:
    """This machine's CPU as one device type: usable cores, frequency, memory and last-level cache.

    The peak rate is an upper bound from the widest vector unit that the kernel reports. The bandwidth is nominal (two
    channels of DDR4-3200, 51.2 GB/s), because no interface reports it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = _cpu_info()
    flags = info.get("flags", info.get("Features", "")).split()
    flops_per_cycle = 64 if "avx512f" in flags else 32 if "fma" in flags else 16
    clock_hz = _cpu_clock_hz(info)
    rate = cores * clock_hz * flops_per_cycle
    return DeviceSpec(
        name="cpu",
        vendor=info.get("vendor_id", platform.machine()),
        architecture=processor_name(),
        compute_capability="",
        sm_count=cores,
        clock_hz=clock_hz,
        fp32_flops=rate,
        tf32_flops=0.0,
        fp16_flops=0.0,
        bf16_flops=0.0,
        memory_bytes=_memory_bytes(),
        memory_bandwidth_bytes_per_s=51.2e9,
        l2_bytes=_last_level_cache_bytes(),
        pcie_bytes_per_s=51.2e9,
        source="discovered on this machine; peak from vector width, bandwidth nominal",
    )


def _gpu(nvml: Any, handle: Any) -> DeviceSpec:
    title = nvml.nvmlDeviceGetName(handle)
    title = title.decode() if isinstance(title, bytes) else title
    try:
        memory_bytes = float(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:  # of a GPU in MIG mode, a container may read only its slice's
        known = match_catalogue(title, None)
        if known is None:
            raise
        return replace(known, source=f"NVML: {title}; all else: {known.source}")
    source = f"NVML: {title}"
    known = match_catalogue(title, memory_bytes)
    if known is not None:
        return replace(known, memory_bytes=memory_bytes, source=f"{source}; rates: {known.source}")
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    clock_hz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    memory_clock_hz = 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
    bus_bits = _or_zero(nvml, lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle)) or 256
    generation = _or_zero(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)) or 3
    width = _or_zero(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)) or 16
    name = "-".join(title.lower().removeprefix("nvidia ").split())
    row = {
        "vendor": "nvidia",
        "architecture": "turing"
        if capability == (7, 5)
        else "ada"
        if capability == (8, 9)
        else _ARCHITECTURES.get(capability[0], ""),
        "compute_capability": ".".join(map(str, capability)),
        "clock_hz": clock_hz,
        "memory_bytes": memory_bytes,
        "memory_bandwidth_bytes_per_s": 2 * memory_clock_hz * bus_bits / 8,
        "memory_bus_bits": bus_bits,
        "l2_bytes": 4 * 2.0**20,
        "pcie_bytes_per_s": 0.985e9 * width * 2 ** (generation - 3),
        "source": f"{source}; rates from cores and clocks, L2 nominal",
        **_rates(capability, nvml.nvmlDeviceGetNumGpuCores(handle), clock_hz, "geforce" in title.lower()),
    }
    return device_from_mapping(name, row, source)


def _rates(capability: tuple[int, ...], cores: int, clock_hz: float, geforce: bool) -> dict[str, float]:
    """SM count and peak rates (FLOP/s) of a GPU that is not in the catalogue, from its cores and clock."""
    known = compute_capabilities().get(".".join(map(str, capability)))
    multiprocessors = max(1, cores // (known.fp32_per_clock if known else 128))
    rates: dict[str, float] = {"sm_count": multiprocessors, "fp32_flops": 2.0 * cores * clock_hz}
    if known is not None:
        # On GeForce cards, FP32 accumulation halves the rate.
        share = 0.5 if geforce and capability > (7, 0) else 1.0
        half = share * 2.0 * known.fp16_tensor_per_clock * multiprocessors * clock_hz
        rates["fp16_flops"] = half or 2.0 * known.fp16_per_clock * multiprocessors * clock_hz
        rates["bf16_flops"] = half if capability >= (8, 0) else 0.0
        rates["tf32_flops"] = half / 2 if capability >= (8, 0) else 0.0
        rates["fp8_flops"] = 2 * half if capability >= (8, 9) else 0.0
    return rates


def match_catalogue(title: str, memory_bytes: float | None) -> DeviceSpec | None:
    """The catalogue's type for a product title from NVML; None if there is none.

    All words of its name must occur in the title, and its memory must be within 15 %. Of several, the one with the
    nearest memory is taken, then the one with the most words. Memory that cannot be read (None) is that in the title,
    if it has one.
    """
    if memory_bytes is None:
        memory_bytes = stated_memory(title)
    words = set(title.lower().replace("-", " ").replace("gb", "gb ").split())

    def name_words(spec: DeviceSpec) -> set[str]:
        return {word for word in spec.name.split("-") if not word.endswith("gb")}

    def distance(spec: DeviceSpec) -> float:
        return 0.0 if memory_bytes is None else abs(spec.memory_bytes - memory_bytes)

    def misfit(spec: DeviceSpec) -> tuple[float, int]:
        return round(distance(spec) / (memory_bytes or 1.0), 3), -len(name_words(spec))

    fits = [
        spec
        for spec in list_devices()
        if spec.vendor == "nvidia"
        and name_words(spec) <= words
        # "RTX 3090 Ti" is not an RTX 3090.
        and name_words(spec) & _VARIANTS == words & _VARIANTS
        and distance(spec) < 0.15 * spec.memory_bytes
    ]
    return min(fits, key=misfit, default=None)


def stated_memory(title: str) -> float | None:
    """Memory (bytes) that a product title gives, as `A100-SXM4-80GB` does; None if it gives none.

    >>> [stated_memory(title) / 2**30 for title in ("H100 80GB HBM3", "GH200 144G HBM3e", "GH200 480GB")]
    [80.0, 144.0, 96.0]
    """
    stated = re.search(r"\b(\d+) ?G(?:i?B)?\b( HBM)?", title, re.IGNORECASE)
    if stated is None:
        return None
    # Unless it names the type of the GPU's memory, a GH200's title gives that of its CPU.
    of_processor = "gh200" in title.lower() and not stated[2]
    return 2.0**30 * (96 if of_processor else int(stated[1]))


def _or_zero(nvml: Any, call: Any) -> int:
    try:
        return int(call())
    except nvml.NVMLError:
        return 0


def processor_name() -> str:
    """Model of this machine's CPU, as the operating system reports it."""
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    return {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
    }


def _cpu_clock_hz(info: dict[str, str]) -> float:
    try:
        khz = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text(encoding="utf-8")
        return 1e3 * float(khz)
    except (OSError, ValueError):
        return 1e6 * float(info.get("cpu MHz") or 2000.0)


def _memory_bytes() -> float:
    import psutil

    total = float(psutil.virtual_memory().total)
    # In a container, its limit applies.
    try:
        return min(total, float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return total


def _last_level_cache_bytes() -> float:
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(float(text.rstrip("KM")) * unit)
    return max(sizes, default=32.0 * 2**20)
