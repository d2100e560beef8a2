"""What can be planned: PipeDream profiles, captured graphs, and models of the zoo."""

from __future__ import annotations

from pathlib import Path

from profiling.errors import InputError
from scheduling.pipeline.states import StateSpace, antichain_states


def read_states(source: str, device: str | None = None, *, as_published: bool = False) -> StateSpace:
    """States of a `graph.txt`, a `graph.json` of `cotenant capture`, or a job SPEC.

    Graphs and SPECs have no measured times: they are timed for `device` (a catalogue name).

    Raises:
        InputError: not such an input, or it needs a device.
    """
    path = Path(source)
    if path.suffix == ".txt":
        from profiling.capture.pipedream import read_profile

        return antichain_states(read_profile(path), as_published=as_published)
    if device is None:
        raise InputError(
            f"{source} has no measured times",
            expected="a device type to time it for, or a PipeDream graph.txt",
            hint="add --device NAME; `cotenant devices list` shows them",
        )
    from profiling.devices import get_device
    from profiling.workload import Workload
    from scheduling.pipeline.computation import graph_states

    spec = get_device(device)
    if path.suffix == ".json":
        from profiling.graph import ComputationGraph

        graph = ComputationGraph.load(path)
        return graph_states(graph, spec, str(graph.options.get("precision", "fp32")))
    from profiling.capture import graph_for

    workload = Workload.parse(source)
    return graph_states(graph_for(workload), spec, workload.precision)
