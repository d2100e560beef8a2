"""Captures a training job on `meta` as its computation graph."""

from __future__ import annotations

import os
import re
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import profiling
from profiling.capture.fp8 import FP8, in_fp8
from profiling.capture.functions import DeviceFunctions, fused_functions
from profiling.capture.known import renew
from profiling.capture.live import forward_totals
from profiling.capture.optimizers import FLOPS, PASSES, STATES, launches
from profiling.capture.options import frozen_layers
from profiling.capture.recorder import Node, Recorder
from profiling.errors import CotenantError, InputError
from profiling.graph import ComputationGraph, Operator, TensorEdge, operator_names
from profiling.training import AUTOCAST, TrainingJob, atomic_layers, check_gradients, tensors_of

# Recording patches torch functions, so only one thread may record at a time.
_LOCK = threading.Lock()
_PYTHON = sysconfig.get_path("stdlib")

# What torch says of tensors on other devices than the input.
_OTHER_DEVICE = ("expected device", "same device", "Cannot copy out of meta")
_HINTS = {
    "more than 1 value per channel": "batch norms need two samples to train: take a larger batch, or mode=inference",
    "SparseTensorImpl": "tensors must be dense: build embeddings with sparse=False, and replace sparse matrices by "
    "dense ones or index_add",
    # Answers to a tensor's values: of `item`, `cpu`, `pack_padded_sequence`, `repeat_interleave`.
    **dict.fromkeys(
        (
            "cannot be called on meta tensors",
            "Cannot copy out of meta",
            "meta device type tensor to numpy",
            "1D CPU int64",
            "without output_size",
        ),
        "the model reads values of tensors, such as lengths: pass them as numbers, a list, or an input made with "
        "device='cpu', leave a loss that matches predictions with targets out, or try ONNX",
    ),
    **dict.fromkeys(
        _OTHER_DEVICE[:2],
        "tensors are on another device than the input: register a module's own as buffers, and make others with torch, "
        "not NumPy",
    ),
    "Torch not compiled with CUDA": "use the device of the input, as in `.to(x.device)`",
    **dict.fromkeys(
        ("torch.complex32", "Unsupported dtype BFloat16"),
        "Fourier transforms of half precision are complex32 in FP16 and do not exist in BF16: cast their input to FP32",
    ),
    "HigherOrderOperator": "torch's scan, map and while_loop cannot be recorded: write a loop in Python",
    "No module named": "install it in the environment of cotenant",
    "no fake impl or Meta kernel": "torch has no shape rule for this operator: use others instead, or try ONNX",
    "modified by an inplace operation": "this fails with data, too: the backward pass needs what an operator in place "
    "has overwritten; use one that is not in place",
    "only for scalar outputs": "the loss must be one number: take its mean",
    "unexpected keyword argument": "a dictionary of inputs holds keyword arguments: return ({...},) to pass it whole",
    "required positional argument": "the module gets the inputs, and the loss the module's output alone: use targets in it "
    "as in lambda output: cross_entropy(output, targets)",
}
_HINT = (
    "its inputs do not match, its control flow depends on values, or an operator has no shape rule; try ONNX"
)


