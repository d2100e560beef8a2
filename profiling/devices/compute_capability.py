"""Properties of each compute capability, per multiprocessor: residency limits and operations per clock cycle."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ComputeCapability:
    """One column of the vendor's table of technical specifications.

    Attributes:
        max_threads_per_sm, max_warps_per_sm, max_blocks_per_sm: maximum resident at a time.
        registers_per_sm: number of 32-bit registers.
        shared_memory_bytes_per_sm: maximum shared memory.
        fp32_per_clock, fp64_per_clock, fp16_per_clock, bf16_per_clock: fused multiply-adds per clock on CUDA cores; 0
            without such an instruction.
        fp16_tensor_per_clock: dense FP16 fused multiply-adds per clock on tensor cores, with FP32 accumulation (from
            Turing on, GeForce cards have half); 0 without tensor cores.
        fp32_flops_per_w: peak FP32 rate per watt of a card whose power limit allows its boost clock.
    """

    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_memory_bytes_per_sm: int
    fp32_per_clock: int
    fp64_per_clock: int
    fp16_per_clock: int = 0
    bf16_per_clock: int = 0
    fp16_tensor_per_clock: int = 0
    fp32_flops_per_w: float = 0.0


RESIDENCY = (
    "max_threads_per_sm",
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "registers_per_sm",
    "shared_memory_bytes_per_sm",
)
"""Fields copied to a `DeviceSpec`."""


@lru_cache(maxsize=1)
def compute_capabilities() -> dict[str, ComputeCapability]:
    """Compute capabilities by name: `8.0` (NVIDIA), or LLVM's target such as `gfx90a` (AMD)."""
    path = Path(__file__).with_name("compute_capabilities.toml")
    with path.open("rb") as stream:
        return {name: ComputeCapability(**row) for name, row in tomllib.load(stream).items()}
