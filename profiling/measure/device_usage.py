"""Memory and utilisation of each member and of the set, from whatever sources the device offers."""

from __future__ import annotations

from statistics import median
from typing import Any

from profiling.measure.nvml import DeviceUsage, NvmlSampler
from profiling.measure.settings import MeasureSettings

SET_MEANS = (
    "utilization_ratio",
    "memory_bandwidth_ratio",
    "power_w",
    "sm_clock_hz",
    "temperature_c",
    "pcie_receive_bytes_per_s",
    "pcie_send_bytes_per_s",
)


class UsageMeter:
    """Collects usage over windows; a context manager, because NVML has to be closed.

    On the CPU, a member's utilisation is its CPU time / wall time on the shared core, and its memory is the peak of the
    resident set of its process, including libraries. On CUDA both come from NVML. If NVML hides processes (in a
    container), memory is taken from the growth of the device's used memory.

    Args:
        device: `cpu` or `cuda`.
        settings: sampling interval and limits.
        slices: see `NvmlSampler`.
    """

    def __init__(self, device: str, settings: MeasureSettings, slices: int = 1) -> None:
        self.device, self._settings = device, settings
        self._sampler = NvmlSampler(settings.sample_interval_s, slices) if device == "cuda" else None
        self._baseline = self._sampler.used_bytes() if self._sampler else None
        # No job has started yet.
        self._others = len(self._sampler.processes()) if self._sampler else 0
        self._windows: dict[str, list[DeviceUsage]] = {"alone": [], "together": []}
        self._alone: dict[int, list[DeviceUsage]] = {}
        self._cpu: dict[str, dict[int, list[float]]] = {"alone": {}, "together": {}}
        self._peak: dict[int, dict[str, float]] = {}
        self._pids: list[int] = []

    def __enter__(self) -> UsageMeter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler:
            self._sampler.close()

    @property
    def notes(self) -> list[str]:
        others = [f"processes of others that used the GPU: {self._others}"] if self._others else []
        return [*others, *(self._sampler.notes if self._sampler else ())]

    def begin(self) -> None:
        if self._sampler:
            self._sampler.begin()

    def end(self) -> DeviceUsage | None:
        return self._sampler.end() if self._sampler else None

    def was_quiet(self, answers: dict[int, dict[str, Any]]) -> bool:
        """Whether no other process used the members' core; True if unknown."""
        if self.device != "cpu" or self._settings.host_input != "resident":
            return True
        return sum(_cpu_share(answer) for answer in answers.values()) >= self._settings.least_cpu_ratio

    def keep(
        self, kind: str, answers: dict[int, dict[str, Any]], usage: DeviceUsage | None, pids: list[int]
    ) -> None:
        """Add a window of kind `alone` or `together`.

        Args:
            answers: replies of the members that ran, by member.
            usage: device samples of the window; None on the CPU.
            pids: process ids of all members.
        """
        self._pids = pids
        for i, answer in answers.items():
            self._cpu[kind].setdefault(i, []).append(_cpu_share(answer))
            peak = self._peak.setdefault(i, {})
            for name in ("rss_bytes", "allocated_bytes", "reserved_bytes"):
                if name in answer:
                    peak[name] = max(peak.get(name, 0.0), float(answer[name]))
        if usage is not None:
            self._windows[kind].append(usage)
            if kind == "alone":
                self._alone.setdefault(next(iter(answers)), []).append(usage)

    def member(self, index: int) -> dict[str, Any]:
        """Usage of one member: peak memory (bytes), and utilisation alone and together (0 to 1)."""
        peak = self._peak.get(index)
        if peak is None:
            return {}
        usage: dict[str, Any] = {"rss_bytes": peak["rss_bytes"]}
        if self.device == "cpu":
            usage |= {"memory_bytes": peak["rss_bytes"], "memory_source": "resident-set"}
            for kind, name in (("alone", "solo_utilization_ratio"), ("together", "utilization_ratio")):
                shares = self._cpu[kind].get(index)
                if shares:
                    usage[name] = min(1.0, median(shares))
            return usage
        usage |= {k: peak[k] for k in ("allocated_bytes", "reserved_bytes") if k in peak}
        memory, source = self._process_memory(index)
        alone = self._alone.get(index, [])
        return usage | {
            "memory_bytes": memory,
            "memory_source": source,
            "solo_utilization_ratio": _mean(alone, "utilization_ratio"),
            "solo_memory_bandwidth_ratio": _mean(alone, "memory_bandwidth_ratio"),
            "host_cpu_ratio": median(self._cpu["together"].get(index) or self._cpu["alone"][index]),
        }

    def whole(self) -> dict[str, Any]:
        """Usage of the set over the windows in which all members ran; of the only member if there is one."""
        members = sorted(self._peak)
        kind = "together" if self._cpu["together"] else "alone"
        if self.device == "cpu":
            shares = [median(self._cpu[kind][i]) for i in members if i in self._cpu[kind]]
            return {
                "memory_bytes": sum(self._peak[i]["rss_bytes"] for i in members) or None,
                "utilization_ratio": min(1.0, sum(shares)) if shares else None,
            }
        windows = self._windows[kind]
        usage: dict[str, Any] = {name: _mean(windows, name) for name in SET_MEANS}
        used = max((w.memory_bytes for w in windows if w.memory_bytes), default=None)
        growth = used - self._baseline if used and self._baseline is not None else 0.0
        # If others freed memory meanwhile, the growth says nothing; tables refuse memory that is not above 0.
        usage["memory_bytes"] = growth if growth > 0 else None
        usage["throttle_reasons"] = sorted({r for w in windows for r in w.throttle_reasons})
        counters = [w.counters for w in windows if w.counters]
        if counters:
            names = sorted({name for c in counters for name in c})
            usage["counters"] = {k: median(c[k] for c in counters if k in c) for k in names}
            usage["counters_source"] = " ".join(sorted({w.counters_source for w in windows if w.counters}))
        return usage

    def _process_memory(self, index: int) -> tuple[float | None, str]:
        pid = self._pids[index]
        windows = [*self._windows["alone"], *self._windows["together"]]
        seen = [w.process_memory_bytes[pid] for w in windows if pid in w.process_memory_bytes]
        if seen:
            return max(seen), "nvml-process"
        used = max((w.memory_bytes for w in windows if w.memory_bytes), default=None)
        reserved = {i: p.get("reserved_bytes", 0.0) for i, p in self._peak.items()}
        if used is None or self._baseline is None:
            return reserved.get(index), "reserved"
        # The rest of the growth is contexts and libraries, which are the same for all members.
        rest = max(0.0, used - self._baseline - sum(reserved.values()))
        return reserved[index] + rest / len(reserved), "device-growth"


def _cpu_share(answer: dict[str, Any]) -> float:
    """CPU time / wall time of one member in one phase."""
    wall = answer["boundaries"][-1] - answer["boundaries"][0]
    return float(answer["cpu_s"] / wall) if wall > 0 else 0.0


def _mean(windows: list[DeviceUsage], name: str) -> float | None:
    values = [getattr(w, name) for w in windows if getattr(w, name) is not None]
    return sum(values) / len(values) if values else None
