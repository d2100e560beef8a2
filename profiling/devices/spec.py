"""`DeviceSpec`: a GPU (or CPU) type by its public specifications."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import InputError

# Example cards for error messages; a test checks them against the catalogue.
CARDS_WITH = {
    "tf32": ("a100", "a30", "a40", "rtx-3090", "l4", "h100", "b200", "mi300x"),
    "bf16": ("a100", "a30", "a40", "rtx-3090", "l4", "h100", "b200", "mi250"),
    "fp8": ("l4", "l40s", "rtx-4090", "h100", "h200", "b200", "rtx-5090", "mi300x"),
    "fp64": ("v100", "a100", "h100", "mi250"),
}
_VOLTA = 7.0
DEVICE_PRECISIONS = ("fp64", "fp32", "tf32", "amp", "fp16", "bf16", "fp8")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One type of accelerator (or CPU).

    Peak rates are dense, in FLOP/s, and 0 if the type has no such unit. "CUDA cores" stands for any vendor's vector
    units, "tensor cores" for its matrix units. Tensor-core rates are with FP32 accumulation; on GeForce cards these
    are half of those often quoted.

    Attributes:
        name: catalogue name, kebab-case (`v100`, `rtx-3090`, `cpu`).
        vendor, architecture: e.g. `nvidia`, `volta`.
        compute_capability: e.g. `7.0`; LLVM's target on AMD (`gfx90a`); empty for a CPU.
        sm_count: streaming multiprocessors (compute units of AMD, cores of a CPU).
        clock_hz: boost clock.
        fp32_flops: on CUDA cores.
        tf32_flops, fp8_flops: on tensor cores, the only units that have them.
        fp16_flops, bf16_flops, fp64_flops: the higher rate of tensor cores and CUDA cores.
        fp16_cuda_flops, bf16_cuda_flops, fp64_cuda_flops: on CUDA cores.
        fp32_matrix_flops: full FP32 on matrix units (AMD).
        memory_bytes, memory_bandwidth_bytes_per_s: of device memory.
        memory_type, memory_bus_bits: e.g. `hbm2e`, 5120.
        l2_bytes: last-level cache.
        pcie_bytes_per_s: one direction to the host; over NVLink-C2C on a superchip.
        nvlink_bytes_per_s: one direction to other GPUs, over all links; 0 without NVLink.
        power_limit_w: of the board; half of it if two GPUs share the board.
        max_threads_per_sm, max_warps_per_sm, max_blocks_per_sm: maximum resident on a multiprocessor.
        registers_per_sm: number of 32-bit registers.
        shared_memory_bytes_per_sm: maximum shared memory.
        mig_profiles: supported MIG profiles.
        source: public documents with these numbers.
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
    fp64_flops: float = 0.0
    fp8_flops: float = 0.0
    fp64_cuda_flops: float = 0.0
    fp16_cuda_flops: float = 0.0
    bf16_cuda_flops: float = 0.0
    fp32_matrix_flops: float = 0.0
    memory_type: str = ""
    memory_bus_bits: int = 0
    power_limit_w: float = 0.0
    max_threads_per_sm: int = 0
    max_warps_per_sm: int = 0
    max_blocks_per_sm: int = 0
    registers_per_sm: int = 0
    shared_memory_bytes_per_sm: int = 0

    def __post_init__(self) -> None:
        positive = ("sm_count", "clock_hz", "fp32_flops", "memory_bytes", "memory_bandwidth_bytes_per_s")
        for field_name in positive:
            if not getattr(self, field_name) > 0:
                raise InputError(
                    f"device {self.name!r}: {field_name} is out of range",
                    expected="a number above 0",
                    got=getattr(self, field_name),
                )

    @property
    def is_cpu(self) -> bool:
        """Whether this is a CPU, on which launches are calls and no input is copied."""
        return self.name == "cpu" or self.name.startswith("cpu-")

    @property
    def has_mps(self) -> bool:
        """Whether NVIDIA's Multi-Process Service runs on it."""
        return self.vendor == "nvidia" and not self.is_cpu

    @property
    def has_mps_shares(self) -> bool:
        """Whether MPS can limit a process to a share of the multiprocessors: from Volta on (NVIDIA, MPS manual)."""
        return self.has_mps and float(self.compute_capability or 0) >= _VOLTA

    def supports(self, precision: str) -> bool:
        """Whether this type supports that precision natively.

        FP16 runs everywhere: without a unit for it, frameworks convert and compute in FP32, as CPUs do for FP16 and
        BF16. TF32, BF16 and FP8 need the unit: without it, PyTorch would run TF32 as FP32 and emulate BF16.
        """
        if precision in ("fp32", "fp16", "amp"):
            return True
        if precision == "bf16" and self.is_cpu:
            return True
        return precision in DEVICE_PRECISIONS and getattr(self, f"{precision}_flops") > 0

    def check_precision(self, precision: str) -> None:
        """Raise `InputError` if this type lacks `precision`; the message names cards that support it."""
        if self.supports(precision):
            return
        if precision not in DEVICE_PRECISIONS:
            raise InputError(
                "unknown precision", expected="one of " + ", ".join(DEVICE_PRECISIONS), got=precision
            )
        instead = "fp32" if precision in ("tf32", "fp64") else "amp"
        own = f", or give {precision}_flops in its device file" if self.vendor == "custom" else ""
        raise InputError(
            f"{self.name} has no {precision.upper()}",
            expected="a card with it, such as " + ", ".join(CARDS_WITH[precision]),
            got=f"precision {precision} on {self.name}",
            hint=f"precision={instead} runs there{own}",
        )

    def peak_flops(self, precision: str, tensor_core: bool = True) -> float:
        """Peak dense rate in `precision`, in FLOP/s.

        Args:
            precision: `fp64`, `fp32`, `tf32`, `fp16`, `amp` (as `fp16`), `bf16` or `fp8`.
            tensor_core: whether tensor cores can execute the operation (a matrix product or a convolution); otherwise
                the rate is that of CUDA cores, which compute TF32 and FP8 data in FP32.

        Raises:
            InputError: the type lacks that precision; see `check_precision`.
        """
        self.check_precision(precision)
        kind = "fp16" if precision == "amp" else precision
        native = {
            "fp64": self.fp64_cuda_flops or self.fp64_flops,
            "fp16": self.fp16_cuda_flops,
            "bf16": self.bf16_cuda_flops,
        }.get(kind, 0.0)
        # Frameworks convert to FP32 if there is no unit for half precision, or a slower one.
        on_cuda_cores = native if kind == "fp64" else max(native, self.fp32_flops)
        if not tensor_core:
            return on_cuda_cores
        on_tensor_cores = self.fp32_matrix_flops if kind == "fp32" else getattr(self, f"{kind}_flops")
        return float(max(on_tensor_cores, on_cuda_cores))
