"""Tracks gradient norms by layer inside a training job, which determine how long a prefix may be frozen.

    tracker = GradientNormTracker(layers)
    for batch in data:
        with tracker.step():            # unfreezes for a probe step, measures after the backward pass
            optimizer.zero_grad()
            loss(model(batch)).backward()
        optimizer.step()                # frozen layers have no gradients here, in probe steps either

`tracker.freeze(k)` sets the prefix; `tracker.state_dict()` goes into the checkpoint. torch is imported by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.types import Bools, Floats
from profiling.checked_fields import check_range
from profiling.errors import InputError
from scheduling.elastic.penalty import norm_shares

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Configuration of the gradient averages.

    Attributes:
        decay: of the exponential moving average, per `measure_every` steps; a probe after a long gap has more
            weight.
        measure_every: steps from one measurement to the next; a measurement reads every gradient once.
        probe_every: steps from one unfrozen probe to the next while a prefix is frozen.
        settle_ratio: a prefix may be frozen once its squared norm is below this share of its peak. On a
            plateau, and with a random last layer, the first layers have small gradients *because nothing is
            learnt yet*: their share is small, and freezing them would keep random features.
        unbiased: use products of successive gradients, whose mean is the squared norm of the mean gradient
            without the noise of the batch (it may be negative and is then clipped); keeps one copy of the
            gradients.
    """

    decay: float = 0.9
    measure_every: int = 1
    probe_every: int = 20
    settle_ratio: float = 0.5
    unbiased: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InputError("decay is out of range", expected="from 0 to below 1", got=self.decay)
        if not 0 < self.settle_ratio <= 1:
            raise InputError(
                "settle_ratio is out of range", expected="a ratio above 0", got=self.settle_ratio
            )
        check_range(self, lambda value: value >= 1, "an integer from 1", "measure_every", "probe_every")