def capture_job(
    job: TrainingJob,
    name: str,
    options: dict[str, Any] | None = None,
    live_totals: dict[str, list[float]] | None = None,
) -> ComputationGraph:
    """Record one training step of a job on `meta`: forward, loss, backward, optimiser. Nothing is computed.

    The job is unusable afterwards: its gradients remain, and its optimisers no longer step. Unknown operators keep
    their names and are counted in a warning.

    Args:
        job: built on the `meta` device.
        name: name of the graph.
        options: options of the graph.
        live_totals: receives the live bytes after each new tensor of the step (`activation_bytes`) and of a forward
            pass alone (`forward_activation_bytes`); the graph has the maxima.

    Raises:
        InputError: the job is not on `meta`, or its step cannot run without data.
    """
    if job.device.type != "meta":
        raise InputError("a job is captured on the meta device", expected="device 'meta'", got=job.device)
    layers = atomic_layers(job.model)
    layer_of = {
        id(p): i
        for i, (_, module) in reversed(list(enumerate(layers)))
        for p in module.parameters(recurse=False)
    }
    for optimizer in job.optimizers:
        # Work and state of an optimiser are known from its name, so its many small operators are not recorded.
        if optimizer is not None:
            setattr(optimizer, "step", _no_step)  # noqa: B010
    accumulation, job.gradient_accumulation = job.gradient_accumulation, 1
    with _LOCK:
        try:
            recorder, forward, loss = _recorded(job, layer_of)
        except _OtherDeviceError:
            # A model may make tensors on torch's default device, which training on a GPU would set.
            job.model.zero_grad(set_to_none=True)
            with torch.device("meta"):
                recorder, forward, loss = _recorded(job, layer_of)
    job.gradient_accumulation = accumulation
    check_gradients(job, loss, int(str((options or {}).get("frozen_prefix") or 0)))
    if recorder.unknown:
        counts = ", ".join(f"{kind} ({count})" for kind, count in sorted(recorder.unknown.items()))
        warnings.warn(
            f"{name}: operators without a canonical kind, counted by their shapes: {counts}", stacklevel=2
        )
    if recorder.selections:
        warnings.warn(
            f"{name}: {recorder.selections} selections by value (where, nonzero, masks) are assumed to "
            f"select everything, so each expert routed to in this way gets all tokens",
            stacklevel=2,
        )
    if recorder.absent:
        warnings.warn(
            f"{name}: assumed not to be in the batch: {', '.join(sorted(recorder.absent))} (`in` of a tensor)",
            stacklevel=2,
        )
    frozen = frozen_layers(
        [any(p.requires_grad for p in module.parameters(recurse=False)) for _, module in layers], options
    )
    graph = _graph(job, recorder, name, [layer for layer, _ in layers], {**(options or {}), **frozen})
    if live_totals is not None:
        live_totals |= {"activation_bytes": recorder.live.totals, "forward_activation_bytes": forward}
    graph = replace(graph, forward_activation_bytes=max(forward))
    return in_fp8(graph) if job.precision == FP8 else graph


@contextmanager
def _on_meta(job: TrainingJob) -> Iterator[DeviceFunctions]:
    """Run as a GPU build of torch would, but with shapes only."""
    from torch.fx.experimental import _config

    symbolic: Any = _config
    autocast = torch.float16 if job.precision in (AUTOCAST, FP8) else None
    with symbolic.patch(meta_nonzero_assume_all_nonzero=True), fused_functions(autocast) as functions:
        yield functions


class _OtherDeviceError(InputError):
    """A step used tensors on another device than the input."""


def _recorded(job: TrainingJob, layer_of: dict[int, int]) -> tuple[Recorder, list[float], torch.Tensor]:
    """The recording of a step, the live bytes of `forward_totals`, and the loss."""
    renew(job.batch)
    with _on_meta(job):
        forward = forward_totals(job)
    renew(job.batch)
    recorder = Recorder(job.model, job.batch, layer_of, tf32=job.precision == "tf32")
    return recorder, forward, _record(job, recorder)


def _record(job: TrainingJob, recorder: Recorder) -> torch.Tensor:
    with _on_meta(job) as functions, recorder.watching():

        def mark(part: str) -> None:
            functions.forget()
            recorder.absent = functions.absent
            if part == "forward":
                recorder.mark_forward_end()
            recorder.active = part != "backward"
            recorder.in_backward = part == "forward"

        try:
            return job.step(mark)
        except CotenantError:
            raise
        except Exception as error:  # the model's own code may raise anything
            # torch's advice on custom operators and modes does not help here.
            what = re.split(" You may have run into| and mode <", str(error))[0].strip()
            kind = type(error).__name__
            raise (_OtherDeviceError if any(part in what for part in _OTHER_DEVICE) else InputError)(
                "the training step cannot be traced without data",
                got=(f"{kind}: {what.splitlines()[0].rstrip('.')}" if what else kind) + _place(error),
                hint=next((hint for part, hint in _HINTS.items() if part in what), _HINT),
            ) from error


