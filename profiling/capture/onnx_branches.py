"""Replaces ONNX `If` nodes whose condition is a constant by the branch that is taken.

Exporters write such nodes for settings that are fixed, such as whether a network trains.
"""

from __future__ import annotations

import math
from typing import Any

from profiling.capture.onnx_limits import graphs_of


def take_branches(graph: Any, depth: int) -> bool:
    """Replace these nodes in place, also those inside branches taken; returns whether there were any.

    A condition is constant if a `Constant` node makes it, or if it is an initialiser and not an input as well, which a
    caller could set. All other `If` nodes stay.

    Args:
        graph: an ONNX graph.
        depth: the deepest nesting of graphs.

    Raises:
        UnsafeFileError: graphs are nested more deeply.
    """
    found = False
    while taken := _taken(graph):
        found, names = True, {name for inner, _ in graphs_of(graph, depth) for name in _names(inner)}
        whole = type(graph)()
        for number, node in enumerate(graph.node):
            if number in taken:
                _append_branch(whole, node, taken[number], names)
            else:
                whole.node.append(node)
        del graph.node[:]
        for part in ("node", "initializer", "value_info"):
            getattr(graph, part).extend(getattr(whole, part))
    return found


def _taken(graph: Any) -> dict[int, Any]:
    """The branch taken, by number of the node."""
    inputs = {value.name for value in graph.input}
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    taken = {}
    for number, node in enumerate(graph.node):
        if node.op_type != "If" or node.domain not in ("", "ai.onnx") or len(node.input) != 1:
            continue
        condition = _truth(constants.get(node.input[0]))
        name = "then_branch" if condition else "else_branch"
        branch = next((a.g for a in node.attribute if a.name == name and a.HasField("g")), None)
        if condition is not None and branch is not None:
            taken[number] = branch
    return taken


def _truth(tensor: Any) -> bool | None:
    """The value of a tensor with one truth value; None for others, and if the file does not hold it."""
    import onnx

    if tensor is None or tensor.data_type != onnx.TensorProto.BOOL or math.prod(tensor.dims) != 1:
        return None
    if tensor.raw_data:
        return tensor.raw_data[0] != 0
    return bool(tensor.int32_data[0]) if tensor.int32_data else None


def _append_branch(whole: Any, node: Any, branch: Any, names: set[str]) -> None:
    """Append the branch that `node` takes to a graph.

    Its results get the names of the node's, its other tensors new ones, because other graphs may use theirs, too.

    Args:
        names: those in use; the new ones are added.
    """
    import onnx

    body = type(branch).FromString(branch.SerializeToString())
    own = dict.fromkeys([*(t.name for t in body.initializer), *(x for n in body.node for x in n.output if x)])
    new: dict[str, str] = {}
    passed_on: list[tuple[str, str]] = []  # tensors from outside, and those that are results twice
    for inner, outer in zip((value.name for value in body.output), node.output, strict=False):
        if outer and inner in own and inner not in new:
            new[inner] = outer
        elif outer:
            passed_on.append((inner, outer))
    for name in own:
        if name not in new:
            unused = f"{node.output[0]}/{name}"
            while unused in names:
                unused += "'"
            names.add(unused)
            new[name] = unused
    _rename(body, new)
    for part in ("node", "initializer", "value_info"):
        getattr(whole, part).extend(getattr(body, part))
    whole.node.extend(
        onnx.helper.make_node("Identity", [new.get(inner, inner)], [outer]) for inner, outer in passed_on
    )


def _rename(graph: Any, new: dict[str, str]) -> None:
    """Rename tensors in a graph and in those nested in it."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                _rename(inner, new)


def _names(graph: Any) -> set[str]:
    """Names of the tensors that a graph is given or makes."""
    given = {value.name for value in (*graph.input, *graph.initializer)}
    return given.union(*(node.output for node in graph.node))
