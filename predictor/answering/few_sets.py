"""`SetNetwork` for few sets: all members and all pairs of a set go through each product together.

A handful of sets costs what numpy takes to start an operation, so this form has as few of them as it can; many sets cost
what their arithmetic takes, and `SetNetwork` saves that of pairs that are none. Both give the same answer to 1e-5.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.features import OTHERS_WIDTH, edge_features

if TYPE_CHECKING:
    from predictor.answering.set_network import Array, PreparedJobs, SetNetwork

# Up to here this form is the quicker one, whatever the size of the sets.
FEW = 64


def excess_of_few(
    network: SetNetwork, jobs: PreparedJobs, rows: NDArray[np.int64], weights: tuple[Array, Array]
) -> Array:
    """As `SetNetwork.excess`, for rows [S, M]; `weights` of the prior are [K] and those of its pace [P]."""
    present, edges, others, states = _states(network, jobs, rows)
    prior = _terms(edges, present, *weights).sum((2, 3))
    weight, bias = network.slow
    return network.excess_from(prior.T, (states @ weight + bias).T, others[..., -1].T, present.T).T


def usage_of_few(network: SetNetwork, jobs: PreparedJobs, rows: NDArray[np.int64]) -> Array:
    """[S, M] as `SetOutput.utilization`, for rows [S, M]; 0 where there is no member or no neighbour."""
    present, _, _, states = _states(network, jobs, rows)
    weight, bias = network.usage
    return np.tanh(states @ weight + bias) * present * (present.sum(1, keepdims=True) > 1)


def _states(
    network: SetNetwork, jobs: PreparedJobs, rows: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array]:
    """Who is there, edges, what the others want, and the members' states after all layers."""
    present, wants, edges = _pairs(jobs, rows)
    own = wants[..., :OTHERS_WIDTH]
    others = own.sum(1, keepdims=True) - own
    states = np.tanh(jobs.entry[rows] + others @ network.enter_others)
    for layer in network.layers:
        states = _attend(network, layer, states, edges, present)
    return present, edges, others, states


def prior_parts(
    jobs: PreparedJobs, rows: NDArray[np.int64], weights: Array, pace: Array
) -> NDArray[np.float64]:
    """What each term of the prior adds to a member's slowdown.

    Args:
        rows: [S, M] rows of `jobs`, -1 where a set has fewer members.
        weights: [S, len(CONTENTION_FEATURES)]; pace: [S, len(PACE_FEATURES)], of each set's sharing mode.

    Returns:
        [S, M, len(CONTENTION_FEATURES)].
    """
    present, _, edges = _pairs(jobs, rows)
    terms = _terms(edges, present, weights[:, None, None], pace[:, None, None])
    return terms.sum(2, dtype=np.float64) * present[..., None]


def _pairs(jobs: PreparedJobs, rows: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """[S, M] who is there, [S, M, WANTS_WIDTH] what they want, and [S, M, M, E] features of target i and source j, 0 where i is j."""
    present = (rows >= 0).astype(np.float32)
    wants = jobs.wants[rows] * present[..., None]
    edges = edge_features(wants[:, :, None], wants[:, None])
    edges *= _others(rows.shape[1])[..., None]
    return present, wants, edges


@cache
def _others(members: int) -> Array:
    """[M, M] 0 where a member meets itself, else 1."""
    return 1.0 - np.eye(members, dtype=np.float32)


def _terms(edges: Array, present: Array, weights: Array, pace: Array) -> Array:
    """[S, M, M, K] terms of the prior; `weights` [..., K] and `pace` [..., P] may differ between sets."""
    turns = (edges[..., -pace.shape[-1] :] * pace).sum(-1)
    # `np.clip` takes longer than both of these.
    share = np.exp(np.minimum(np.maximum(turns, -2.5), 2.5)) * present[:, None]
    share *= _others(present.shape[1])
    demands = np.empty((*share.shape, weights.shape[-1]), dtype=edges.dtype)
    demands[..., 0] = 1.0
    demands[..., 1:] = edges[..., : weights.shape[-1] - 1]
    return demands * weights * share[..., None]


def _attend(network: SetNetwork, layer: Any, states: Array, edges: Array, present: Array) -> Array:
    width, (count, members, _) = network.width, states.shape
    projected = (layer.state[0] @ _columns(states) + layer.state[1]).reshape(-1, count, members)
    edge = (layer.edge @ _columns(edges)).reshape(-1, count, members, members)
    raw, value = edge[:width], edge[width:]
    raw += projected[:width, :, :, None]
    raw += projected[width : 2 * width, :, None]
    value += projected[2 * width :, :, None]
    strength = network.strength(layer, raw.reshape(width, -1)).reshape(-1, *raw.shape[1:]) * present[:, None]
    value *= (network.heads_of @ strength.reshape(len(strength), -1)).reshape(value.shape)
    message = value.sum(3).reshape(width, -1)
    message /= network.heads_of @ np.maximum(strength.sum(3).reshape(len(strength), -1), 1e-20)
    return network.gate(layer, message, _columns(states)).T.reshape(states.shape)


def _columns(values: Array) -> Array:
    """[channels, N] from [..., channels]."""
    return values.reshape(-1, values.shape[-1]).T
