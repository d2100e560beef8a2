"""Options of a workload as stored in its graph, and which of them a job of that graph may state."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import JOB_OPTIONS, Workload

if TYPE_CHECKING:
    from torch import nn

_UNSTATED = {f.name: f.default for f in fields(Workload)}
# Another precision changes a graph too, but a job's default cannot be told from one that is stated, see `as_captured`.
_FIXED = (
    "batch_size",
    "sequence_length",
    "image_size",
    "optimizer",
    "gradient_accumulation",
    "activation_checkpointing",
)
# How the kernels of a graph run; a module of one's own may imply it.
EXECUTION = ("compiler", "memory_layout")


def execution_options(model: nn.Module) -> dict[str, Any]:
    """Options of `EXECUTION` that a module implies, if they are not the defaults.

    If only some of its modules are compiled, those with most of the parameters count for all, with a warning.

    Args:
        model: as the user made it, with its strides; compiled by `torch.compile` or `Module.compile`, or not.
    """
    from torch.nn.parameter import is_lazy

    options: dict[str, Any] = {}
    compiled = [module for module in model.modules() if _is_compiled(module)]
    elements = {id(p): p.numel() for p in model.parameters() if not is_lazy(p)}
    inside = {id(p) for module in compiled for p in module.parameters()}
    share = sum(elements[key] for key in inside & set(elements)) / max(sum(elements.values()), 1)
    if model in compiled or share > 0.5:
        options["compiler"] = "compile"
    if compiled and model not in compiled:
        warnings.warn(
            f"torch.compile is applied to modules with {100 * share:.3g} % of the parameters: the whole step is "
            f"predicted as {'compiled' if options else 'eager'}",
            stacklevel=3,
        )
    if any(_is_channels_last(parameter) for parameter in model.parameters()):
        options["memory_layout"] = "channels-last"
    return options


def _is_compiled(module: nn.Module) -> bool:
    return (
        hasattr(module, "_orig_mod")
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def _is_channels_last(parameter: nn.Parameter) -> bool:
    import torch
    from torch.nn.parameter import is_lazy

    return (
        not is_lazy(parameter)
        and parameter.dim() == 4
        and parameter.layout == torch.strided
        and parameter.is_contiguous(memory_format=torch.channels_last)
        and not parameter.is_contiguous()
    )


def options_of(workload: Workload) -> dict[str, object]:
    """Options of a workload as stored in its graph; sizes and `EXECUTION` only if given."""
    options: dict[str, object] = {
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "frozen_prefix": workload.frozen_prefix,
        "gradient_accumulation": workload.gradient_accumulation,
        "activation_checkpointing": workload.activation_checkpointing,
    }
    for name in ("sequence_length", "image_size", *EXECUTION):
        if getattr(workload, name) != _UNSTATED[name]:
            options[name] = getattr(workload, name)
    return options


def frozen_layers(trained: Sequence[bool], options: Mapping[str, object] | None) -> dict[str, object]:
    """Option `frozen_layers`: indices of layers behind the frozen prefix that train nothing; empty without any.

    Args:
        trained: for each atomic layer, whether it trains a parameter of its own.
        options: of the graph.
    """
    prefix = int(str((options or {}).get("frozen_prefix") or 0))
    frozen = [layer for layer, is_trained in enumerate(trained) if layer >= prefix and not is_trained]
    return {"frozen_layers": frozen} if frozen else {}


def check_options(workload: Workload, graph: ComputationGraph, derived: Collection[str] = ()) -> None:
    """Check that a job of a captured graph states no other option than its graph was captured with.

    Args:
        workload: the job.
        graph: its graph.
        derived: further options with which the caller derives a graph, named in the message.

    Raises:
        InputError: it does, which would have no effect.
    """
    for name in _FIXED:
        stated, own = getattr(workload, name), graph.options.get(name, _UNSTATED[name])
        own = graph.batch_size if name == "batch_size" else own
        own = own or "sgd" if name == "optimizer" else own
        # Graphs of ONNX files do not tell their sequence length, which was bound when they were read.
        unknown = name == "sequence_length" and graph.source == "onnx"
        if stated in (own, _UNSTATED[name]) or unknown:
            continue
        raise InputError(
            f"{workload.model[:18]} was captured with another {name}",
            expected=f"no {name}" if own is None else f"{name}={own}, or no {name}",
            got=stated,
            hint=f"capture the model again with that {name}; jobs of its graph take "
            + ", ".join(sorted(JOB_OPTIONS - set(_FIXED) | set(derived))),
        )


def as_captured(workload: Workload, graph: ComputationGraph) -> Workload:
    """The job with what its graph was captured with, where it states nothing else.

    That is batch size, precision, compiler, memory layout and frozen layers; further ones of these make no difference to
    inference.

    Raises:
        InputError: it freezes more layers than there are, or fewer than were frozen at the capture, whose gradients
            the graph lacks.
    """
    own = str(graph.options.get("precision") or workload.precision)
    frozen = graph.frozen_prefix
    if graph.layers and workload.frozen_prefix > len(graph.layers):
        raise InputError(
            f"{workload.model} has fewer layers than frozen_prefix",
            expected=f"a frozen_prefix from 0 to {len(graph.layers)}",
            got=workload.frozen_prefix,
        )
    if 0 < workload.frozen_prefix < frozen:
        raise InputError(
            f"{workload.model[:18]} was captured with more frozen layers",
            expected=f"frozen_prefix={frozen} or more, or no frozen_prefix",
            got=workload.frozen_prefix,
            hint="capture the model again with nothing frozen",
        )
    execution = {
        name: graph.options[name]
        for name in EXECUTION
        if name in graph.options and getattr(workload, name) == _UNSTATED[name]
    }
    return replace(
        workload,
        **execution,  # type: ignore[arg-type]
        batch_size=workload.batch_size or graph.batch_size,
        precision=own if workload.precision == _UNSTATED["precision"] else workload.precision,
        frozen_prefix=frozen if workload.mode == "inference" else max(workload.frozen_prefix, frozen),
    )
