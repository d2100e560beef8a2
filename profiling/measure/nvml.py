"""Monitors the GPU while members run: NVML samples, and profiling counters from DCGM or NVML if available."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from profiling.devices.nvml import open_nvml
from profiling.devices.visible import visible_handle, visible_slices
from profiling.measure.dcgm import DcgmCounters

# Name of each NVML bit that means throttling; idle and application clocks do not.
THROTTLE_REASONS = {
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
}
# NVML's load readings describe the past (utilisation: the last sixth of a second or more), so the first ones of a
# window would describe the window before it, and the pause between the two.
LAG_S = 0.2
# Hopper's counters are invalid over shorter windows (a hardware limit, according to DCGM's documentation).
GPM_LEAST_S = 0.1
# NVML's GPU performance metrics (GPM, from Hopper on): the counters that DCGM calls profiling fields.
GPM_METRICS = {
    "graphics_active_ratio": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "sm_active_ratio": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_ratio": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active_ratio": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "memory_bandwidth_active_ratio": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


@dataclass
class DeviceUsage:
    """Means over the samples of one window (for memory, the maximum); None if NVML has no reading.

    Load (utilisation, power, PCIe, counters) is read from `LAG_S` after the start of the window on, so a shorter window
    has none.

    Attributes:
        utilization_ratio: share of time in which a kernel ran.
        memory_bandwidth_ratio: share of time in which device memory was read or written.
        memory_bytes: used on the whole device, or on the slices in use.
        process_memory_bytes: used by each process id.
        throttle_reasons: all reasons seen.
        counters: profiling counters, if the GPU has them and privileges allow.
        counters_source: `dcgm` or `nvml-gpm` (from Hopper on); empty without counters.
    """

    samples: int = 0
    utilization_ratio: float | None = None
    memory_bandwidth_ratio: float | None = None
    memory_bytes: float | None = None
    process_memory_bytes: dict[int, float] = field(default_factory=dict)
    power_w: float | None = None
    sm_clock_hz: float | None = None
    pcie_receive_bytes_per_s: float | None = None
    pcie_send_bytes_per_s: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    counters_source: str = ""


class NvmlSampler:
    """Samples the first GPU that CUDA sees, in a thread between `begin` and `end`.

    Without NVML every window is empty, and `notes` states why.

    Args:
        interval_s: time between two samples.
        slices: number of MIG slices in use, if the GPU is in MIG mode: the first ones that are visible. Memory is
            theirs, not that of other slices, and readable without the privilege to see the whole GPU.
    """

    def __init__(self, interval_s: float = 0.05, slices: int = 1) -> None:
        self.interval_s = interval_s
        self._notes: list[str] = []
        self._nvml: Any = None
        self._dcgm: DcgmCounters | None = None
        self._no_gpm = False
        self._opened = ExitStack()
        try:
            self._nvml = n = self._opened.enter_context(open_nvml())
            self._handle = visible_handle(n)
            used = visible_slices(n)[:slices]
            parts = [n.nvmlDeviceGetHandleByUUID(part.uuid) for part in used] or [self._handle]
        except Exception as error:  # no library, driver or GPU
            self._nvml = None
            self._opened.close()
            self._notes.append(f"no device samples: NVML {type(error.__cause__ or error).__name__}")
            return
        handle = self._handle
        # Functions for each reading, newest first, because drivers and bindings drop old ones and lack new ones.
        self._readers: dict[str, list[Callable[[], Any]]] = {
            "rates": [lambda: n.nvmlDeviceGetUtilizationRates(handle)],
            "memory": [lambda: sum(n.nvmlDeviceGetMemoryInfo(part).used for part in parts)],
            "processes": [
                lambda: [p for part in parts for p in n.nvmlDeviceGetComputeRunningProcesses_v3(part)],
                lambda: [p for part in parts for p in n.nvmlDeviceGetComputeRunningProcesses_v2(part)],
            ],
            "MPS processes": [
                lambda: [p for part in parts for p in n.nvmlDeviceGetMPSComputeRunningProcesses_v3(part)]
            ],
            # From Ampere on, except GA100, the second is the mean of the last second, which is longer than some windows.
            "power_w": [self._power_now_w, lambda: n.nvmlDeviceGetPowerUsage(handle) / 1e3],
            "sm_clock_hz": [lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM) * 1e6],
            "temperature_c": [
                lambda: n.nvmlDeviceGetTemperatureV(handle, n.NVML_TEMPERATURE_GPU),
                lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU),
            ],
            "throttle": [
                lambda: n.nvmlDeviceGetCurrentClocksEventReasons(handle),
                lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            ],
        }
        # A PCIe reading blocks for 20 ms per direction, so it is taken once per window, not per sample.
        self._pcie = {
            "pcie_receive_bytes_per_s": n.NVML_PCIE_UTIL_RX_BYTES,
            "pcie_send_bytes_per_s": n.NVML_PCIE_UTIL_TX_BYTES,
        }
        try:
            self._dcgm = DcgmCounters(n.nvmlDeviceGetIndex(handle))
        except Exception as error:
            self._note("DCGM counters", error)

    @property
    def notes(self) -> list[str]:
        """Missing readings, with reasons; missing DCGM counters only if NVML has none either."""
        told = list(self._notes)
        if self._dcgm is not None and self._dcgm.note and self._no_gpm:
            told.append(self._dcgm.note)
        return told

    def used_bytes(self) -> float | None:
        """Device memory that all processes use now; None if it cannot be read."""
        if self._nvml is None:
            return None
        value = self._read("memory")
        return None if value is None else float(value)

    def processes(self) -> set[int]:
        """Process ids that have a CUDA context now, as far as NVML tells."""
        if self._nvml is None:
            return set()
        return {
            process.pid
            for process in [*(self._read("processes") or ()), *(self._read("MPS processes") or ())]
        }

    def begin(self) -> None:
        self._series: dict[str, list[float]] = {}
        self._processes: dict[int, float] = {}
        self._reasons: set[str] = set()
        self._stop = threading.Event()
        self._gpm_before: Any = None
        if self._nvml is None:
            return
        if self._dcgm is not None:
            self._dcgm.begin()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> DeviceUsage:
        if self._nvml is None:
            return DeviceUsage()
        self._stop.set()
        self._thread.join()
        mean = {k: sum(v) / len(v) for k, v in self._series.items() if v}
        counters, source = self._counters()
        return DeviceUsage(
            samples=len(self._series.get("memory", [])),
            utilization_ratio=mean.get("utilization_ratio"),
            memory_bandwidth_ratio=mean.get("memory_bandwidth_ratio"),
            memory_bytes=max(self._series.get("memory", []), default=None),
            process_memory_bytes=self._processes,
            power_w=mean.get("power_w"),
            sm_clock_hz=mean.get("sm_clock_hz"),
            temperature_c=mean.get("temperature_c"),
            pcie_receive_bytes_per_s=mean.get("pcie_receive_bytes_per_s"),
            pcie_send_bytes_per_s=mean.get("pcie_send_bytes_per_s"),
            throttle_reasons=tuple(sorted(self._reasons)),
            counters=counters,
            counters_source=source,
        )

    def close(self) -> None:
        if self._dcgm is not None:
            self._dcgm.close()
        self._nvml = None
        self._opened.close()

    # -- one thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        start, of_past = time.monotonic(), True
        while not self._stop.is_set():
            began = time.monotonic()
            if of_past and began - start >= LAG_S:
                of_past = False
                self._gpm_before, self._gpm_began = self._gpm_sample(), time.monotonic()
                self._sample_pcie()
            self._sample(load=not of_past)
            self._stop.wait(max(0.0, self.interval_s - (time.monotonic() - began)))

    def _sample(self, load: bool) -> None:
        rates = self._read("rates") if load else None
        if rates is not None:
            self._add("utilization_ratio", rates.gpu / 100)
            self._add("memory_bandwidth_ratio", rates.memory / 100)
        for name in ("memory", "sm_clock_hz", "temperature_c", *(("power_w",) if load else ())):
            value = self._read(name)
            if value is not None:
                self._add(name, float(value))
        for process in [*(self._read("processes") or ()), *(self._read("MPS processes") or ())]:
            used = process.usedGpuMemory or 0
            # All bits are set if the driver hides the value (in containers and WSL).
            if 0 < used < 1 << 60:
                self._processes[process.pid] = max(self._processes.get(process.pid, 0.0), float(used))
        reasons = self._read("throttle") or 0
        self._reasons |= {name for bit, name in THROTTLE_REASONS.items() if reasons & bit}

    def _power_now_w(self) -> float:
        n = self._nvml
        (field,) = n.nvmlDeviceGetFieldValues(self._handle, [n.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn != n.NVML_SUCCESS:
            raise n.NVMLError(field.nvmlReturn)
        return float(field.value.uiVal) / 1e3

    def _sample_pcie(self) -> None:
        for name, counter in self._pcie.items():
            try:
                # NVML returns KB/s.
                self._add(name, self._nvml.nvmlDeviceGetPcieThroughput(self._handle, counter) * 1e3)
            except Exception as error:
                self._note("PCIe traffic", error)

    def _add(self, name: str, value: float) -> None:
        self._series.setdefault(name, []).append(value)

    def _read(self, name: str) -> Any:
        """One reading, by the first function that works; None if none does, which is noted once and not retried.

        Any exception counts as no reading: an NVML error, an error that the bindings raise for an older driver (not
        an `NVMLError`), or a function that the bindings lack.
        """
        ways = self._readers.get(name)
        while ways:
            try:
                return ways[0]()
            except Exception as error:
                ways.pop(0)
                if not ways:
                    self._note(name, error)
        return None

    def _note(self, what: str, error: Exception) -> None:
        note = f"no {what}: {error}"
        if note not in self._notes:
            self._notes.append(note)

    # -- profiling counters ----------------------------------------------------------------------------------------

    def _counters(self) -> tuple[dict[str, float], str]:
        gpm = self._gpm_counters()
        dcgm = self._dcgm.end() if self._dcgm is not None else {}
        return (dcgm, "dcgm") if dcgm else (gpm, "nvml-gpm" if gpm else "")

    def _gpm_sample(self) -> Any:
        n = self._nvml
        if self._no_gpm:
            return None
        sample = None
        try:
            if not n.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise RuntimeError("this GPU has none (GPM)")
            sample = n.nvmlGpmSampleAlloc()
            n.nvmlGpmSampleGet(self._handle, sample)
            return sample
        except Exception as error:  # NVMLError, or a binding older than the driver
            self._without_gpm(error, sample)
            return None

    def _gpm_counters(self) -> dict[str, float]:
        before = self._gpm_before
        is_short = before is None or time.monotonic() - self._gpm_began < GPM_LEAST_S
        after = None if is_short else self._gpm_sample()
        n, shares = self._nvml, {}
        try:
            if after is None:
                return {}
            request = n.c_nvmlGpmMetricsGet_t()
            wanted = [(k, getattr(n, v)) for k, v in GPM_METRICS.items() if hasattr(n, v)]
            request.version, request.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(wanted)
            request.sample1, request.sample2 = before, after
            for i, (_, metric) in enumerate(wanted):
                request.metrics[i].metricId = metric
            n.nvmlGpmMetricsGet(request)
            for i, (name, _) in enumerate(wanted):
                # JSON has no NaN, so one would cost the whole record.
                if request.metrics[i].nvmlReturn == 0 and math.isfinite(request.metrics[i].value):
                    shares[name] = request.metrics[i].value / 100
        except Exception as error:  # for example, the container lacks the privilege
            self._without_gpm(error)
        finally:
            self._free(before, after)
        return shares

    def _without_gpm(self, error: Exception, *samples: Any) -> None:
        self._no_gpm = True
        self._note("profiling counters", error)
        self._free(*samples)

    def _free(self, *samples: Any) -> None:
        for sample in samples:
            if sample is not None:
                with suppress(Exception):
                    self._nvml.nvmlGpmSampleFree(sample)
