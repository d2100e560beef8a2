"""A `TrainingJob` from a SPEC, with host input and cached activations where asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from profiling.errors import InputError
from profiling.workload import Workload


def build_job(workload: Workload, device: str) -> Any:
    """The zoo's job, or that of a `module:factory` called as `factory(workload, device)`.

    Returns:
        A `profiling.training.TrainingJob`.

    Raises:
        InputError: the factory is not there or answers no training job.
    """
    if ":" not in workload.model:
        from profiling.zoo import build

        return build(workload, device)
    module, _, name = workload.model.partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"no factory {workload.model}", expected="module:factory", got=str(error)) from None
    job = factory(workload, device)
    if not hasattr(job, "step"):
        raise InputError(
            f"{workload.model} built no training job",
            expected="an object with step()",
            got=type(job).__name__,
        )
    return job


def prepare(command: dict[str, Any], device: str) -> tuple[Any, dict[str, Any]]:
    """Build what one member trains, and say what the record needs to know of it."""
    from profiling.training import atomic_layers

    workload = Workload.parse(command["workload"])
    job = build_job(workload, device)
    layers = atomic_layers(job.model)
    if command.get("cached_activations"):
        from profiling.measure.cached_prefix import cache_prefix

        cache_prefix(job, [module for _, module in layers[: workload.frozen_prefix]])
    if command.get("host_input") == "loader":
        from profiling.measure.host_input import LoadedJob

        job = LoadedJob(job, device, command["loader_processes"], command["seed"])
    return job, {
        "samples_per_step": int(job.samples_per_step),
        "total_layers": len(layers),
        "parameter_count": sum(p.numel() for p in job.model.parameters()),
        "host_input_bytes": batch_bytes(job.batch) if command.get("host_input") == "loader" else 0,
    }


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors of a batch."""
    from profiling.training import tensors_of

    return sum(t.numel() * t.element_size() for t in tensors_of(batch))
