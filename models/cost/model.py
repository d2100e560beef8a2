"""`CostModel`: the fitted cost model; predicts in NumPy from a small file of coefficients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from models.cost.form import (
    EFFECTS,
    LATENCY_RANGE,
    LATENCY_S,
    OFFSETS,
    OUTPUTS,
    OVERLAP,
    overlapped,
    slowed_memory,
)
from models.cost.job import JobCost, JobInput, OperatorCost, effect_names, mean_cost
from models.cost.operator_features import OPERATOR_FEATURES, fused
from models.cost.work import Floats, memory_s, strain_of, width_of
from profiling.devices import DeviceSpec, get_device
from profiling.errors import InputError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import PREDICTED_PRECISIONS, Workload

SHIPPED = Path(__file__).with_name("coefficients")
# Written last: a folder without it has no coefficients.
MARKER = "card.json"
_ARRAYS = "cost.safetensors"
_FORMAT = 4
_SHIFTED = [OUTPUTS.index(name) for name in EFFECTS]


@dataclass(frozen=True, eq=False)
class CostModel:
    """Step time and its components for any graph, device and options: the mean of a few networks.

    Attributes:
        members: for each network, arrays by the names of `EfficiencyNetwork`'s parameters, and `mean` and
            `scale` of the features.
        devices: device types, and types with a precision, that have an effect of their own (`effect_names`),
            in the order of `device_effect`.
        campaigns: campaigns with host costs of their own, in the order of `host_effect`.
        card: what it was fitted to, and how accurate it is.
    """

    members: tuple[Mapping[str, Floats], ...]
    devices: tuple[str, ...] = ()
    campaigns: tuple[str, ...] = ()
    card: Mapping[str, Any] = field(default_factory=dict)
    _effect_rows_of: dict[tuple[str, str], tuple[list[int], list[int]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def cost(
        self, graph: ComputationGraph, device: DeviceSpec, workload: Workload, campaign: str = ""
    ) -> JobCost:
        """Cost of one step of a graph captured for training with nothing frozen.

        The host costs of inference and training are fitted to different scripts, but an inference step takes no longer
        than the passes of the same job's training step.

        Args:
            graph: the graph.
            device: the device.
            workload: gives mode, frozen layers, layout, compiler and precision.
            campaign: name of a campaign, if the job runs on its host and the host's costs were learned.

        Raises:
            InputError: the device lacks the precision.
        """
        cost = self.cost_of(JobInput.of(graph, device, workload), campaign)
        # Steps with the same host costs are in order as they are.
        if workload.mode == "training" or workload.data_on_device:
            return cost
        passes = JobInput.of(graph, device, replace(workload, mode="training")).without_optimizer()
        return cost.at_most(self.cost_of(passes, campaign).step_time_s)

    def cost_of(self, job: JobInput, campaign: str = "") -> JobCost:
        """Like `cost`, for an input built beforehand, and as fitted: the training step does not limit inference."""
        cost = mean_cost([self._cost_by(member, job, campaign) for member in self.members])
        if job.in_fp32 is None:
            return cost
        if job.precision == "fp64":
            return cost.at_least(self.cost_of(job.in_fp32, campaign))
        # If TF32 was measured on the device, its effect is known; otherwise assume that it is no slower than
        # FP32.
        if effect_names(job.device.name, job.precision)[1] in self.devices:
            return cost
        return min(cost, self.cost_of(job.in_fp32, campaign), key=lambda c: c.step_time_s)

    def has_measured(self, device: str, precision: str = "") -> bool:
        """Whether steps on that GPU type (in that precision, if one is given) were in the fit."""
        whole, in_precision = effect_names(device, precision)
        if precision:
            return precision not in PREDICTED_PRECISIONS and in_precision in self.devices
        return any(name.split(" ", 1)[0] == whole for name in self.devices)

    def never_measured(self, device: str, precision: str) -> str:
        """What was never measured of steps on that GPU type in that precision, in words; empty if both were."""
        if self.has_measured(device, precision):
            return ""
        if precision in PREDICTED_PRECISIONS:
            return f"step times in {precision} were never measured on any GPU type"
        if self.has_measured(device):
            return f"step times in {precision} were never measured on {device}"
        return f"step times were never measured on this GPU type ({device})"

    def for_unmeasured(self, device: DeviceSpec) -> CostModel:
        """The model with the device's type treated as unmeasured, if only training scripts measured it."""
        whole = effect_names(device.name, "")[0]
        kept = [not name.startswith(f"{whole} ") for name in self.devices]
        if whole in self.devices or all(kept):
            return self
        rows = [*kept, True]
        members = tuple({**w, "device_effect": w["device_effect"][rows]} for w in self.members)
        return replace(
            self,
            members=members,
            devices=tuple(n for n, keep in zip(self.devices, kept, strict=True) if keep),
        )

    def call_times(self, job: JobInput) -> Floats:
        """[N] seconds of each operator when called and timed by itself: device and host call overlapped."""
        members = []
        for w in self.members:
            busy = (self._operator_times(w, job) * job.mask).sum(0)
            call = np.exp(w["log_call_s"])[job.kind]
            members.append(overlapped(busy, call))
        return np.asarray(np.mean(members, axis=0))

    def _cost_by(self, w: Mapping[str, Floats], job: JobInput, campaign: str) -> JobCost:
        device, work = job.device, job.work
        times = self._operator_times(w, job) * job.mask
        repeat = work.repeat
        launches_ratio = float(np.exp(w["log_compiled_launches"])) if job.is_compiled else 1.0
        kernels = work.kernels * job.mask * repeat
        operators = OperatorCost(
            times * repeat,
            work.compute_s * job.mask * repeat,
            work.traffic_bytes * job.mask * repeat,
            kernels,
        )
        bandwidth = device.memory_bandwidth_bytes_per_s
        optimizer = job.optimizer_bytes / bandwidth * float(np.exp(np.logaddexp(0.0, w["optimizer"])))
        busy = float(operators.busy_s.sum()) + optimizer
        log_host_s = w["log_host_s"][job.host]
        if campaign in self.campaigns:
            log_host_s = log_host_s + w["host_effect"][self.campaigns.index(campaign)]
        launch_s, fixed_s, sample_s = np.exp(log_host_s)
        launches = job.launches * launches_ratio + job.library_launches
        launching = float(launches * launch_s)
        host = job.host_bytes / device.pcie_bytes_per_s if job.host_bytes else 0.0
        overhead = float(fixed_s + job.samples * sample_s)
        step = overlapped(busy, launching) + overhead + host
        return JobCost(
            operators,
            busy,
            optimizer,
            launching,
            host,
            overhead,
            step,
            job.floor_s,
            float(operators.compute_s.sum()),
            float(operators.traffic_bytes.sum()) + job.optimizer_bytes,
            launches,
            float((operators.busy_s * work.occupancy).sum() / max(float(operators.busy_s.sum()), 1e-12)),
        )

    def _operator_times(self, w: Mapping[str, Floats], job: JobInput) -> Floats:
        """[2, N] seconds of one execution of each operator."""
        work = job.work
        standard = (job.features - w["mean"]) / w["scale"]
        standard = np.clip(standard, -20.0, 20.0)
        first, bias = w["layers.0.weight"], w["layers.0.bias"]
        shared = standard @ first[:, :-1].T + bias
        memory = memory_s(work, job.device, float(_sigmoid(w["cached_share"])))
        offsets, shift = np.array(OFFSETS), np.zeros(len(OFFSETS))
        shift[_SHIFTED] = self.effects(w["device_effect"], job)
        slowed = slowed_memory(job.sm_share_ratio, 1.0 + float(np.exp(w["log_pull"])))
        clock = np.exp(float(_sigmoid(w["slowing"])) * strain_of(job.device))
        is_fused = fused(job.kind) & job.is_compiled
        latency_s = LATENCY_S * np.where(is_fused, np.exp(w["log_compiled_launches"]), 1.0)
        feeding, padding = np.exp(w["log_feeding"]), _sigmoid(w["padding"])
        fed = clock * (1.0 + feeding[0] * work.density + feeding[2] * work.double_density)
        times = np.zeros((2, len(job.kind)))
        for side in (0, 1):
            hidden = _silu(shared + side * first[:, -1])
            hidden = _silu(hidden @ w["layers.2.weight"].T + w["layers.2.bias"])
            outputs = (
                hidden @ w["output.weight"].T + w["output.bias"] + w["by_kind"][side][job.kind] + offsets
            )
            varies = np.clip(outputs[:, 3], -LATENCY_RANGE, LATENCY_RANGE) + shift[3]
            outputs = outputs + shift
            compute = work.compute_s[side] + padding * work.padding_s[side]
            compute = compute + work.block_s[side] * np.exp(outputs[:, 2])
            compute = compute * fed / _sigmoid(outputs[:, 0])
            moved = (
                memory[side] * slowed * (1.0 + feeding[1] * width_of(job.device)) / _sigmoid(outputs[:, 1])
            )
            if job.is_compiled:
                moved = moved * np.where(is_fused, _sigmoid(outputs[:, 4]), 1.0)
            else:
                moved = np.maximum(moved, work.serial_s[side])
            joined = (compute**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)
            joined = np.maximum(joined, work.least_s[side])
            latency = work.kernels[side] * latency_s * np.exp(varies)
            runs = (work.compute_s[side] + work.traffic_bytes[side]) > 0
            times[side] = np.where(runs, joined + latency, 0.0)
        return times

    def effects(self, table: Floats, job: JobInput) -> Floats:
        """[len(EFFECTS)] sum of the effects of a job's device type and of the type with the job's
        precision."""
        total = np.zeros(table.shape[1])
        for rows in self._effect_rows(job.device, job.precision):
            if rows:
                total += table[rows].mean(0)
        return total

    def _effect_rows(self, device: DeviceSpec, precision: str) -> tuple[list[int], list[int]]:
        """Rows of the effects of a device type, and of the type with a precision; each list is averaged.

        A type not measured in that precision takes the effects of types with the same chip that were, those with
        the memory most like its own; failing these, it takes the effect of the types with that chip and, for the
        precision, of all GPUs measured in it. If there is no such type either, all GPUs stand in for the type.
        CPUs are not averaged. A type known by training scripts only has an effect with its precision alone, which
        holds for its other precisions, too, and is not averaged either.
        """
        whole, in_precision = effect_names(device.name, precision)
        known = self._effect_rows_of.get((whole, in_precision))
        if known is not None:
            return known
        suffix = in_precision.removeprefix(whole)

        def measured(types: list[str]) -> list[str]:
            return [t for t in types if t + suffix in self.devices]

        gpus = [name for name in self.devices if " " not in name and not name.startswith("cpu")]
        alike = [whole]
        if not measured(alike):
            alike = [t for t in gpus if t == whole or _have_one_chip(t, whole)]
            alike = _with_nearest_memory(measured(alike) or alike, whole) or gpus
        known = (
            [self.devices.index(t) for t in alike if t in self.devices],
            [self.devices.index(t + suffix) for t in measured(alike) or measured(gpus)],
        )
        if whole not in self.devices and in_precision not in self.devices:
            by_scripts = [k for k, name in enumerate(self.devices) if name.startswith(f"{whole} ")]
            known = ([], by_scripts) if by_scripts else known
        self._effect_rows_of[whole, in_precision] = known
        return known

    def save(self, folder: Path) -> None:
        """Write the coefficients (safetensors) and the card (JSON), each file atomically."""
        from safetensors.numpy import save

        from profiling.files import write_whole

        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            f"{number}.{name}": np.array(a, dtype=np.float32, order="C")
            for number, member in enumerate(self.members)
            for name, a in member.items()
        }
        about = {
            "format": _FORMAT,
            "features": list(OPERATOR_FEATURES),
            "devices": list(self.devices),
            "campaigns": list(self.campaigns),
            **self.card,
        }
        write_whole(folder / _ARRAYS, save(arrays))
        write_whole(folder / MARKER, json.dumps(about, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, folder: Path) -> CostModel:
        """Read what `save` wrote.

        Raises:
            InputError: a file is missing or damaged, or has another version.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            card = json.loads((folder / MARKER).read_text(encoding="utf-8"))
            arrays = load_file(folder / _ARRAYS)
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(
                f"cannot read a cost model from {folder}",
                expected=f"{MARKER} and {_ARRAYS}",
                got=str(error),
                hint="fit one with python -m predictor.training.cost",
            ) from None
        found = card.pop("format", None)
        if found != _FORMAT or tuple(card.pop("features", ())) != OPERATOR_FEATURES:
            raise InputError(
                f"the cost model in {folder} has an unsupported version",
                expected=f"format {_FORMAT} with the features of this version",
                got=f"format {found}",
                hint="refit it with python -m predictor.training.cost",
            )
        devices, campaigns = tuple(card.pop("devices")), tuple(card.pop("campaigns"))
        members: dict[int, dict[str, Floats]] = {}
        for name, array in arrays.items():
            number, _, parameter = name.partition(".")
            members.setdefault(int(number), {})[parameter] = array.astype(np.float64)
        return cls(tuple(members[k] for k in sorted(members)), devices, campaigns, card)


@cache
def default_cost_model() -> CostModel:
    """The cost model that ships with the project; read once."""
    return CostModel.load(SHIPPED)


def _have_one_chip(one: str, other: str) -> bool:
    """Whether two catalogue types are boards with the same GPU, differing in memory, clocks or power."""
    try:
        chips = [(d.compute_capability, d.sm_count, d.l2_bytes) for d in map(get_device, (one, other))]
    except UnknownNameError:
        return False
    return chips[0] == chips[1] and bool(chips[0][0])


def _with_nearest_memory(types: list[str], card: str) -> list[str]:
    """Those of some catalogue types whose memory bandwidth is nearest to the card's."""
    if len(types) < 2:
        return types
    own, *others = (np.log(get_device(name).memory_bandwidth_bytes_per_s) for name in (card, *types))
    apart = np.abs(np.array(others) - own)
    return [name for name, far in zip(types, apart, strict=True) if far <= apart.min()]


def _sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40, 40)))


def _silu(x: Floats) -> Floats:
    return x * _sigmoid(x)
