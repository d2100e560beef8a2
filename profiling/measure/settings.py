"""How long and how often to measure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from profiling.errors import InputError

HOST_INPUTS = ("resident", "loader")


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """Windows, repeats and tolerances of one measurement.

    Attributes:
        repeats: number of times that the windows are measured; medians are taken over them.
        window_s: least length of a window in which all members run.
        alone_window_s: least length of a window in which one member runs and the others are paused.
        min_steps: least number of steps of every member in a window.
        settle_tolerance: warm-up ends when the medians of two successive blocks of steps differ by less than this.
        warmup_block_steps: steps in such a block.
        max_warmup_s: warm-up ends after this time even if step time has not settled.
        stable_ratio: spread (scaled MAD / median over repeats) up to which a figure counts as stable.
        least_cpu_ratio: (CPU) a window in which the members together got less of the core than this was disturbed by
            someone else and is measured again.
        retries: times that one window is measured again for that.
        host_input: `resident` trains on one batch that stays on the device; `loader` fetches every batch from a
            loader process and copies it to the device.
        loader_processes: processes of that loader.
        sample_interval_s: time between two NVML samples.
        timeout_s: a member without response for this long is considered dead.
        core: the CPU core that members are pinned to on `cpu`; None takes the last one allowed.
        seed: seed of every member's weights and data.
    """

    repeats: int = 5
    window_s: float = 1.0
    alone_window_s: float = 0.5
    min_steps: int = 5
    settle_tolerance: float = 0.10
    warmup_block_steps: int = 3
    max_warmup_s: float = 10.0
    stable_ratio: float = 0.05
    least_cpu_ratio: float = 0.96
    retries: int = 2
    host_input: str = "resident"
    loader_processes: int = 1
    sample_interval_s: float = 0.05
    timeout_s: float = 180.0
    core: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("repeats", "min_steps", "warmup_block_steps"):
            _require(name, getattr(self, name), isinstance(getattr(self, name), int), 1)
        for name in ("loader_processes", "seed", "retries"):
            _require(name, getattr(self, name), isinstance(getattr(self, name), int), 0)
        if self.core is not None:
            _require("core", self.core, isinstance(self.core, int), 0)
        for name in ("window_s", "alone_window_s", "max_warmup_s", "sample_interval_s", "timeout_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= 86400:
                raise InputError(
                    f"{name} is out of range", expected="seconds above 0, at most 86400", got=value
                )
        for name in ("settle_tolerance", "stable_ratio", "least_cpu_ratio"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"{name} is out of range", expected="a ratio between 0 and 1", got=getattr(self, name)
                )
        if self.host_input not in HOST_INPUTS:
            raise InputError(
                "unknown host_input", expected="one of " + ", ".join(HOST_INPUTS), got=self.host_input
            )

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def deciding(self) -> dict[str, Any]:
        """Non-default settings that affect results, so that a setting added later changes no run's name."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        # Timeouts and the core depend on the machine.
        return {name: value for name, value in given.items() if name not in ("timeout_s", "core")}

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> MeasureSettings:
        """Parse settings. Raises `InputError` for an unknown key or a value out of range."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise InputError(
                "unknown measurement setting",
                expected="one of " + ", ".join(f.name for f in fields(cls)),
                got=", ".join(sorted(unknown)),
            )
        return cls(**values)


def _require(name: str, value: Any, integer: bool, least: int) -> None:
    if not integer or value < least:
        raise InputError(f"{name} is out of range", expected=f"an integer from {least}", got=value)
