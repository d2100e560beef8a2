"""How long and how often to measure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from profiling.checked_fields import check_range
from profiling.errors import InputError

HOST_INPUTS = ("resident", "loader")


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """Windows, repeats and tolerances of one measurement.

    Attributes:
        repeats: how often the windows are measured; results are medians over the repeats.
        window_s: minimum length of a window in which all members run.
        alone_window_s: minimum length of a window in which one member runs and the others are paused.
        min_steps: minimum number of steps of every member in a window.
        settle_tolerance: warm-up ends when the medians of two successive blocks of steps differ by less than this
            ratio.
        warmup_block_steps: steps per block.
        max_warmup_s: warm-up ends after this time even if the step time has not settled.
        stable_ratio: largest spread (scaled MAD / median over the repeats) that counts as stable.
        least_cpu_ratio: (CPU) smallest share of the core that the members must get together in a window; otherwise
            another process disturbed it, and it is repeated.
        retries: how often a disturbed window is repeated.
        host_input: `resident` trains on one batch that stays on the device; `loader` fetches every batch from a
            loader process and copies it to the device.
        loader_processes: number of loader processes.
        sample_interval_s: time between two NVML samples.
        timeout_s: a member that does not respond for this long after it should have is killed.
        core: (CPU) core that members are pinned to; None: the last one allowed.
        seed: seed of the first member's weights and data; each further member adds 1.
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
        seconds = ("window_s", "alone_window_s", "max_warmup_s", "sample_interval_s", "timeout_s")
        check_range(
            self,
            lambda value: isinstance(value, int | float) and 0 < value <= 86400,
            "seconds above 0, at most 86400",
            *seconds,
        )
        ratios = ("settle_tolerance", "stable_ratio", "least_cpu_ratio")
        check_range(self, lambda value: 0 < value < 1, "a ratio between 0 and 1", *ratios)
        if self.host_input not in HOST_INPUTS:
            raise InputError(
                "unknown host_input", expected="one of " + ", ".join(HOST_INPUTS), got=self.host_input
            )

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def deciding(self) -> dict[str, Any]:
        """Settings that affect results and differ from the defaults, so that adding a setting changes no run id."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        # The timeout and the core depend on the machine, not on what is measured.
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
