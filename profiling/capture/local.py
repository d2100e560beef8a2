"""Parses jobs on the command line, whose SPEC may also name a local file, code or a captured graph."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from profiling.capture import cache
from profiling.capture.derive import with_optimizer
from profiling.capture.naming import named_workload, registered_name
from profiling.capture.options import EXECUTION, check_options
from profiling.capture.precision import with_precision
from profiling.capture.source import graph_for
from profiling.graph import ComputationGraph
from profiling.workload import Workload

_OPTION = re.compile(r"[:,]\s*(\w+)\s*=")


def local_workload(spec: str) -> Workload:
    """The job of a SPEC.

    Its NAME may be a zoo name, `module:factory`, `FILE.onnx`, a graph written by `cotenant capture -o` (`FILE.json`),
    or the hash (at least eight digits) of a captured graph. Files and code are captured now, and their graphs are
    stored on this machine under their content hash. Options not in the SPEC are those with which the graph was
    captured; another precision or optimiser is derived by rule.

    Raises:
        InputError: the SPEC, the file or the factory cannot be used.
        UnknownNameError: no captured graph has that hash, or several have.
    """
    workload = named_workload(spec)
    name = workload.model
    given = stated_options(spec)
    if name.endswith(".json"):
        return _of_graph(workload, ComputationGraph.load(Path(name)), given)
    registered = registered_name(name)
    if registered is not None:
        return _of_graph(workload, cache.registered(registered), given)
    if name.endswith((".onnx", ".graph.txt")) or ":" in name:
        return _of_graph(workload, graph_for(workload.captured(), local=True), given)
    return workload


def stated_options(spec: str) -> frozenset[str]:
    """Names of the options in a SPEC, also of those with their default value."""
    return frozenset(_OPTION.findall(spec))


def _of_graph(workload: Workload, graph: ComputationGraph, given: frozenset[str]) -> Workload:
    """The job of a graph; `given` are the options in its SPEC, including those with default values."""
    known = {f.name for f in fields(Workload)}
    captured: dict[str, Any] = {
        key: value
        for key, value in graph.options.items()
        if key in known and value is not None and key not in given
    }
    if "precision" in given:
        graph = with_precision(graph, workload.precision)
    if "optimizer" in given and workload.optimizer:
        graph = with_optimizer(graph, workload.optimizer)
    if stated := given.intersection(EXECUTION):
        graph = replace(
            graph, options={**graph.options, **{name: getattr(workload, name) for name in stated}}
        )
    job = replace(workload, **{**captured, "model": cache.register_graph(graph)})
    check_options(job, graph, derived=("optimizer",))
    return replace(job, batch_size=graph.batch_size)
