"""Inputs of a plan: PipeDream profiles, captured graphs, and zoo models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiling.errors import InputError
from scheduling.pipeline.states import StateSpace, antichain_states

if TYPE_CHECKING:
    from profiling.graph import ComputationGraph


def read_states(
    source: str, device: str | None = None, *, as_published: bool = False, granularity: str = "block"
) -> StateSpace:
    """States of a `graph.txt`, a `graph.json` of `cotenant capture`, or a job SPEC.

    Graphs and SPECs have no measured times: they are timed for `device` (a catalogue name) and cut at a
    `granularity` of `scheduling.pipeline.cuts`.

    Raises:
        InputError: not such an input, or it needs a device.
    """
    graph = read_graph(source, device, as_published=as_published)
    if isinstance(graph, StateSpace):
        return graph
    from profiling.devices import get_device
    from scheduling.pipeline.computation import graph_states

    return graph_states(graph, get_device(str(device)), granularity=granularity)


def read_graph(
    source: str, device: str | None = None, *, as_published: bool = False
) -> StateSpace | ComputationGraph:
    """Read states from a `graph.txt`, which has measured times, or else a graph.

    The graph of a file or job SPEC needs a device.
    """
    path = Path(source)
    if path.suffix == ".txt":
        from profiling.capture.pipedream_profile import read_profile

        return antichain_states(read_profile(path), as_published=as_published)
    if device is None:
        raise InputError(
            f"{source} has no measured times",
            expected="a device type to predict times for, or a PipeDream graph.txt",
            hint="add --device NAME; `cotenant devices list` shows them",
        )
    if path.suffix == ".json":
        from profiling.graph import ComputationGraph

        return ComputationGraph.load(path)
    from profiling.capture import graph_for, local_workload
    from profiling.devices import get_device

    get_device(device)
    return graph_for(local_workload(source))
