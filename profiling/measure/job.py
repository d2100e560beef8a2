"""Builds a `TrainingJob` from a SPEC, with host input and cached activations if requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiling.errors import InputError
from profiling.measure.request import check_measurable
from profiling.workload import Workload


def build_job(workload: Workload, device: str) -> Any:
    """The training job of a zoo model or a `module:factory`.

    A factory is one that `cotenant capture` accepts (it returns a module and a batch of inputs), or is called as
    `factory(workload, device)` and returns a training job: an object with `step()`, `model` and `samples_per_step`,
    and for host input also `batch`.

    Returns:
        A `profiling.training.TrainingJob`.

    Raises:
        InputError: no such factory, it returns no training job, or the job has an option that its step would not
            follow.
    """
    if ":" not in workload.model:
        from profiling.zoo import build

        return build(workload, device)
    from profiling.capture.factory import factory_job, find_factory, required, takes_workload

    factory, parameters = find_factory(workload.model)
    if not takes_workload(parameters):
        check_measurable(workload)
        return factory_job(workload, device)
    try:
        job = factory(workload, device)
    except Exception as error:
        names = required(parameters)
        if {"workload", "device"}.issuperset(names):
            raise
        raise InputError(
            f"{workload.model!r} raised {type(error).__name__} for a workload and a device: {error}",
            expected="a factory that requires no more than batch_size, sequence_length and image_size, or takes "
            "(workload, device)",
            got=f"one that requires {' and '.join(names)}",
        ) from error
    _require(workload, job, "step", "model", "samples_per_step")
    return job


def _require(workload: Workload, job: Any, *names: str) -> None:
    missing = [name for name in names if not hasattr(job, name)]
    if missing:
        raise InputError(
            f"{workload.model} built no training job",
            expected=f"an object with {', '.join(names)}",
            got=f"{type(job).__name__} without {', '.join(missing)}",
        )


def check_trained(job: Any, loss: object, workload: Workload) -> None:
    """Raise `InputError` if the first step of a `TrainingJob` trained nothing.

    One of `mode=inference` may do so, and so may a step of the user's own.

    Args:
        job: as `prepare` returns it, after a step.
        loss: what the step returned.
        workload: the job.
    """
    from profiling.training import TrainingJob, check_gradients

    if workload.mode == "inference":
        return
    inner = getattr(job, "wrapped", job)  # of a LoadedJob
    if isinstance(inner, TrainingJob) and type(inner).step is TrainingJob.step:
        check_gradients(inner, loss, workload.frozen_prefix)


def prepare(command: dict[str, Any], device: str) -> tuple[Any, dict[str, Any]]:
    """Build a member's job. Returns the job, and its properties for the record."""
    from profiling.training import TrainingJob, atomic_layers, freeze_prefix

    workload = Workload.parse(command["workload"])
    distributed = command.get("distributed")
    # If wrapped before freezing, all parameters take part in the all-reduce, including those frozen afterwards.
    late = distributed == "wrapped-before"
    job = build_job(replace(workload, frozen_prefix=0) if late else workload, device)
    hold_still(job)
    layers = atomic_layers(job.model)
    if distributed:
        distribute(job, device, late)
    if late:
        freeze_prefix(job.model.module, workload.frozen_prefix)
    if command.get("cached_activations"):
        from profiling.measure.cached_prefix import cache_prefix

        cache_prefix(job, [module for _, module in layers[: workload.frozen_prefix]])
    # A step of the user's own may load what it trains on.
    is_resident = isinstance(job, TrainingJob) and not command.get("cached_activations")
    size = getattr(job, "batch_size", None) or int(job.samples_per_step) // workload.gradient_accumulation
    if command.get("host_input") == "loader":
        _require(workload, job, "batch")
        from profiling.measure.host_input import LoadedJob

        job, is_resident = LoadedJob(job, device, command["loader_processes"], command["seed"]), False
    return job, {
        "batch_size": workload.batch_size or size,
        "samples_per_step": int(job.samples_per_step),
        "total_layers": len(layers),
        "parameter_count": sum(p.numel() for p in job.model.parameters()),
        "data_on_device": is_resident,
        "host_input_bytes": batch_bytes(job.batch) if command.get("host_input") == "loader" else 0,
    }


def hold_still(job: Any) -> None:
    """Set the learning rates of a `TrainingJob` to 0: its optimisers do the same work, but change no weight.

    Thousands of steps on one batch, often without a loss that has a minimum, would let values grow until they are
    infinite. A gradient scaler then skips the optimiser, and a GPU that draws less power runs at a higher clock.
    """
    from profiling.training import TrainingJob

    if isinstance(job, TrainingJob):
        for optimizer in filter(None, job.optimizers):
            for group in optimizer.param_groups:
                group["lr"] = 0.0


def distribute(job: Any, device: str, find_unused: bool) -> None:
    """Wrap the job's model for data-parallel training; rank and addresses come from environment variables."""
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    job.model = DistributedDataParallel(job.model, find_unused_parameters=find_unused)


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors of a batch."""
    from profiling.training import tensors_of

    return sum(t.numel() * t.element_size() for t in tensors_of(batch))
