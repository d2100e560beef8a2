"""The options of a workload as they are written into its graph."""

from __future__ import annotations

from profiling.workload import Workload


def options_of(workload: Workload) -> dict[str, object]:
    """The options of a workload as they are written into its graph."""
    options: dict[str, object] = {
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "frozen_prefix": workload.frozen_prefix,
        "gradient_accumulation": workload.gradient_accumulation,
        "activation_checkpointing": workload.activation_checkpointing,
    }
    if workload.sequence_length is not None:
        options["sequence_length"] = workload.sequence_length
    return options
