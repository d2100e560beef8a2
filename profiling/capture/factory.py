"""Captures the result of a user's `module:factory`, or builds it as a job to measure."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from profiling.capture.module import capture_module, first_dimension, job_of, refuse_lazy
from profiling.capture.options import execution_options, options_of
from profiling.capture.patching import patched
from profiling.capture.step import capture_job
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.importing import import_attribute
from profiling.names import did_you_mean
from profiling.training import TrainingJob, map_tensors, tensors_of
from profiling.workload import Workload
from profiling.zoo.listing import is_model

PASSED = ("batch_size", "sequence_length", "image_size")
"""Options passed to a factory, if it has parameters with these names."""

_NO_VALUES = "tensors on meta have no values: compute numbers in Python, or from tensors with device='cpu'"

# An orthogonal parametrisation asks whether its weight is orthogonal already, or makes it so by a QR decomposition.
_ORTHOGONAL_ON_META = (
    (parametrizations, "_is_orthogonal", lambda *_: True),
    (parametrizations, "_make_orthogonal", torch.empty_like),
)


def capture_factory(workload: Workload) -> ComputationGraph:
    """The graph of the result of `module:factory`. Runs the user's code, so for local commands only.

    The factory is called on `meta`, with those of the options `PASSED` that are set. It returns
    `(module, inputs)` or `(module, inputs, loss)`, with inputs as for `capture_module`, or a `TrainingJob`, which has
    its own options.

    Raises:
        InputError: no such module or attribute, a wrong return value, an option that the factory does not accept, or a
            step that cannot be captured.
    """
    made, batch_size = _made(workload, "meta")
    own = _own_options(workload, made) if isinstance(made, TrainingJob) else None
    try:
        if own is not None:
            return capture_job(made, workload.model, own)
        _note_other_size(workload.model, made[1], batch_size)
        return capture_module(
            made[0],
            made[1],
            name=workload.model,
            loss=made[2] if len(made) == 3 else None,
            workload=workload,
            batch_size=batch_size,
            in_place=True,
        )
    except InputError as error:  # of several jobs in a command, this one
        raise error.at(workload.model) from error


def factory_job(workload: Workload, device: str) -> TrainingJob:
    """The result of `module:factory` as a job that can run on a device, with the workload's options.

    Raises:
        InputError: as `capture_factory`.
    """
    made, batch_size = _made(workload, device)
    if isinstance(made, TrainingJob):
        _own_options(workload, made)
        return made
    batch = map_tensors(made[1], lambda tensor: tensor.to(device))
    refuse_lazy(made[0])
    _note_other_size(workload.model, batch, batch_size)
    size = first_dimension(batch)
    size = batch_size or size
    return job_of(made[0].to(device), batch, size, workload, made[2] if len(made) == 3 else None)


def _note_other_size(name: str, inputs: Any, batch_size: int | None) -> None:
    """Warn if no input has the batch size where one is expected: first, or second where time comes first."""
    shapes = [(t.shape, t.is_floating_point()) for t in tensors_of(inputs)]
    if batch_size is None or not shapes or 0 in shapes[0][0]:
        return
    for shape, is_floating in shapes:
        # Of two dimensions of numbers, the second has features; of token ids, it may have sequences.
        leading = shape[: 2 if len(shape) > 2 or not is_floating else 1]
        if batch_size in leading:
            return
    warnings.warn(
        f"{name}: no input has batch_size={batch_size} as its first dimension (the first input is "
        f"{' x '.join(map(str, shapes[0][0])) or 'a scalar'}): a step is assumed to have {batch_size} samples",
        stacklevel=3,
    )


def find_factory(name: str) -> tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]:
    """The function `module:factory`, and its parameters by name.

    Raises:
        InputError: no such module or attribute, not a function, or a zoo model with a malformed option.
    """
    where, _, rest = name.partition(":")
    if "=" in rest and is_model(where):
        raise InputError(
            f"{name!r} is not a model", expected="NAME[:key=value,...]", hint="put commas between options."
        )
    number = re.fullmatch(r"(?:batch_size)?\W*(\d+)", rest)
    if number is not None and is_model(where):
        raise InputError(
            f"{name!r} is not a job SPEC",
            expected="NAME[:key=value,...]",
            hint=did_you_mean(f"{where}:batch_size={number[1]}"),
        )
    factory = import_attribute(name, "module:factory on the import path or in this folder")
    try:
        return factory, inspect.signature(factory).parameters  # type: ignore[arg-type, return-value]
    except (TypeError, ValueError):
        raise InputError(
            f"{name!r} is not a factory",
            expected="a function that returns (module, inputs)",
            got=type(factory).__name__,
        ) from None


def required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Names of the parameters of a function that have no default."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, p in parameters.items() if p.default is p.empty and p.kind not in several]


def takes_workload(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a factory is one to call as `factory(workload, device)`, which makes jobs to measure only.

    It requires other arguments than `PASSED`, and two are enough.
    """
    if set(required(parameters)) <= set(PASSED):
        return False
    try:
        bound = inspect.Signature(list(parameters.values())).bind("workload", "device")
    except TypeError:
        return False
    return not set(PASSED) & set(bound.arguments)