def _place(error: Exception) -> str:
    """Where in the model's code an error arose, for a message; empty if that is unknown."""
    # Torch's code and this package's, and Python's own below them.
    others = tuple(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (torch, profiling))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file()
        and not frame.filename.startswith(others)
        and ("site-packages" in frame.filename or not frame.filename.startswith(_PYTHON))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _graph(
    job: TrainingJob, recorder: Recorder, name: str, layers: list[str], options: dict[str, Any]
) -> ComputationGraph:
    repeat = job.gradient_accumulation
    parameters = list(job.model.parameters())
    trained = [p for p in parameters if p.grad is not None]
    gradient_bytes = float(sum(p.numel() * p.element_size() for p in trained))
    held = [p for o in job.optimizers if o is not None for g in o.param_groups for p in g["params"]]
    # Optimisers skip parameters without a gradient, such as those of a head that the loss does not read.
    updated = [p for p in held if p.grad is not None]
    elements = sum(p.numel() for p in updated)
    updated_bytes = float(sum(p.numel() * p.element_size() for p in updated))
    kind = job.optimizer_name
    # State is created with the first gradient; Adagrad creates it in its constructor.
    with_state = held if kind == "adagrad" else updated
    state_base = float(sum(p.numel() * p.element_size() for p in with_state))
    # Each further backward pass accumulates gradients: two reads, one write.
    accumulation_bytes = (repeat - 1) * 3 * gradient_bytes
    return ComputationGraph(
        name=name,
        operators=_operators(recorder.nodes, repeat),
        edges=tuple(TensorEdge(s, t, size) for (s, t), size in recorder.edges.items()),
        layers=tuple(layers),
        batch_size=job.batch_size,
        parameter_count=sum(p.numel() for p in parameters),
        parameter_bytes=float(sum(p.numel() * p.element_size() for p in parameters)),
        gradient_bytes=gradient_bytes,
        optimizer_state_bytes=STATES[kind] * state_base,
        optimizer_flops=float(FLOPS[kind] * elements),
        optimizer_bytes=PASSES[kind] * updated_bytes + accumulation_bytes,
        optimizer_kernels=launches(kind, len(updated)),
        activation_bytes=recorder.live.peak,
        host_input_bytes=repeat * float(sum(t.numel() * t.element_size() for t in tensors_of(job.batch))),
        options=options,
        source="torch",
    )


def _no_step(closure: Any = None) -> None:
    """Replaces the step of an optimiser while a job is recorded."""


def _operators(nodes: list[Node], repeat: int) -> tuple[Operator, ...]:
    names = operator_names((node.path, node.kind) for node in nodes)
    operators = []
    for name, node in zip(names, nodes, strict=True):
        operators.append(
            Operator(
                name=name,
                kind=node.kind,
                forward_flops=node.forward_flops,
                backward_flops=node.backward_flops,
                bytes_read=node.read,
                bytes_written=node.written,
                backward_bytes=node.backward_bytes,
                parameter_bytes=node.parameter_bytes,
                saved_activation_bytes=node.saved,
                output_shape=node.shape,
                dtype=node.dtype,
                input_dtype=node.input_dtype,
                weight_dtype=node.weight_dtype,
                module_path=node.path,
                layer_index=node.layer,
                kernel_count=node.forward_kernels + node.backward_kernels,
                forward_kernel_count=node.forward_kernels,
                recomputed_flops=node.recomputed_flops,
                recomputed_kernels=node.recomputed_kernels,
                tensor_core=node.tensor_core,
                repeat=repeat,
                training_only=node.training_only,
                sizes=node.sizes,
            )
        )
    return tuple(operators)
