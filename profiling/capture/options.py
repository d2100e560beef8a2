"""Options of a workload as stored in its graph."""

from __future__ import annotations

from profiling.workload import Workload


def options_of(workload: Workload) -> dict[str, object]:
    """Options of a workload as stored in its graph; sequence length and image size only if given."""
    options: dict[str, object] = {
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "frozen_prefix": workload.frozen_prefix,
        "gradient_accumulation": workload.gradient_accumulation,
        "activation_checkpointing": workload.activation_checkpointing,
    }
    for name in ("sequence_length", "image_size"):
        if getattr(workload, name) is not None:
            options[name] = getattr(workload, name)
    return options
