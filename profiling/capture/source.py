"""`graph_for`: the computation graph of whatever a `Workload` names."""

from __future__ import annotations

import threading
from functools import lru_cache

from profiling.capture import cache
from profiling.graph import ComputationGraph
from profiling.workload import Workload

_LOCK = threading.Lock()


def graph_for(workload: Workload) -> ComputationGraph:
    """The graph of a workload's training step, from memory, from disk, or captured now.

    The model is a zoo name (or a name of the public data). Solo measurements play no part.

    Raises:
        UnknownNameError: no such model.
        InputError: an option that the model cannot have, or a model that cannot be traced.
    """
    from profiling.zoo import resolve

    with _LOCK:
        return _zoo_graph(resolve(workload).without_solo())


@lru_cache(maxsize=4096)
def _zoo_graph(workload: Workload) -> ComputationGraph:
    key = cache.key_of(workload)
    graph = cache.read(key)
    if graph is None:
        graph = capture_zoo(workload)
        cache.write(key, graph)
    return graph


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


def capture_zoo(workload: Workload) -> ComputationGraph:
    """Capture a zoo workload now, without any cache."""
    from profiling.capture.step import capture_job
    from profiling.zoo import build, resolve

    full = resolve(workload)
    return capture_job(build(full, "meta"), full.model, options_of(full))
