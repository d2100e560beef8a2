"""Pieces of a captured graph with their times and bytes, as states of a pipeline search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.cost import default_cost_model
from profiling.capture.options import as_captured
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload
from scheduling.pipeline.cuts import cut_points
from scheduling.pipeline.states import MAX_STATES, StateSpace, too_many


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive operators that are never separated.

    Attributes:
        name: the module or operator that it begins with.
        split_point: dotted path of the module that the block begins with; empty for the first block, and if
            no module begins there.
        forward_s, backward_s: seconds for the whole batch.
        activation_bytes: kept from forward to backward.
        parameter_bytes: of its operators.
        output_bytes: bytes of the distinct tensors that cross the cut after it.
    """

    name: str
    split_point: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float
    output_bytes: float


def operator_times(
    graph: ComputationGraph, device: DeviceSpec, job: Workload | None = None
) -> list[tuple[float, float]]:
    """(forward, backward) seconds of each operator by the cost model; all repeats together.

    Args:
        job: its options; by default, those that the graph was captured with.
    """
    workload = job or as_captured(Workload(graph.name), graph)
    busy = default_cost_model().cost(graph, device, workload).operators.busy_s
    return [(float(forward), float(backward)) for forward, backward in busy.T]


def blocks_of(
    graph: ComputationGraph, times: Sequence[tuple[float, float]], granularity: str = "block"
) -> list[Block]:
    """Group a graph's operators into blocks, which start at `scheduling.pipeline.cuts.cut_points`.

    Raises:
        InputError: the graph is empty, or the number of times differs from that of operators.
        UnknownNameError: no such granularity.
    """
    if not graph.operators or len(times) != len(graph.operators):
        raise InputError(
            f"graph {graph.name!r} cannot be planned",
            expected="operators, and one pair of times for each",
            got=f"{len(graph.operators)} operators and {len(times)} times",
        )
    starts = cut_points(graph, granularity)
    edges = list(starts)
    ends = [*edges[1:], len(graph.operators)]
    blocks = []
    for begin, end, output in zip(edges, ends, _crossing_bytes(graph, ends), strict=True):
        inside = graph.operators[begin:end]
        blocks.append(
            Block(
                starts[begin] or (inside[0].name if begin else inside[0].module_path or inside[0].name),
                starts[begin],
                sum(t[0] for t in times[begin:end]),
                sum(t[1] for t in times[begin:end]),
                sum(op.saved_activation_bytes * op.repeat for op in inside),
                # Passes of a step share the parameters, but each has outputs of its own.
                sum(op.parameter_bytes * op.repeat for op in inside) / graph.passes,
                output * graph.passes,
            )
        )
    return blocks


def block_states(name: str, blocks: Sequence[Block], granularity: str = "block") -> StateSpace:
    """The chain of states after each block.

    Raises:
        LimitError: too many blocks.
    """
    import numpy as np

    if len(blocks) > MAX_STATES:
        raise too_many(name)

    def sums(values: list[float]) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(values)])

    return StateSpace(
        name,
        tuple((block.name,) for block in blocks),
        (),
        tuple((1 << i) - 1 for i in range(len(blocks) + 1)),
        sums([b.forward_s + b.backward_s for b in blocks]),
        sums([b.activation_bytes for b in blocks]),
        sums([b.parameter_bytes for b in blocks]),
        np.array([0.0, *(b.output_bytes for b in blocks)]),
        sums([b.forward_s for b in blocks]),
        tuple((1 << i) - 1 for i in range(len(blocks) + 1)),
        f"{granularity}s",
        split_points=tuple(block.split_point for block in blocks),
    )


def graph_states(
    graph: ComputationGraph,
    device: DeviceSpec | None,
    times: Sequence[tuple[float, float]] | None = None,
    granularity: str = "block",
) -> StateSpace:
    """States of a captured graph, with the given times of its operators, or timed for a device type.

    A worker holds gradients and optimiser state once, in proportion to its parameters.

    Raises:
        InputError: neither times nor a device.
    """
    if times is None:
        if device is None:
            raise InputError(f"{graph.name} has no times", expected="device= a catalogue name, or times=")
        times = operator_times(graph, device)
    space = block_states(graph.name, blocks_of(graph, times, granularity), granularity)
    kept = (graph.gradient_bytes + graph.optimizer_state_bytes) / max(float(space.parameter_bytes[-1]), 1.0)
    return replace(space, fixed_bytes=space.parameter_bytes * kept)


def _crossing_bytes(graph: ComputationGraph, cuts: Sequence[int]) -> list[float]:
    """Bytes of the distinct tensors made before each cut and used after it (0 after the last operator)."""
    reach: dict[int, tuple[int, float]] = {}
    for edge in graph.edges:
        until, size = reach.get(edge.source, (0, 0.0))
        reach[edge.source] = (max(until, edge.target), max(size, edge.bytes))
    return [sum(size for source, (until, size) in reach.items() if source < cut <= until) for cut in cuts]
