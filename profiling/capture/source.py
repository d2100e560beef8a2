"""`graph_for`: the computation graph of a `Workload`."""

from __future__ import annotations

import sys
import threading
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path

from profiling.capture import cache
from profiling.capture.fold import fold_repeats
from profiling.capture.options import options_of
from profiling.capture.precision import for_job
from profiling.collections import collected_graph, collection_of
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import REGISTERED, Workload
from profiling.zoo import resolve

_LOCK = threading.Lock()

MAX_NODES = 1_500
"""Larger zoo graphs are folded, because the predictor encodes every node."""


def graph_for(workload: Workload, *, local: bool = False) -> ComputationGraph:
    """The graph of a workload's training step, from memory, from disk, or captured now.

    Solo measurements are ignored. A zoo graph is cached in memory and on disk; that of an ONNX file in memory
    until the file changes; a factory's result is captured each time, because its code may change.

    Args:
        workload: its model is a zoo name (or an alias), `COLLECTION/NAME` of a stored graph (see
            `profiling.collections`), or `graph:<hash>` of a registered graph, which has its own options; with `local`,
            also a path ending in `.onnx` or `.graph.txt`, or a `module:factory`.
        local: whether files and code of this machine may be named. Never true for HTTP requests.

    Raises:
        UnknownNameError: no such model.
        InputError: an option that the model cannot have, or a model that cannot be traced.
    """
    name = workload.model
    if name.startswith(REGISTERED):
        return for_job(_registered(name), workload)
    if collection_of(name):
        return collected_graph(workload)
    if local and name.endswith(".onnx"):
        _check_without(workload, "image_size")
        path = Path(name)
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        return _onnx_graph(workload.without_solo(), changed)
    if local and name.endswith(".graph.txt"):
        from profiling.capture.pipedream import capture_pipedream

        _check_without(workload, "sequence_length", "image_size")
        return capture_pipedream(name, workload=workload)
    if local and ":" in name:
        from profiling.capture.factory import capture_factory

        # What a user's model prints must not mix with the output of a command, which may be one JSON value.
        with redirect_stdout(sys.stderr):
            return capture_factory(workload)
    with _LOCK:
        return _zoo_graph(resolve(workload).without_solo())


def _check_without(workload: Workload, *options: str) -> None:
    """Refuse options that a file of this kind cannot have."""
    for option in options:
        value = getattr(workload, option)
        if value is not None:
            raise InputError(f"{workload.model} has no {option}", got=value, hint="leave it out")


@lru_cache(maxsize=256)
def _registered(name: str) -> ComputationGraph:
    return cache.registered(name)


@lru_cache(maxsize=256)
def _onnx_graph(workload: Workload, _changed: int) -> ComputationGraph:
    from profiling.capture.onnx import capture_onnx

    return capture_onnx(workload.model, workload=workload)


@lru_cache(maxsize=4096)
def _zoo_graph(workload: Workload) -> ComputationGraph:
    key = cache.key_of(workload)
    graph = cache.read(key)
    if graph is None:
        graph = capture_zoo(workload)
        if len(graph.operators) > MAX_NODES:
            graph = fold_repeats(graph)
        cache.write(key, graph)
    return graph


def capture_zoo(workload: Workload) -> ComputationGraph:
    """Capture a zoo workload, without using the cache."""
    from profiling.capture.module import accept_one_sample
    from profiling.capture.step import capture_job
    from profiling.zoo import build, get_model

    full = resolve(workload)
    options = options_of(full)
    processes = get_model(full.model).processes
    if processes != 1:
        options["processes"] = processes
    job = build(full, "meta")
    accept_one_sample(job, full.mode)
    return capture_job(job, full.model, options)
