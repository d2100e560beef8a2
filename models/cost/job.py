"""Inputs and outputs of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from models.cost.form import HOSTS
from models.cost.layouts import are_channels_last
from models.cost.operator_features import context_of, fitted_kind, fused, operator_features
from models.cost.whole import whole_columns
from models.cost.work import IS_CONTRACTION, Floats, OperatorWork, floor_s, work_of
from profiling.devices import DeviceSpec, split_device
from profiling.graph import ComputationGraph
from profiling.graph_columns import CODE_COLUMNS
from profiling.operators import DTYPES
from profiling.workload import Workload

HALF = ("amp", "fp16", "bf16", "fp8")
"""Precisions whose activations have 16 bits. FP8, in which nothing was measured, is fitted as one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class JobInput:
    """One job of N operators on one device, as input of the cost model.

    Attributes:
        features: [N, F] see `operator_features`.
        work: work per execution.
        mask: [2, N] share of an operator's pass that runs, see `pass_mask`.
        kind: [N] see `fitted_kind`.
        optimizer_bytes, optimizer_kernels: per step, in proportion to the unfrozen parameters.
        host_bytes: copied from the host per step.
        samples: samples per step, in all its passes.
        host: index into `HOSTS`.
        sm_share_ratio: share of the multiprocessors that the job may use, at least one of them.
        in_fp32: for a job in TF32, the same job in FP32, whose kernels a library may fall back on; for one in FP64, the
            same job in FP32 with as many bytes, which takes no longer.
    """

    features: Floats
    work: OperatorWork
    mask: Floats
    kind: np.ndarray
    optimizer_bytes: float
    optimizer_kernels: float
    host_bytes: float
    samples: int
    device: DeviceSpec
    is_compiled: bool
    precision: str
    host: int
    sm_share_ratio: float = 1.0
    in_fp32: JobInput | None = None

    @classmethod
    def of(cls, graph: ComputationGraph, device: DeviceSpec, workload: Workload) -> JobInput:
        """From a graph captured in training mode.

        Raises:
            InputError: the device lacks the job's precision.
        """
        return cls._of(graph, graph.columns, device, workload)

    @classmethod
    def _of(
        cls, graph: ComputationGraph, columns: dict[str, Floats], device: DeviceSpec, workload: Workload
    ) -> JobInput:
        in_fp32 = None
        if workload.precision == "tf32":
            device.check_precision("tf32")
            scalar = columns | {"tensor_core": np.zeros_like(columns["tensor_core"])}
            in_fp32 = cls._of(graph, scalar, device, replace(workload, precision="fp32"))
        elif workload.precision == "fp64":
            single = columns | {name: _single(columns[name]) for name in CODE_COLUMNS if name != "kind"}
            in_fp32 = cls._of(graph, single, device, replace(workload, precision="fp32"))
        mask = pass_mask(graph, workload)
        is_training = workload.mode == "training"
        trained = trained_ratio(graph, workload.frozen_prefix) if is_training else 0.0
        stays = workload.data_on_device or device.is_cpu
        share = max(workload.sm_share_ratio, 1.0 / device.sm_count)
        context = context_of(workload, device.is_cpu)
        channels_last = are_channels_last(columns, graph.batch_size) & (
            workload.memory_layout == "channels-last"
        )
        return cls(
            operator_features(_once(whole_columns(graph, columns)), context, channels_last),
            work_of(columns, device, workload.precision, share, channels_last),
            mask,
            fitted_kind(columns),
            trained * graph.optimizer_bytes,
            trained * graph.optimizer_kernels,
            0.0 if stays else graph.host_input_bytes,
            graph.step_samples,
            device,
            workload.compiler == "compile",
            workload.precision,
            HOSTS.index("on_device" if workload.data_on_device else workload.mode),
            share,
            in_fp32,
        )

    def without_optimizer(self) -> JobInput:
        """The same step up to the end of its backward pass."""
        in_fp32 = None if self.in_fp32 is None else self.in_fp32.without_optimizer()
        return replace(self, optimizer_bytes=0.0, optimizer_kernels=0.0, in_fp32=in_fp32)

    def only(self, rows: slice | NDArray[np.intp]) -> JobInput:
        """Some operators, with the work of the passes that run; `in_fp32` stays as it is."""
        work = {f.name: getattr(self.work, f.name) for f in fields(OperatorWork)}
        chosen = {
            name: (part * self.mask if part.ndim == 2 else part)[..., rows] for name, part in work.items()
        }
        return replace(
            self,
            features=self.features[rows],
            work=OperatorWork(**chosen),
            mask=np.ones_like(self.mask[:, rows]),
            kind=self.kind[rows],
        )

    @property
    def launches(self) -> float:
        """Kernels per step, without those of `library_launches`."""
        return self._launches(fused(self.kind)) + self.optimizer_kernels

    @property
    def library_launches(self) -> float:
        """Kernels per step that a compiler leaves to a library."""
        return self._launches(~fused(self.kind))

    def _launches(self, these: NDArray[np.bool_]) -> float:
        return float((self.work.kernels * self.mask * self.work.repeat * these).sum())

    @property
    def floor_s(self) -> float:
        """Least step time by the data sheet.

        For a compiled job, only arithmetic counts, because a compiler may keep intermediate tensors out of
        memory.
        """
        least = self.work.compute_s if self.is_compiled else floor_s(self.work, self.device)
        busy = float((least * self.mask * self.work.repeat).sum())
        return busy + self.optimizer_bytes / self.device.memory_bandwidth_bytes_per_s


def _single(types: Floats) -> Floats:
    """[N] indices of types with FP32 for FP64."""
    return np.where(types == DTYPES.index("float64"), DTYPES.index("float32"), types)


