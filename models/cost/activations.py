"""Peak of live activations with a frozen prefix."""

from __future__ import annotations

import numpy as np

from models.cost.work import Floats
from profiling.graph import ComputationGraph
from profiling.operators import KINDS, WEIGHTED

_IS_WEIGHTED = np.array([kind in WEIGHTED for kind in KINDS])
# The forward pass's share of a step's peak, if the graph does not give it.
_LEAST_SHARE = 0.05


def peak_activation_bytes(graph: ComputationGraph, frozen_prefix: int) -> float:
    """Peak of a training step with the first `frozen_prefix` atomic layers frozen; non-increasing in it.

    The peak occurs in the backward pass or in the forward pass, which also runs through the frozen layers.
    How far freezing lowers the backward peak is the difference between two walks over the operators; whatever
    the walk does not model (workspaces, the loss) keeps its captured size. Layers frozen at the capture are
    frozen in either walk.
    """
    if frozen_prefix <= graph.frozen_prefix:
        return graph.activation_bytes
    lowered = _backward_peak(graph, graph.frozen_prefix) - _backward_peak(graph, frozen_prefix)
    forward = graph.forward_activation_bytes or _LEAST_SHARE * graph.activation_bytes
    forward = max(forward, _training_only_bytes(graph))
    return min(max(graph.activation_bytes - lowered, forward), graph.activation_bytes)


def _training_only_bytes(graph: ComputationGraph) -> float:
    """Largest input plus output of an operator that the graph's forward peak leaves out: loss, dropout."""
    read = _read_bytes(graph)
    return float(((read + graph.columns["bytes_written"]) * graph.columns["training_only"]).max(initial=0.0))


def _read_bytes(graph: ComputationGraph) -> Floats:
    """[N] bytes of the tensors that an operator receives from others."""
    targets = np.array([edge.target for edge in graph.edges], dtype=np.int64)
    read = np.bincount(targets, [edge.bytes for edge in graph.edges], len(graph.operators))
    return read.astype(np.float64)


def _backward_peak(graph: ComputationGraph, frozen_prefix: int) -> float:
    """Backward peak: the largest sum of activations kept up to an operator and its own gradients."""
    columns = graph.columns
    needs_parameters, needs_inputs = graph.gradient_layers >= frozen_prefix
    runs = needs_parameters | needs_inputs
    sources = np.array([edge.source for edge in graph.edges], dtype=np.int64)
    targets = np.array([edge.target for edge in graph.edges], dtype=np.int64)
    # The gradient of a weight needs the operator's input, whichever operator produced it.
    is_kept = runs.copy()
    is_kept[sources[needs_parameters[targets]]] = True
    # The passes of a step with accumulated gradients follow one another, so only one pass's are kept.
    saved = columns["saved_activation_bytes"] * columns["repeat"] / graph.passes
    kept = np.cumsum(np.where(is_kept, saved, 0.0))
    gradients = (
        columns["bytes_written"]
        + needs_inputs * _read_bytes(graph)
        + needs_parameters * columns["parameter_bytes"]
    )
    live = kept + gradients + _tied_gradients(columns, needs_parameters)
    return float(live[runs].max(initial=0.0))


def _tied_gradients(columns: dict[str, Floats], needs_parameters: np.ndarray) -> Floats:
    """[N] bytes of pending gradients of tied weights.

    The gradient of a weight that an earlier operator owns waits for the owner's own gradient, to which it is
    added.
    """
    waiting = np.zeros(len(needs_parameters))
    layer = columns["layer_index"].astype(int)
    owners = np.flatnonzero(columns["parameter_bytes"] > 0)
    first = dict(zip(layer[owners][::-1], owners[::-1], strict=True))
    is_weighted = _IS_WEIGHTED[columns["kind"].astype(int)]
    tied = is_weighted & (columns["parameter_bytes"] == 0) & (layer >= 0) & needs_parameters
    for user in np.flatnonzero(tied):
        owner = first.get(layer[user])
        if owner is not None and owner < user:
            size = columns["parameter_bytes"][owner]
            waiting[owner : user + 1] += size
            waiting[owner] += size  # the sum
    return waiting
