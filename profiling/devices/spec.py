"""`DeviceSpec`: a GPU (or CPU) type by its public numbers."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import InputError


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator type.

    Attributes:
        name: catalogue name, kebab-case (`v100`, `rtx-3090`, `cpu`).
        vendor, architecture: e.g. `nvidia`, `volta`.
        compute_capability: e.g. `7.0`; empty for a CPU.
        sm_count: streaming multiprocessors (cores of a CPU).
        clock_hz: boost clock.
        fp32_flops, tf32_flops, fp16_flops, bf16_flops: dense peak per second; 0 where the type has no such unit. fp16
            and bf16 are tensor-core rates where there are tensor cores.
        memory_bytes, memory_bandwidth_bytes_per_s: device memory.
        l2_bytes: last-level cache.
        pcie_bytes_per_s: one direction to the host.
        nvlink_bytes_per_s: one direction, all links together; 0 where there is none.
        mig_profiles: MIG slices that the type can be cut into.
        source: the public document that these numbers come from.
    """

    name: str
    vendor: str
    architecture: str
    compute_capability: str
    sm_count: int
    clock_hz: float
    fp32_flops: float
    tf32_flops: float
    fp16_flops: float
    bf16_flops: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float = 0.0
    mig_profiles: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        positive = ("sm_count", "clock_hz", "fp32_flops", "memory_bytes", "memory_bandwidth_bytes_per_s")
        for field_name in positive:
            if not getattr(self, field_name) > 0:
                raise InputError(
                    f"device {self.name!r}: {field_name} is out of range",
                    expected="a number above 0",
                    got=getattr(self, field_name),
                )

    def peak_flops(self, precision: str) -> float:
        """Best dense rate at which this type runs matrix products in `precision`; falls back to FP32."""
        rate = {
            "fp32": self.fp32_flops,
            "tf32": self.tf32_flops,
            "amp": self.fp16_flops,
            "fp16": self.fp16_flops,
            "bf16": self.bf16_flops,
        }.get(precision, 0.0)
        return rate or self.fp32_flops
