"""Forward and backward time by module and operator kind, from torch.profiler.

Only the member's process imports this module, so torch is imported at the top.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from profiling.errors import UnavailableError
from profiling.operators import ATEN

_MODULE = "cotenant-module|"
_BACKWARD = "autograd::engine::evaluate_function: "
# Path of a module, and kind of an operator in it.
_Place = tuple[str, str]


def profile_operators(job: Any, device: str, steps: int) -> dict[str, Any]:
    """Time every operator of `steps` training steps.

    A forward operator belongs to the innermost module that ran it, a backward operator to the forward operator with
    the same autograd sequence number. Times are self times, so nothing is counted twice. On the CPU the profiler
    itself takes microseconds per operator, so all times are scaled to the step time without it.

    Args:
        job: training job on `device`.
        device: `cpu` or `cuda`.
        steps: number of steps to profile; as many are timed without the profiler.

    Returns:
        `rows` (module path, kind, `forward_s` and `backward_s` per step), `optimizer_s`, `step_time_s`, and
        `profiler_scale`, the factor applied to all times.

    Raises:
        UnavailableError: the profiler recorded no kernel on the GPU.
    """
    plain_s = _timed(job, device, steps)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with _module_ranges(job.model), profile(activities=activities, acc_events=True) as recording:
        profiled_s = _timed(job, device, steps)
    # Kernels are also separate events, but their time already counts for the operator that launched them.
    events = [e for e in recording.events() or [] if e.device_type == DeviceType.CPU]
    on_device = device == "cuda"
    if on_device and not any(_self_time_s(event, on_device) > 0 for event in events):
        raise UnavailableError(
            "torch.profiler recorded no kernel on the GPU",
            hint="CUPTI may lack privileges: NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN in a "
            "container",
        )
    forward, backward, optimizer_s = attributed(events, on_device)
    scale = 1.0 if on_device else min(1.0, plain_s / profiled_s)
    rows = [
        {
            "module": path,
            "kind": kind,
            "forward_s": forward[path, kind] * scale / steps,
            "backward_s": backward[path, kind] * scale / steps,
        }
        for path, kind in sorted({*forward, *backward})
    ]
    return {
        "rows": rows,
        "optimizer_s": optimizer_s * scale / steps,
        "step_time_s": plain_s / steps,
        "profiler_scale": scale,
    }


def attributed(
    events: Sequence[Any], on_device: bool
) -> tuple[dict[_Place, float], dict[_Place, float], float]:
    """Self times of the profiler's events: forward and backward seconds by place, and the optimiser's.

    Args:
        events: operators and ranges on the CPU, in any order.
        on_device: whether the time of their kernels counts, rather than their own.
    """
    ordered = sorted(events, key=lambda e: e.time_range.start)
    places: dict[int, _Place] = {}
    for event in ordered:
        lineage = list(_lineage(event))
        if event.sequence_nr >= 0 and event.name.startswith("aten::") and not _backward_root(lineage):
            # Operators without gradients have the number of the next autograd node, which is made by the last of them.
            places[event.sequence_nr] = _place(lineage)

    forward: dict[_Place, float] = defaultdict(float)
    backward: dict[_Place, float] = defaultdict(float)
    optimizer_s = 0.0
    for event in ordered:
        seconds = _self_time_s(event, on_device)
        if seconds <= 0 or event.name.startswith(_MODULE):
            continue
        lineage = list(_lineage(event))
        if any(e.name.startswith("Optimizer.") for e in lineage):
            optimizer_s += seconds
        elif _backward_root(lineage) is not None:
            inner = _place(lineage)
            number = next((e.sequence_nr for e in lineage if e.sequence_nr >= 0), -1)
            # A checkpointed block reruns its modules within the backward pass, so their path is known.
            backward[inner if inner[0] else places.get(number, ("", "other"))] += seconds
        else:
            forward[_place(lineage)] += seconds
    return forward, backward, optimizer_s


def _self_time_s(event: Any, on_device: bool) -> float:
    if not on_device:
        return float(event.self_cpu_time_total) * 1e-6
    # A range (of the optimiser or a module) also appears on the device, as a "kernel" with the range's name.
    return sum(float(k.duration) for k in event.kernels if k.name != event.name) * 1e-6


def _timed(job: Any, device: str, steps: int) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        job.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


@contextmanager
def _module_ranges(model: torch.nn.Module) -> Iterator[None]:
    """Mark the running module in the profile, by ranges with its name."""
    open_ranges: list[Any] = []
    handles = []

    def enter(name: str) -> Any:
        def hook(_module: Any, _inputs: Any) -> None:
            span = record_function(_MODULE + name)
            span.__enter__()
            open_ranges.append(span)

        return hook

    def leave(_module: Any, _inputs: Any, _output: Any) -> None:
        if open_ranges:
            open_ranges.pop().__exit__(None, None, None)

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _lineage(event: Any) -> Iterator[Any]:
    """The event and its callers, innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _backward_root(lineage: list[Any]) -> Any:
    return next((e for e in reversed(lineage) if e.name.startswith(_BACKWARD)), None)


def _place(lineage: list[Any]) -> _Place:
    """Innermost module's path, and the kind of the outermost operator within it that has one."""
    kind = "other"
    for event in lineage:
        if event.name.startswith(_MODULE):
            return event.name.removeprefix(_MODULE), kind
        if event.name.startswith("aten::"):
            kind = ATEN.get(event.name.removeprefix("aten::"), kind)
    return "", kind