def _check_required(workload: Workload, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise `InputError` if a factory requires an argument that neither the job nor a default states."""
    name = workload.model
    missing = [p for p in required(parameters) if p not in PASSED or getattr(workload, p) is None]
    if not missing:
        return
    others = [p for p in missing if p not in PASSED]
    if not others:
        hint = f"state it, as in {name}:{missing[0]}=8, or give it a default"
    elif others == ["workload", "device"]:
        hint = "a factory of these two can be measured only: write another one that returns (module, inputs)"
    else:
        hint = f"give {' and '.join(others)} a default, or write a factory that calls this one with a value"
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters.values()])
    raise InputError(
        f"{name!r} requires {' and '.join(others or missing)}",
        expected=f"a factory that requires no more than {', '.join(PASSED[:-1])} and {PASSED[-1]}"
        if others
        else f"a value for {missing[0]}",
        got=f"{name.rpartition(':')[2]}{plain}",
        hint=hint,
    )


def _made(workload: Workload, device: str) -> tuple[Any, int | None]:
    """The factory's result on `device`, and the batch size: the given one or the default; None if it has neither."""
    factory, parameters = find_factory(workload.model)
    given = {key: value for key in PASSED if (value := getattr(workload, key)) is not None}
    # First: that it takes no batch size is no fault of a factory that takes the whole workload.
    _check_required(workload, parameters)
    for key, value in given.items():
        if key not in parameters:
            raise InputError(
                f"{workload.model!r} takes no {key}",
                expected=f"a factory with a parameter {key}",
                got=f"{key}={value}",
                hint="add the parameter, or omit the option",
            )
    with torch.device(device), patched(_ORTHOGONAL_ON_META if device == "meta" else ()):
        try:
            made = factory(**given)
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise InputError(
                f"{workload.model!r} raised {type(error).__name__}: {error}",
                hint=_NO_VALUES if "meta tensor" in str(error) else None,
            ) from error
    is_pair = isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)
    if not is_pair and not isinstance(made, TrainingJob):
        raise InputError(
            f"{workload.model!r} returned a wrong value",
            expected="(module, inputs), (module, inputs, loss) or a TrainingJob",
            got=_described(made),
        )
    default = parameters["batch_size"].default if "batch_size" in parameters else None
    return made, workload.batch_size or (default if isinstance(default, int) else None)


def _described(value: object) -> str:
    if not isinstance(value, tuple):
        return type(value).__name__
    return f"({', '.join(type(item).__name__ for item in value)})"


def _own_options(workload: Workload, job: TrainingJob) -> dict[str, object]:
    """The options of a `TrainingJob` that the factory returned.

    Raises:
        InputError: the workload has a different one, which would have no effect.
    """
    own: dict[str, object] = {
        "precision": job.precision,
        "optimizer": job.optimizer_name,
        "frozen_prefix": 0,
        "gradient_accumulation": job.gradient_accumulation,
        "activation_checkpointing": False,
    }
    unasked = Workload(workload.model)
    for name, value in own.items():
        asked = getattr(workload, name)
        if asked not in (value, getattr(unasked, name)):
            raise InputError(
                f"{workload.model!r} returns a TrainingJob, which has its own {name}",
                expected=str(value),
                got=asked,
                hint="set it in the factory, or return (module, inputs, loss)",
            )
    return {**options_of(workload), **execution_options(job.model), **own}
