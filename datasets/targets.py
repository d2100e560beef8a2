"""Prediction targets: their table, unit, and the columns measured at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import UnknownNameError

# Everything measured under co-location: never an input.
_TOGETHER = (
    "throughput_ratio",
    "step_time_s",
    "set_memory_bytes",
    "set_utilization_ratio",
    "set_memory_bandwidth_ratio",
)

# Everything measured of a job alone in one run.
MEASURED_ALONE = (
    "step_time_s",
    "samples_per_s",
    "memory_bytes",
    "utilization_ratio",
    "memory_bandwidth_ratio",
    "power_w",
)


@dataclass(frozen=True, slots=True)
class Target:
    """One target.

    Attributes:
        name: name in protocols and bundles.
        table: table whose rows are predicted.
        column: its column.
        unit: unit of errors, as shown to users.
        scale: factor from the column's unit to `unit`.
        hidden: columns that a test side must not contain.
        logarithmic: positive, and spread over decades: learned as a logarithm.
        of_set: one value per set rather than per row.
        exponent: the column holds the logarithm of what is predicted and scored.
    """

    name: str
    table: str
    column: str
    unit: str
    hidden: tuple[str, ...]
    scale: float = 1.0
    logarithmic: bool = False
    of_set: bool = False
    exponent: bool = False


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "throughput_ratio", "colocation", "throughput_ratio", "co-located / solo throughput", _TOGETHER
        ),
        Target(
            "set_memory_bytes",
            "colocation",
            "set_memory_bytes",
            "GiB",
            _TOGETHER,
            scale=2.0**-30,
            logarithmic=True,
            of_set=True,
        ),
        Target(
            "set_utilization_ratio",
            "colocation",
            "set_utilization_ratio",
            "share of time",
            _TOGETHER,
            of_set=True,
        ),
        Target(
            "solo_step_time_s",
            "solo",
            "step_time_s",
            "seconds",
            MEASURED_ALONE,
            logarithmic=True,
        ),
        Target(
            "memory_bytes",
            "memory",
            "memory_bytes",
            "GiB",
            ("memory_bytes", "lower_bound_bytes", "upper_bound_bytes"),
            scale=2.0**-30,
            logarithmic=True,
        ),
        Target(
            "latency_s",
            "operators",
            "latency_s",
            "ms",
            # The kernel chosen by a library is known only after it ran.
            ("latency_s", "kernel", "warps_per_sm", "blocks_per_sm", "grid_blocks", "block_threads"),
            scale=1e3,
            logarithmic=True,
        ),
        Target(
            "step_time_ratio",
            "mixes",
            "log_step_time_ratio",
            "step time at the first share / at the second",
            ("log_step_time_ratio",),
            logarithmic=True,
            exponent=True,
        ),
    )
}


def get_target(name: str) -> Target:
    """The target called `name`.

    Raises:
        UnknownNameError: no such target.
    """
    if name not in TARGETS:
        raise UnknownNameError("unknown target", expected="one of " + ", ".join(TARGETS), got=name)
    return TARGETS[name]
