"""Captures any `nn.Module` as a computation graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from profiling.capture.known import remember
from profiling.capture.options import execution_options, options_of
from profiling.capture.step import capture_job
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.training import PARAMETER_TYPES, Phase, TrainingJob, map_tensors, prepared_job, tensors_of
from profiling.workload import Workload


def capture_module(
    model: nn.Module,
    inputs: Any,
    *,
    name: str = "",
    loss: Callable[[Any], Tensor] | None = None,
    workload: Workload | None = None,
    static: bool = False,
    batch_size: int | None = None,
    in_place: bool = False,
) -> ComputationGraph:
    """The graph of one training step of a module, which is not modified.

    Args:
        model: on any device; only its shapes are used. Of `DataParallel` and `DistributedDataParallel`, the module
            inside is captured.
        inputs: a tensor, a tuple of positional inputs, or a dictionary of keyword inputs.
        name: name of the graph; by default, that of the class.
        loss: maps the module's output to a scalar; by default, the sum of the means of all floating-point outputs.
        workload: training options; its model and batch size are not used.
        static: trace with `torch.export` instead of recording a step; the backward pass then follows from rules.
        batch_size: samples in the inputs; by default, the first dimension of the first input.
        in_place: record the module itself if it is on `meta`, which spoils it, instead of a copy.

    Raises:
        InputError: no tensor among the inputs, or the step cannot be traced without data.
    """
    options = replace(workload or Workload(model=name or type(model).__name__), **execution_options(model))
    shadow = to_meta(model, in_place)
    own = replace(options, precision=_precision(shadow, options.precision))
    batch = map_tensors(inputs, _shape_of)
    title = name or type(model).__name__
    size = first_dimension(batch)
    size = batch_size or size
    if static:
        from profiling.capture.export import capture_export

        return capture_export(
            shadow, batch, name=title, batch_size=size, workload=own, loss=loss or mean_loss
        )
    job = job_of(shadow, batch, size, options, loss)
    accept_one_sample(job, options.mode)
    return capture_job(job, title, _options(own))


def _precision(model: nn.Module, asked: str) -> str:
    """The precision of a module's step: that of its weights if all have another type than FP32 and none was asked for."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    own = next((name for name, dtype in PARAMETER_TYPES.items() if types == {dtype}), asked)
    return own if asked == "fp32" else asked


def _shape_of(tensor: Tensor) -> Tensor:
    """An input without data, of which a gradient is computed if it was asked for.

    Raises:
        InputError: its sizes depend on its data.
    """
    _check_dense(tensor, "an input")
    shape = torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
    remember(shape, tensor)
    return shape


def _check_dense(tensor: Tensor, what: str) -> None:
    if tensor.layout != torch.strided or tensor.is_nested:
        raise InputError(
            f"{what} is sparse or nested",
            expected="dense tensors",
            got="a nested tensor" if tensor.is_nested else str(tensor.layout),
            hint="pad sequences; multiply by a dense matrix, or sum rows with index_add",
        )


def accept_one_sample(job: TrainingJob, mode: str) -> None:
    """Let batch norms that see one value per channel normalise with running statistics, as inference does.

    All others stay as in training, whose graph serves both modes.
    """
    if mode == "inference" and job.batch_size == 1:
        for module in job.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.register_forward_pre_hook(_normalize_one_value)


def _normalize_one_value(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if inputs[0].numel() == inputs[0].shape[1]:
        norm.eval()


def first_dimension(inputs: Any) -> int:
    """Batch size of the first input tensor; 1 for a scalar.

    Raises:
        InputError: there is no tensor, or the first one is empty.
    """
    first = next(tensors_of(inputs), None)
    if first is None:
        raise InputError(
            "the module has no tensor inputs", expected="a tensor, a tuple or a dictionary", got=inputs
        )
    if not first.numel():
        raise InputError(
            "the inputs are empty",
            expected="at least one sample in the first input",
            got=f"shape {tuple(first.shape)}",
        )
    return int(first.shape[0]) if first.dim() else 1


def job_of(
    model: nn.Module,
    batch: Any,
    batch_size: int,
    workload: Workload,
    loss: Callable[[Any], Tensor] | None = None,
) -> TrainingJob:
    """The training job of a module with the options of a workload."""
    reduce = loss or mean_loss

    def step_loss(module: nn.Module, values: Any, memo: dict[str, Any]) -> Tensor:
        return reduce(call(module, values))

    return prepared_job(model, batch, (Phase(step_loss),), batch_size, workload)


def call(module: nn.Module, inputs: Any) -> Any:
    """Apply a module to a tensor, a tuple or a mapping of inputs."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def mean_loss(output: Any) -> Tensor:
    """Sum of the means of all floating-point outputs, used if the loss is unknown."""
    if not isinstance(output, Mapping | list | tuple | Tensor) and hasattr(output, "__dict__"):
        output = vars(output)
    means = [t.mean() for t in tensors_of(output) if t.is_floating_point()]
    if not means:
        types = sorted({str(t.dtype).removeprefix("torch.") for t in tensors_of(output)})
        raise InputError(
            "the module has no floating-point output to train on",
            got=f"tensors of {' and '.join(types)}" if types else type(output).__name__,
            hint="return a loss with the module and its inputs",
        )
    return torch.stack([m.to(means[0].dtype) for m in means]).sum()


def refuse_lazy(model: nn.Module) -> None:
    """Raise `InputError` if a lazy module has not been initialised."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"parameter {name!r} has no shape yet",
                expected="a module with initialised lazy layers",
                hint="call the module once before returning it",
            )


def to_meta(model: nn.Module, in_place: bool = False) -> nn.Module:
    """A copy on `meta`, without a wrapper for parallel training; weights are replaced during the copy, not duplicated.

    With `in_place`, a module on `meta` is returned itself. In a copy, a function that the module keeps (a hook, a
    replaced `forward`) still refers to the original.

    Raises:
        InputError: a lazy module has no shapes yet, a module is TorchScript or has sparse tensors, or it cannot be copied.
    """
    memo: dict[int, Any] = {}
    refuse_lazy(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise InputError(
            "a TorchScript module cannot be captured",
            expected="modules of torch.nn",
            got=type(model).__name__,
            hint="use the original module, or an ONNX file",
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module  # they split batches and exchange gradients, which a step on one device does not
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_dense(tensor, f"the tensor {name!r}")
    if in_place and all(t.is_meta for t in (*model.parameters(), *model.buffers())):
        return model
    for parameter in model.parameters():
        shadow = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        memo[id(parameter)] = shadow
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # what a module keeps may raise anything
        raise InputError(
            "the module cannot be copied",
            got=str(error).partition(". ")[0],
            hint="give a module:factory, which is captured without a copy",
        ) from error


def _options(workload: Workload) -> dict[str, object]:
    options = options_of(workload)
    options["optimizer"] = workload.optimizer or "sgd"
    return options