class GradientNormTracker:
    """Exponential moving averages of squared gradient norms of L atomic layers, and the frozen prefix itself.

    Args:
        layers: atomic layers in module order, of a model in training mode; a parameter shared by several
            counts with the first. Frozen layers are switched to evaluation mode, so that their output is
            constant.
        config: configuration of the averages.
    """

    def __init__(self, layers: Sequence[nn.Module], config: TrackerConfig = TrackerConfig()) -> None:
        if not layers:
            raise InputError("the tracker needs layers", expected="at least one module", got="none")
        self.layers = list(layers)
        self.config = config
        self.frozen_prefix = 0
        self.steps = 0
        self._norms = np.zeros(len(self.layers))
        self._weights = np.zeros(len(self.layers))
        self._measured_at = np.zeros(len(self.layers))
        self._peaks = np.zeros(len(self.layers) + 1)
        self._previous: list[list[Any]] | None = None
        seen: set[int] = set()
        self._parameters: list[list[Any]] = []
        for layer in self.layers:
            own = [p for p in layer.parameters() if p.requires_grad and id(p) not in seen]
            seen.update(id(p) for p in own)
            self._parameters.append(own)

    @property
    def squared_norms(self) -> Floats:
        """[L] bias-corrected averages, at least 0; a frozen layer keeps its last probe's value."""
        return np.clip(self._norms / np.maximum(self._weights, 1e-300), 0.0, None)

    @property
    def norm_shares(self) -> Floats:
        """[L + 1] S_k for k = 0..L."""
        return norm_shares(self.squared_norms)

    @property
    def settled(self) -> Bools:
        """[L + 1] prefixes whose squared norm has fallen far enough below its peak; the empty one always
        has."""
        now = np.append(0.0, np.cumsum(self.squared_norms))
        return now <= self.config.settle_ratio * self._peaks

    @property
    def freezable_shares(self) -> Floats:
        """[L + 1] S_k, or 1 for prefixes that have not settled: the basis of a controller's decisions."""
        return np.where(self.settled, self.norm_shares, 1.0)

    def freeze(self, prefix: int) -> None:
        """Train only layers `prefix` and later. Raises `InputError` unless at least one is left."""
        if not 0 <= prefix < len(self.layers):
            raise InputError(
                "frozen prefix is out of range", expected=f"0 to {len(self.layers) - 1}", got=prefix
            )
        self.frozen_prefix = prefix
        self._apply(prefix)

    @contextmanager
    def step(self) -> Iterator[bool]:
        """Wrap forward and backward of one step; yields whether it is a probe."""
        probe = self.frozen_prefix > 0 and (self.steps + 1) % self.config.probe_every == 0
        if probe:
            self._apply(0, training=False)
        try:
            yield probe
        finally:
            if probe:
                self._measure(0)
                self._apply(self.frozen_prefix)
            elif self.steps % self.config.measure_every == 0:
                self._measure(self.frozen_prefix)
            self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists; safe in any checkpoint."""
        return {
            "config": asdict(self.config),
            "frozen_prefix": self.frozen_prefix,
            "steps": self.steps,
            "norms": self._norms.tolist(),
            "weights": self._weights.tolist(),
            "measured_at": self._measured_at.tolist(),
            "peaks": self._peaks.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`, including the frozen prefix. Raises `InputError` if it belongs to another
        model."""
        try:
            norms = np.asarray(state["norms"], dtype=np.float64)
            weights = np.asarray(state["weights"], dtype=np.float64)
            measured_at = np.asarray(state["measured_at"], dtype=np.float64)
            peaks = np.asarray(state["peaks"], dtype=np.float64)
            config, prefix = TrackerConfig(**state["config"]), int(state["frozen_prefix"])
            steps = int(state["steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "tracker state is damaged", expected="the output of state_dict", got=repr(error)
            ) from None
        count = len(self.layers)
        if norms.shape != (count,):
            raise InputError(
                "tracker state belongs to another model", expected=f"{count} layers", got=norms.shape
            )
        if {weights.shape, measured_at.shape} != {(count,)} or peaks.shape != (count + 1,):
            raise InputError(
                "tracker state is damaged",
                expected=f"a weight and a step of each of {count} layers, and {count + 1} peaks",
                got=[weights.shape, measured_at.shape, peaks.shape],
            )
        self.freeze(prefix)
        self.config, self.steps, self._norms, self._weights = config, steps, norms, weights
        self._measured_at, self._peaks, self._previous = measured_at, peaks, None

    def _apply(self, prefix: int, training: bool = True) -> None:
        for index, (layer, parameters) in enumerate(zip(self.layers, self._parameters, strict=True)):
            trained = index >= prefix
            for parameter in parameters:
                parameter.requires_grad_(trained)
                if not trained:
                    parameter.grad = None
            # A probe measures frozen layers in evaluation mode, as they are used.
            layer.train(trained and (training or index >= self.frozen_prefix))

    def _measure(self, first: int) -> None:
        import torch

        previous = self._previous
        current: list[list[Any]] = [[] for _ in self.layers] if self.config.unbiased else []
        for index in range(first, len(self.layers)):
            gradients = [p.grad.detach() for p in self._parameters[index] if p.grad is not None]
            if not gradients:
                continue
            if self.config.unbiased:
                current[index] = [g.clone() for g in gradients]
                if previous is None or len(previous[index]) != len(gradients):
                    continue
                terms = [
                    torch.dot(a.flatten(), b.flatten())
                    for a, b in zip(gradients, previous[index], strict=True)
                ]
            else:
                terms = [g.square().sum() for g in gradients]
            value = float(torch.stack(terms).sum())
            if np.isfinite(value):
                gap = max((self.steps - self._measured_at[index]) / self.config.measure_every, 1.0)
                keep = self.config.decay**gap
                self._norms[index] = keep * self._norms[index] + (1 - keep) * value
                self._weights[index] = keep * self._weights[index] + 1 - keep
                self._measured_at[index] = self.steps
        self._peaks = np.maximum(self._peaks, np.append(0.0, np.cumsum(self.squared_norms)))
        self._previous = current if self.config.unbiased else None
