"""Level 2 in NumPy: the co-location network over cached encodings, for thousands of candidate sets per call.

Torch answers one set in about 70 us per layer of overhead; the arithmetic of a set is a few thousand
multiplications. Here sets are padded to M members and all S go through each product together; parts that
depend only on a workload are projected once and cached. Results equal torch's to 1e-5, which `from_torch`
verifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from models.colocation_network import ColocationNetwork, SetTensors
from models.features import DEMAND_WIDTH, SUMMED_WIDTH, edge_features
from models.prior import PACE_BOUND
from predictor.answering.threads import worker_threads
from profiling.errors import InputError

Array = NDArray[np.float32]
# Sets per product: few enough that their arrays stay in the cache, many enough that threads seldom wait for
# the GIL.
CHUNK = 4096
# Random sets on which the twin is compared with torch.
CHECKED = 64
# Number of sets from which chunks are distributed over threads.
THREADED = 2 * CHUNK


@dataclass(frozen=True, slots=True)
class _Layer:
    """An `EGGATLayer` with fused products; all multiply columns, one per member or pair.

    Attributes:
        state: [3 W, W] and bias [3 W, 1]: a state as target, as source, and as value.
        edge: [2 W, E] an edge in the score, and in the message.
        attention: [heads, W] scores of the heads.
        message, hidden: [3 W, W] and bias [3 W, 1]: message (through the output layer) and state in the
            gate's reset, update and candidate. Those of reset and update are halved: sigmoid(x) = (1 + tanh(x
            / 2)) / 2.
    """

    state: tuple[Array, Array]
    edge: Array
    attention: Array
    message: tuple[Array, Array]
    hidden: tuple[Array, Array]

    @classmethod
    def of(cls, block: Any, heads: Array) -> _Layer:
        """From an `EGGATLayer` of the form `gatv2`; `heads` [W, heads] maps channels to heads."""
        width = len(heads)
        bias = np.concatenate([_array(block.target.bias), np.zeros(width), _array(block.value.bias)])
        half = np.repeat([0.5, 0.5, 1.0], width)[:, None]
        gate = block.gate
        into = _array(gate.weight_ih) * half
        return cls(
            (_stack(block.target.weight, block.source.weight, block.value.weight), _array(bias[:, None])),
            _stack(block.edge_score.weight, block.edge_message.weight),
            _array(_array(block.attention).reshape(-1) * heads.T),
            (
                _array(into @ _array(block.output.weight)),
                _array(into @ _array(block.output.bias)[:, None] + _array(gate.bias_ih)[:, None] * half),
            ),
            (_array(_array(gate.weight_hh) * half), _array(_array(gate.bias_hh)[:, None] * half)),
        )


@dataclass(frozen=True, slots=True)
class PreparedJobs:
    """Values cached per job on a device (rows), ready for any set.

    Attributes:
        entry: [V, width] input projection of the job, setting included.
        demand: [V, DEMAND_WIDTH] demands, share of device memory, occupancy, pace.
    """

    entry: Array
    demand: Array


@dataclass(frozen=True, slots=True)
class _Sets:
    """S sets, stored by position: all sets at once, one column each.

    Attributes:
        rows: [M, S] rows of the job table; 0 where there is no member.
        present: [M, S] 1 where there is a member.
        others: [M, S, SUMMED_WIDTH] total demand of the other members.
        edges: for each distance d = 1..M-1, [M, S, len(EDGE_FEATURES)]: to every position from the one d
            further on, cyclically. One array for all positions, because the overhead of NumPy calls dominates
            small queries.
    """

    rows: NDArray[np.int64]
    present: Array
    others: Array
    edges: list[Array]

    @classmethod
    def of(cls, jobs: PreparedJobs, rows: NDArray[np.int64]) -> _Sets:
        present = np.ascontiguousarray((rows >= 0).T, dtype=np.float32)
        safe = np.maximum(rows.T, 0)
        demand = jobs.demand[safe] * present[:, :, None]
        others = demand[:, :, :SUMMED_WIDTH].sum(0) - demand[:, :, :SUMMED_WIDTH]
        edges = [edge_features(demand, further) for further in _further_on(demand)]
        return cls(safe, present, others, edges)


def _further_on(positions: Array, axis: int = 0) -> list[Array]:
    """Views of `positions` (M along `axis`), cyclically shifted by 1..M-1."""
    size = positions.shape[axis]
    twice = np.concatenate([positions, positions], axis)
    before = (slice(None),) * axis
    return [twice[(*before, slice(distance, distance + size))] for distance in range(1, size)]


def prior_parts(
    jobs: PreparedJobs, rows: NDArray[np.int64], weights: Array, pace: Array
) -> NDArray[np.float64]:
    """Contribution of each term of the prior to a member's slowdown.

    Args:
        jobs: cached inputs.
        rows: [S, M] rows of `jobs`, -1 where a set has fewer members.
        weights: [S, len(CONTENTION_FEATURES)] for each set's sharing mode.
        pace: [S, len(PACE_FEATURES)] for each set's sharing mode.

    Returns:
        [S, M, len(CONTENTION_FEATURES)].
    """
    sets = _Sets.of(jobs, rows)
    parts = np.zeros((*sets.rows.shape, weights.shape[1]))
    for edge, further in zip(sets.edges, _further_on(sets.present), strict=True):
        turns = (edge[:, :, -pace.shape[1] :] * pace).sum(2)
        share = np.exp(_clipped(turns)) * sets.present * further
        parts[:, :, :1] += share[:, :, None]
        parts[:, :, 1:] += edge[:, :, : weights.shape[1] - 1] * share[:, :, None]
    return np.ascontiguousarray((parts * weights).transpose(1, 0, 2))


def _clipped(paces: Array) -> Array:
    """Clamp in place to [-PACE_BOUND, PACE_BOUND]; `np.clip` takes several times as long on a few numbers."""
    return np.minimum(np.maximum(paces, -PACE_BOUND, out=paces), PACE_BOUND, out=paces)


class SetNetwork:
    """The numpy twin of one `ColocationNetwork` (form `gatv2`) in evaluation mode."""

    def __init__(self, network: ColocationNetwork) -> None:
        network.config.check_whole()
        self.width, self.heads = network.config.width, network.config.heads
        self.enter = _linear(network.enter)
        self.enter_others = _array(network.enter_others.weight).T.copy()
        self.slow, self.usage = (
            (_array(head.weight)[0], float(_array(head.bias)[0])) for head in (network.slow, network.usage)
        )
        self.prior = _array(np.logaddexp(0.0, network.prior.raw.detach().numpy().astype(np.float64)))
        self.pace = _array(network.prior.pace)
        # [W, heads] which head a channel belongs to.
        self.heads_of = _array(np.kron(np.eye(self.heads), np.ones((self.width // self.heads, 1))))
        self.layers = [_Layer.of(block, self.heads_of) for block in network.blocks]

    def entry(self, member: Array, setting: Array) -> Array:
        """[V, width] projection of scaled member features [V, F] and one-hot settings [V, K]."""
        weight, bias = self.enter
        return (np.concatenate([member, setting], 1) @ weight + bias).astype(np.float32)

    def prior_weights(self, setting: Array) -> tuple[Array, Array]:
        """Weights of the prior's terms and of its pace in a setting ([..., K] one-hot)."""
        return (setting @ self.prior).astype(np.float32), (setting @ self.pace).astype(np.float32)

    def excess(self, jobs: PreparedJobs, rows: NDArray[np.int64], setting: Array) -> Array:
        """Predicted latent slowdown - 1.

        Args:
            rows: [S, M] rows of `jobs`; -1 where a set has fewer members.
            setting: [K] one-hot sharing mode and campaign, the same for all sets.

        Returns:
            [S, M]; 0 where there is no member or no neighbour.
        """
        prior = self.prior_weights(setting)
        result = np.zeros(rows.shape, dtype=np.float32)

        def answer(at: int) -> None:
            result[at : at + CHUNK] = self._excess(jobs, rows[at : at + CHUNK], prior)

        starts = range(0, len(rows), CHUNK)
        if len(rows) < THREADED:
            for at in starts:
                answer(at)
            return result
        # Each thread does its own products; with BLAS threads on top, the threads would wait for each other.
        with threadpool_limits(1, "blas"):
            for _ in worker_threads().map(answer, starts):
                pass
        return result

    def utilization_residual(self, jobs: PreparedJobs, rows: NDArray[np.int64]) -> Array:
        """[S] the sets' utilisation minus that of independent phases; `rows` as for `excess`."""
        result = np.zeros(len(rows), dtype=np.float32)
        if not self.usage[1] and not self.usage[0].any():
            return result  # nothing was learned
        for at in range(0, len(rows), CHUNK):
            result[at : at + CHUNK] = self._utilization_residual(jobs, rows[at : at + CHUNK])
        return result

    def _utilization_residual(self, jobs: PreparedJobs, rows: NDArray[np.int64]) -> Array:
        sets = _Sets.of(jobs, rows)
        weight, bias = self.usage
        parts = np.tanh(self._read(weight, self._states(jobs, sets)) + np.float32(bias))
        count = sets.present.sum(0)
        return np.asarray((parts * sets.present).sum(0) * (count > 1) / np.maximum(count, 1))

    def _excess(
        self, jobs: PreparedJobs, rows: NDArray[np.int64], prior_weights: tuple[Array, Array]
    ) -> Array:
        sets = _Sets.of(jobs, rows)
        (turns, *weights), pace = prior_weights
        terms = np.array(weights)
        prior = np.zeros(sets.present.shape, dtype=np.float32)
        for edge, further in zip(sets.edges, _further_on(sets.present), strict=True):
            share = np.exp(_clipped(edge[:, :, -len(pace) :] @ pace))
            share *= turns + edge[:, :, : len(terms)] @ terms
            share *= further
            prior += share
        weight, bias = self.slow
        residual = self._read(weight, self._states(jobs, sets)) + np.float32(bias)
        return self.excess_from(prior, residual, sets.others[:, :, -1], sets.present).T

    @staticmethod
    def _read(weight: Array, states: Array) -> Array:
        """[M, S] of states [width, M, S]."""
        width, members, count = states.shape
        return np.asarray(weight @ states.reshape(width, -1)).reshape(members, count)

    def _states(self, jobs: PreparedJobs, sets: _Sets) -> Array:
        """[width, M, S] states of the members after all layers."""
        members, count = sets.rows.shape
        state = jobs.entry[sets.rows]
        state += sets.others @ self.enter_others
        states = np.tanh(state).reshape(members * count, self.width).T.reshape(self.width, members, count)
        edges = [np.ascontiguousarray(edge.reshape(members * count, -1).T) for edge in sets.edges]
        present = sets.present[None]
        further_present = _further_on(present, 1)
        for layer in self.layers:
            states = self._attend(layer, states, edges, present, further_present)
        return states

    def excess_from(self, prior: Array, residual: Array, occupied: Array, present: Array) -> Array:
        """[M, S] from the prior's excess, the network's residual and the neighbours' occupancy.

        0 without neighbours.
        """
        start = np.maximum(prior, 1e-3)
        excess = np.logaddexp(np.float32(0.0), start + np.log(-np.expm1(-start)) + residual)
        excess /= 1 + excess * (np.maximum(1 - occupied, 0) / np.maximum(occupied, 1e-3))
        excess *= present
        excess *= present.sum(0) > 1
        return excess

    def _attend(
        self, layer: _Layer, states: Array, edges: list[Array], present: Array, further_present: list[Array]
    ) -> Array:
        """States [width, M, S] after a layer.

        `edges` [E, M * S] holds one array per distance; `present` [1, M, S] marks members.
        """
        width, shape = self.width, states.shape
        own = states.reshape(width, -1)
        projected = (layer.state[0] @ own + layer.state[1]).reshape(3 * width, *shape[1:])
        target = projected[:width]
        further_on = [projected[width:], *_further_on(projected[width:], 1)]
        total: Any = 0.0
        message: Any = 0.0
        for distance, (source, there) in enumerate(zip(further_on, (present, *further_present), strict=True)):
            raw, value = target + source[:width], source[width:]
            if distance:
                edge = (layer.edge @ edges[distance - 1]).reshape(2 * width, *shape[1:])
                raw += edge[:width]
                value = np.add(value, edge[width:], out=edge[width:])
            strength = self.strength(layer, raw.reshape(width, -1))
            strength *= there.reshape(1, -1)
            total = total + strength
            message = message + value.reshape(width, -1) * (self.heads_of @ strength)
        message /= self.heads_of @ np.maximum(total, 1e-20)
        return self.gate(layer, message, own).reshape(shape)

    def strength(self, layer: _Layer, raw: Array) -> Array:
        """[heads, N] unnormalised attention weights of messages [W, N]; `raw` is overwritten."""
        np.maximum(raw, np.float32(0.2) * raw, out=raw)
        # Scores are small after training on standardised inputs; clipping guards the exponential.
        score = layer.attention @ raw
        np.minimum(np.maximum(score, -30.0, out=score), 30.0, out=score)
        return np.exp(score, out=score)

    def gate(self, layer: _Layer, message: Array, state: Array) -> Array:
        """[W, N] states after the gated update by messages that have not been through the output layer."""
        width = self.width
        entering = layer.message[0] @ message
        entering += layer.message[1]
        held = layer.hidden[0] @ state
        held += layer.hidden[1]
        gates = np.add(entering[: 2 * width], held[: 2 * width], out=entering[: 2 * width])
        np.tanh(gates, out=gates)
        gates *= np.float32(0.5)
        gates += np.float32(0.5)
        candidate = held[2 * width :]
        candidate *= gates[:width]
        candidate += entering[2 * width :]
        np.tanh(candidate, out=candidate)
        result = state - candidate
        result *= gates[width:]
        result += candidate
        return result


