"""`LayerProfile`: cost of each atomic layer of a model in module order; prefixes freeze whole atomic
layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictor.freezing.layer_times import owning_layers
from predictor.types import Floats
from profiling.errors import InputError
from profiling.graph import ComputationGraph


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """Per-layer costs of one training step with L atomic layers; everything that scales with the batch is
    **per sample**.

    Attributes:
        name: the user's name for the model.
        flops: [L] forward floating-point operations per sample.
        activation_bytes: [L] bytes kept from forward to backward, per sample.
        parameter_bytes: [L].
        boundary_bytes: [L] bytes per sample that layer l passes to layer l + 1, i.e. what a prefix cache
            stores.
    """

    name: str
    flops: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    boundary_bytes: Floats

    def __post_init__(self) -> None:
        for field in ("flops", "activation_bytes", "parameter_bytes", "boundary_bytes"):
            values = np.asarray(getattr(self, field), dtype=np.float64)
            if values.shape != (self.layers,) or not np.all(np.isfinite(values)) or np.any(values < 0):
                raise InputError(
                    f"layer profile {self.name!r}: {field} is not usable",
                    expected=f"{self.layers} finite numbers from 0",
                    got=f"shape {values.shape}",
                )
            object.__setattr__(self, field, values)
        if self.layers < 1:
            raise InputError(f"layer profile {self.name!r} is empty", expected="at least one layer")

    @property
    def layers(self) -> int:
        return len(self.flops)

    @cached_property
    def flop_share(self) -> Floats:
        """[L + 1] share of forward FLOPs in layers k and later, for k = 0..L."""
        return unfrozen_share(self.flops)

    @cached_property
    def activation_share(self) -> Floats:
        """[L + 1] share of kept activations in layers k and later."""
        return unfrozen_share(self.activation_bytes)

    @cached_property
    def parameter_share(self) -> Floats:
        """[L + 1] share of parameters in layers k and later."""
        return unfrozen_share(self.parameter_bytes)

    @classmethod
    def from_shares(
        cls,
        name: str,
        flop_share: Floats,
        activation_share: Floats,
        parameter_share: Floats,
    ) -> LayerProfile:
        """Build from published unfrozen shares at k = 0..L-1 (each [L], 1 at k = 0), with totals of 1; an
        increase is read as 0."""

        def per_layer(share: Floats) -> Floats:
            falling = np.minimum.accumulate(np.clip(np.asarray(share, dtype=np.float64), 0.0, None))
            return falling - np.append(falling[1:], 0.0)

        activations = per_layer(activation_share)
        return cls(
            name,
            per_layer(flop_share),
            activations,
            per_layer(parameter_share),
            activations,
        )

    @classmethod
    def from_graph(cls, graph: ComputationGraph) -> LayerProfile:
        """Build from a captured graph of an unfrozen step. Raises `InputError` if it names no layers.

        An operator that belongs to no layer (a residual sum, an activation function) counts towards the layer
        before it.
        """
        if not graph.layers:
            raise InputError(
                f"graph {graph.name!r} names no atomic layers",
                expected="a graph captured from a torch.nn model",
            )
        count = len(graph.layers)
        columns = {key: np.zeros(count) for key in ("flops", "saved", "parameters", "boundary")}
        for op, layer in zip(graph.operators, owning_layers(graph), strict=True):
            columns["flops"][layer] += op.forward_flops * op.repeat
            columns["saved"][layer] += op.saved_activation_bytes * op.repeat
            columns["parameters"][layer] += op.parameter_bytes * op.repeat
            if op.bytes_written:
                columns["boundary"][layer] = _output_bytes(op.output_shape, op.bytes_written, op.dtype)
        per_sample = 1.0 / max(graph.batch_size, 1)
        return cls(
            graph.name,
            columns["flops"] * per_sample,
            columns["saved"] * per_sample,
            columns["parameters"],
            columns["boundary"] * per_sample,
        )


def unfrozen_share(per_layer: Floats) -> Floats:
    """[L + 1] share of the total in layers k and later; 0 throughout if the total is 0."""
    tail = np.append(np.cumsum(per_layer[::-1])[::-1], 0.0)
    return tail / tail[0] if tail[0] > 0 else tail


def _output_bytes(shape: tuple[int, ...], written: float, dtype: str) -> float:
    width = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 4)
    return float(np.prod(shape)) * width if shape else written
