"""Per-multiprocessor properties of each compute capability: residency limits, and arithmetic per clock
cycle."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ComputeCapability:
    """One column of the vendor's table of technical specifications.

    Attributes:
        max_threads_per_sm, max_warps_per_sm, max_blocks_per_sm: resident at a time.
        registers_per_sm: of 32 bits each.
        shared_memory_bytes_per_sm: at most.
        fp32_per_clock, fp64_per_clock, fp16_per_clock, bf16_per_clock: fused multiply-adds on CUDA cores; 0 where there is
            no such instruction.
        fp16_tensor_per_clock: dense FP16 fused multiply-adds on tensor cores with FP32 accumulation (GeForce cards have
            half of it from Turing on); 0 where there are none.
        fp32_flops_per_w: peak FP32 rate per watt of a card whose power limit lets it hold its boost clock.
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
"""The fields copied to a `DeviceSpec`."""


@lru_cache(maxsize=1)
def compute_capabilities() -> dict[str, ComputeCapability]:
    """By name: `8.0` of NVIDIA, `gfx90a` (LLVM's target) of AMD."""
    path = Path(__file__).with_name("compute_capabilities.toml")
    with path.open("rb") as stream:
        return {name: ComputeCapability(**row) for name, row in tomllib.load(stream).items()}