def _once(columns: dict[str, Floats]) -> dict[str, Floats]:
    """The columns without what checkpointed blocks run again: a second pass is as efficient as the first."""
    return columns | {
        "backward_flops": columns["backward_flops"] - columns["recomputed_flops"],
        "kernel_count": columns["kernel_count"] - columns["recomputed_kernels"],
    }


def effect_names(device: str, precision: str) -> tuple[str, str]:
    """Names of two effects: of a device type on all its jobs, and on those of one precision.

    A slice (`a100:mig=2g`) takes the whole card's type, because the chip is the same.
    """
    whole = split_device(device)[0]
    return whole, f"{whole} {'half' if precision in HALF else precision}"


def pass_mask(graph: ComputationGraph, workload: Workload) -> Floats:
    """[2, N] share of an operator's forward and backward pass that runs.

    A frozen prefix removes what autograd skips: gradients of frozen parameters, and of inputs before the
    first trained one. Each of the two is half of a product's backward pass. What a graph that was captured
    with a frozen prefix already lacks is not removed again.
    """
    columns = graph.columns
    mask = np.ones((2, len(columns["kind"])))
    if workload.mode == "inference":
        mask[0] = 1.0 - columns["training_only"]
        mask[1] = 0.0
    elif workload.frozen_prefix > graph.frozen_prefix:
        before, after = (_backward_share(graph, k) for k in (graph.frozen_prefix, workload.frozen_prefix))
        mask[1] = after / np.where(before > 0, before, 1.0)
    return mask


def _backward_share(graph: ComputationGraph, frozen_prefix: int) -> Floats:
    """[N] share of the backward pass of the unfrozen model that runs with a frozen prefix."""
    if frozen_prefix <= 0:
        return np.ones(len(graph.operators))
    runs = graph.gradient_layers >= frozen_prefix
    share: Floats = np.where(runs[0] | runs[1], 1.0, 0.0)
    halves = IS_CONTRACTION[graph.columns["kind"].astype(int)] & (graph.gradient_layers >= 0).all(0)
    share[halves] = runs[:, halves].mean(0)
    return share


def trained_ratio(graph: ComputationGraph, frozen_prefix: int) -> float:
    """Share of the bytes of parameters trained at the capture that a frozen prefix leaves trained."""
    if frozen_prefix <= graph.frozen_prefix:
        return 1.0
    columns = graph.columns
    held, layer = columns["parameter_bytes"] * columns["repeat"], columns["layer_index"]
    untrained = (layer < graph.frozen_prefix) | np.isin(layer, list(graph.frozen_layers))
    held = np.where((layer >= 0) & untrained, 0.0, held)
    frozen = (layer >= 0) & (layer < frozen_prefix)
    return float(1.0 - held[frozen].sum() / held.sum()) if held.sum() > 0 else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCost:
    """Seconds and bytes of N operators, with all repeats.

    Forward [0] and backward [1], 0 if a pass does not run.

    Attributes:
        busy_s: [2, N] time on the device.
        compute_s: [2, N] arithmetic at peak rate.
        traffic_bytes: [2, N] device-memory traffic.
        kernels: [2, N].
    """

    busy_s: Floats
    compute_s: Floats
    traffic_bytes: Floats
    kernels: Floats


@dataclass(frozen=True, slots=True, eq=False)
class JobCost:
    """Cost of one step on a device.

    Attributes:
        operators: cost by operator and pass.
        busy_s: time in which the device runs a kernel, including the optimiser's.
        optimizer_s: time of the optimiser's kernels.
        launch_s: time in which the host launches kernels.
        host_s: time in which input is copied from the host.
        overhead_s: fixed cost of a step.
        step_time_s: device and launches overlapped, plus fixed cost and input copies.
        floor_s: least step time by the data sheet.
        compute_s, traffic_bytes: of the whole step: arithmetic at peak rate, device-memory traffic.
        launches: kernels per step.
        occupancy_ratio: share of the multiprocessors that are full, averaged over the time in which operators
            run.
    """

    operators: OperatorCost
    busy_s: float
    optimizer_s: float
    launch_s: float
    host_s: float
    overhead_s: float
    step_time_s: float
    floor_s: float
    compute_s: float
    traffic_bytes: float
    launches: float
    occupancy_ratio: float

    def at_most(self, step_time_s: float) -> JobCost:
        """The same cost with a step of at most this time: the host takes less."""
        over = self.step_time_s - step_time_s
        if over <= 0:
            return self
        return replace(self, step_time_s=step_time_s, overhead_s=max(self.overhead_s - over, 0.0))

    def at_least(self, other: JobCost) -> JobCost:
        """The longer of two costs of one job, with the arithmetic and the floor of this one."""
        if self.step_time_s >= other.step_time_s:
            return self
        operators = replace(other.operators, compute_s=self.operators.compute_s)
        return replace(other, operators=operators, compute_s=self.compute_s, floor_s=self.floor_s)

    @property
    def utilization_ratio(self) -> float:
        """Share of the step in which a kernel runs."""
        return min(self.busy_s / self.step_time_s, 1.0)


def mean_cost(costs: Sequence[JobCost]) -> JobCost:
    """Mean over several models' costs of one job; bounds that hold for each of them hold for the mean."""
    if len(costs) == 1:
        return costs[0]
    operators = replace(costs[0].operators, busy_s=np.mean([c.operators.busy_s for c in costs], 0))
    numbers = [f.name for f in fields(JobCost) if f.name != "operators"]
    return JobCost(operators, **{name: float(np.mean([getattr(c, name) for c in costs])) for name in numbers})
