"""Level 2 in numpy: the co-location network over cached encodings, for thousands of candidate sets in one call.

Torch answers one set in about 70 us per layer of overhead; the arithmetic of a set is a few thousand multiplications.
Here sets are padded to M members and all S of them go through each product together; what depends on a workload
alone is projected once and kept. The result equals torch to 1e-5, which `from_torch` checks before it hands one out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.colocation_network import OTHERS_WIDTH, ColocationNetwork
from models.features import EDGE_FEATURES, WANTS_WIDTH, edge_features
from predictor.few_sets import FEW, excess_of_few
from profiling.errors import InputError

Array = NDArray[np.float32]
# Sets that go through the products together: small enough for the second-level cache, large enough for BLAS.
CHUNK = 2048


@dataclass(frozen=True, slots=True)
class _Layer:
    target: tuple[Array, Array]
    source: Array
    value: tuple[Array, Array]
    edge_score: Array
    edge_message: Array
    attention: Array
    output: tuple[Array, Array]
    gate_in: tuple[Array, Array]
    gate_state: tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class PreparedJobs:
    """What is kept per job on a device (rows), ready for any set.

    Attributes:
        entry: [V, width] input projection of the job, setting included.
        wants: [V, WANTS_WIDTH] demands, share of device memory, pace.
    """

    entry: Array
    wants: Array


class SetNetwork:
    """The numpy twin of one `ColocationNetwork` (form `gatv2`) in evaluation mode."""

    def __init__(self, network: ColocationNetwork) -> None:
        if network.config.form != "gatv2" or not network.config.use_edge or not network.config.use_prior:
            raise InputError(
                "this form of network is for ablation only", expected="form gatv2 with edge and prior"
            )
        self.width, self.heads = network.config.width, network.config.heads
        self.enter = _linear(network.enter)
        self.enter_others = _array(network.enter_others.weight).T.copy()
        blocks: list[Any] = list(network.blocks)
        self.layers = [
            _Layer(
                _linear(b.target),
                _array(b.source.weight).T.copy(),
                _linear(b.value),
                _array(b.edge_score.weight).T.copy(),
                _array(b.edge_message.weight).T.copy(),
                _array(b.attention).reshape(-1),
                _linear(b.output),
                (_array(b.gate.weight_ih).T.copy(), _array(b.gate.bias_ih)),
                (_array(b.gate.weight_hh).T.copy(), _array(b.gate.bias_hh)),
            )
            for b in blocks
        ]
        self.slow = _array(network.slow.weight)[0], float(_array(network.slow.bias)[0])
        self.prior = _array(np.logaddexp(0.0, network.prior.raw.detach().numpy().astype(np.float64)))
        self.pace = _array(network.prior.pace)
        self.head_sum = np.kron(np.eye(self.heads), np.ones((self.width // self.heads, 1))).astype(np.float32)

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
        if 0 < len(rows) <= FEW:
            return excess_of_few(self, jobs, rows, prior)
        parts = [self.many(jobs, rows[at : at + CHUNK], prior) for at in range(0, len(rows), CHUNK)]
        return np.concatenate(parts) if parts else np.zeros(rows.shape, dtype=np.float32)

    def many(self, jobs: PreparedJobs, rows: NDArray[np.int64], prior_weights: tuple[Array, Array]) -> Array:
        """As `excess`, quick for many sets: member by member and pair by pair, all sets at once."""
        members = rows.shape[1]
        there = rows >= 0
        safe = np.where(there, rows, 0)
        present = there.astype(np.float32)
        wants = [jobs.wants[safe[:, i]] * present[:, i, None] for i in range(members)]
        everyone = np.sum([w[:, :OTHERS_WIDTH] for w in wants], axis=0)
        states = [
            np.tanh(jobs.entry[safe[:, i]] + (everyone - wants[i][:, :OTHERS_WIDTH]) @ self.enter_others)
            for i in range(members)
        ]
        edges: dict[tuple[int, int], Array] = {}
        prior = np.zeros((len(rows), members), dtype=np.float32)
        (turns, *weights), pace = prior_weights
        for i in range(members):
            for j in range(members):
                if i != j:
                    edge = edges[i, j] = edge_features(wants[i], wants[j])
                    share = np.exp(np.clip(edge[:, -len(pace) :] @ pace, -2.5, 2.5))
                    prior[:, i] += (
                        (turns + edge[:, : len(weights)] @ np.array(weights)) * share * present[:, j]
                    )
        for layer in self.layers:
            states = self._attend(layer, states, edges, present)
        weight, bias = self.slow
        residual = np.stack([s @ weight for s in states], 1) + np.float32(bias)
        return self.excess_from(prior, residual, present)

    def excess_from(self, prior: Array, residual: Array, present: Array) -> Array:
        """[S, M] from the prior's excess and the network's residual; 0 without neighbours."""
        start = np.maximum(prior, 1e-3)
        excess = np.logaddexp(np.float32(0.0), start + np.log(-np.expm1(-start)) + residual)
        alone = present.sum(1, keepdims=True) < 2
        excess[alone | (present == 0)] = 0.0
        return excess

    def _attend(
        self, layer: _Layer, states: list[Array], edges: dict[tuple[int, int], Array], present: Array
    ) -> list[Array]:
        members = len(states)
        targets = [s @ layer.target[0] + layer.target[1] for s in states]
        sources = [s @ layer.source for s in states]
        values = [s @ layer.value[0] + layer.value[1] for s in states]
        result = []
        for i in range(members):
            total = np.zeros((len(states[i]), self.heads), dtype=np.float32)
            message = np.zeros_like(states[i])
            for j in range(members):
                raw = targets[i] + sources[j]
                value = values[j]
                if i != j:
                    raw += edges[i, j] @ layer.edge_score
                    value = value + edges[i, j] @ layer.edge_message
                # Scores are small after training on standardised inputs; clipping guards the exponential.
                score = (np.maximum(raw, 0.2 * raw) * layer.attention) @ self.head_sum
                strength = np.exp(np.clip(score, -30.0, 30.0)) * present[:, j, None]
                total += strength
                message += value * (strength @ self.head_sum.T)
            message /= np.maximum(total, 1e-20) @ self.head_sum.T
            message = message @ layer.output[0] + layer.output[1]
            result.append(self.gate(layer, message, states[i]))
        return result

    def gate(self, layer: _Layer, message: Array, state: Array) -> Array:
        """The gated update of states [N, width] by messages."""
        width = state.shape[1]
        a = message @ layer.gate_in[0] + layer.gate_in[1]
        b = state @ layer.gate_state[0] + layer.gate_state[1]
        gates = 1.0 / (1.0 + np.exp(-(a[:, : 2 * width] + b[:, : 2 * width])))
        reset, update = gates[:, :width], gates[:, width:]
        candidate = np.tanh(a[:, 2 * width :] + reset * b[:, 2 * width :])
        return candidate + update * (state - candidate)


def from_torch(network: ColocationNetwork) -> SetNetwork:
    """The numpy twin, checked against torch on random sets.

    Raises:
        InputError: they differ by more than 1e-5, or the form has no twin.
    """
    import torch

    from models.colocation_network import SetTensors
    from predictor.examples import pairs_within

    twin = SetNetwork(network.eval())
    rng = np.random.default_rng(0)
    jobs, width = 12, network.enter.in_features
    settings = network.prior.raw.shape[0]
    setting = np.zeros(settings, dtype=np.float32)
    setting[[0, settings - 1]] = 1.0
    member = rng.normal(size=(jobs, width - settings)).astype(np.float32)
    wants = np.concatenate(
        [rng.random((jobs, OTHERS_WIDTH)) / 2, rng.normal(size=(jobs, WANTS_WIDTH - OTHERS_WIDTH))], 1
    ).astype(np.float32)
    prepared = PreparedJobs(twin.entry(member, np.repeat(setting[None], jobs, 0)), wants)
    rows = rng.integers(0, jobs, (FEW, 4))
    for k in range(FEW):
        rows[k, 1 + k % 4 :] = -1
    forms = twin.excess(prepared, rows, setting), twin.many(prepared, rows, twin.prior_weights(setting))
    flat, set_index = rows[rows >= 0], np.nonzero(rows >= 0)[0]
    edge_index = pairs_within(set_index)
    s, t = edge_index
    edges = np.zeros((len(s), len(EDGE_FEATURES)), dtype=np.float32)
    between = s != t
    mine = wants[flat]
    edges[between] = edge_features(mine[t[between]], mine[s[between]])
    others = np.zeros((len(flat), OTHERS_WIDTH), dtype=np.float32)
    np.add.at(others, t[between], mine[s[between], :OTHERS_WIDTH])
    with torch.no_grad():
        expected = (
            network(
                SetTensors(
                    torch.from_numpy(member[flat]),
                    torch.from_numpy(others),
                    torch.from_numpy(np.repeat(setting[None], len(flat), 0)),
                    torch.from_numpy(edge_index),
                    torch.from_numpy(edges),
                    torch.from_numpy(set_index),
                )
            )
            .log_slowdown.expm1()
            .numpy()
        )
    worst = max(float(np.abs(got[rows >= 0] - expected).max()) for got in forms)
    if worst > 1e-5:
        raise InputError("numpy and torch disagree", expected="equal answers to 1e-5", got=f"{worst:.1e}")
    return twin


def _array(values: Any) -> Array:
    raw = values.detach().numpy() if hasattr(values, "detach") else values
    return np.ascontiguousarray(raw, dtype=np.float32)


def _linear(module: Any) -> tuple[Array, Array]:
    return _array(module.weight).T.copy(), _array(module.bias)


def padded(sets: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """[S, M] rows of sets of unequal size, -1 where there is no member."""
    most = max((len(s) for s in sets), default=1)
    rows = np.full((len(sets), most), -1, dtype=np.int64)
    for index, one in enumerate(sets):
        rows[index, : len(one)] = one
    return rows
