"""Plots a graph: operators from top to bottom, coloured by kind, sized by FLOPs."""

from __future__ import annotations

import io
import math
from pathlib import Path

from profiling.errors import InputError
from profiling.figures import check_picture
from profiling.files import write_whole
from profiling.graph import ComputationGraph
from profiling.operators import kind_index

MAX_NODES = 3_000


def plot_graph(graph: ComputationGraph, path: Path | str) -> Path:
    """Draw the graph into an SVG, PNG or PDF file.

    Operators are in rows by their distance from the inputs. A long graph continues in the next column, in the
    opposite direction. Edges that skip rows are curved. The area of a dot grows with forward and backward FLOPs, the
    width of an edge with its bytes.

    Raises:
        InputError: another file type, an empty graph, or more than `MAX_NODES` nodes.
        OSError: the file cannot be written; an older one is then unchanged.
    """
    target = Path(path)
    check_picture(target)
    count = len(graph.operators)
    if not 0 < count <= MAX_NODES:
        raise InputError("the graph cannot be drawn", expected=f"1 to {MAX_NODES} operators", got=count)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    depth, lane = _places(graph)
    rows = min(max(depth) + 1, 40)
    columns = -(-(max(depth) + 1) // rows)
    width = max(lane) + 1.6
    # Long graphs wrap: every `rows` levels start a new column, which runs the other way.
    points = [
        (width * (d // rows) + x, -float(d % rows if d // rows % 2 == 0 else rows - 1 - d % rows))
        for d, x in zip(depth, lane, strict=True)
    ]
    figure = Figure(figsize=(max(6.0, 1.1 * width * columns) + 2.5, max(4.0, 0.28 * rows + 1.5)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.02, 0.02, 0.78, 0.9))
    largest = max((edge.bytes for edge in graph.edges), default=1.0) or 1.0
    segments = [
        _line(points[e.source], points[e.target], depth[e.target] - depth[e.source] > 1) for e in graph.edges
    ]
    widths = [0.3 + 1.7 * math.sqrt(e.bytes / largest) for e in graph.edges]
    axes.add_collection(LineCollection(segments, linewidths=widths, colors="#b0b0b0", zorder=1))
    flops = [(op.forward_flops + op.backward_flops) * op.repeat for op in graph.operators]
    top = max(flops) or 1.0
    colours = [*matplotlib.color_sequences["tab20"], *matplotlib.color_sequences["Dark2"]]
    palette = [colours[kind_index(op.kind)] for op in graph.operators]
    axes.scatter(
        [x for x, _ in points],
        [y for _, y in points],
        s=[14 + 240 * f / top for f in flops],
        c=palette,
        edgecolors="#404040",
        linewidths=0.4,
        zorder=2,
    )
    axes.set_axis_off()
    axes.margins(0.04)
    total = graph.forward_flops + graph.backward_flops
    figure.suptitle(
        f"{graph.name}, batch {graph.batch_size}: {count} operators, {graph.parameter_count:,} parameters, "
        f"{total:.3g} FLOPs per step",
        fontsize=10,
    )
    present = sorted({op.kind for op in graph.operators}, key=lambda kind: (kind_index(kind), kind))
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colours[kind_index(kind)], label=kind)
        for kind in present
    ]
    figure.legend(handles=handles, loc="center right", fontsize=8, frameon=False)
    kind, picture = target.suffix.lower()[1:], io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cotenant"}):
        figure.savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return write_whole(target, picture.getvalue())


def _line(start: tuple[float, float], end: tuple[float, float], skips: bool) -> list[tuple[float, float]]:
    """Points of an edge: straight, or curved to avoid the nodes that it skips."""
    if not skips:
        return [start, end]
    middle = ((start[0] + end[0]) / 2 + 0.35, (start[1] + end[1]) / 2)
    weights = [i / 12 for i in range(13)]
    return [
        (
            (1 - w) ** 2 * start[0] + 2 * w * (1 - w) * middle[0] + w**2 * end[0],
            (1 - w) ** 2 * start[1] + 2 * w * (1 - w) * middle[1] + w**2 * end[1],
        )
        for w in weights
    ]


def _places(graph: ComputationGraph) -> tuple[list[int], list[float]]:
    """[N] level of each operator (longest distance from an input), and [N] its position within the level."""
    depth = [0] * len(graph.operators)
    for edge in sorted(graph.edges, key=lambda e: e.target):
        depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    taken: dict[int, int] = {}
    lane = []
    for level in depth:
        lane.append(float(taken.get(level, 0)))
        taken[level] = taken.get(level, 0) + 1
    return depth, lane