def from_torch(network: ColocationNetwork) -> SetNetwork:
    """The numpy twin, checked against torch on random sets.

    Raises:
        InputError: they differ by more than 1e-5, or the form has no twin.
    """
    import torch

    twin = SetNetwork(network.eval())
    rng = np.random.default_rng(0)
    jobs, width = 12, network.enter.in_features
    settings = network.prior.raw.shape[0]
    setting = np.zeros(settings, dtype=np.float32)
    setting[[0, settings - 1]] = 1.0
    member = rng.normal(size=(jobs, width - settings)).astype(np.float32)
    demand = np.concatenate(
        [rng.random((jobs, SUMMED_WIDTH)) / 2, rng.normal(size=(jobs, DEMAND_WIDTH - SUMMED_WIDTH))], 1
    ).astype(np.float32)
    prepared = PreparedJobs(twin.entry(member, np.repeat(setting[None], jobs, 0)), demand)
    rows = rng.integers(0, jobs, (CHECKED, 4))
    for k in range(CHECKED):
        rows[k, 1 + k % 4 :] = -1
    present = rows >= 0
    with torch.no_grad():
        output = network(
            SetTensors(
                torch.from_numpy(member[rows]),
                torch.from_numpy(demand[rows]),
                torch.from_numpy(np.repeat(setting[None], CHECKED, 0)),
                torch.from_numpy(present),
            )
        )
    excess = output.log_slowdown.expm1().numpy() * present
    utilization_residual = (output.utilization.numpy() * present).sum(1) / present.sum(1)
    answers = (twin.excess(prepared, rows, setting), twin.utilization_residual(prepared, rows))
    # Not `max`, which loses a NaN.
    worst = np.max(
        [np.abs(a - b).max() for a, b in zip(answers, (excess, utilization_residual), strict=True)]
    )
    if not worst <= 1e-5:
        raise InputError("numpy and torch disagree", expected="equal answers to 1e-5", got=f"{worst:.1e}")
    return twin


def _array(values: Any) -> Array:
    raw = values.detach().numpy() if hasattr(values, "detach") else values
    return np.ascontiguousarray(raw, dtype=np.float32)


def _stack(*weights: Any) -> Array:
    return np.concatenate([_array(weight) for weight in weights])


def _linear(module: Any) -> tuple[Array, Array]:
    return _array(module.weight).T.copy(), _array(module.bias)
