"""`LayerProfile`: cost of each atomic layer of a model in module order; prefixes freeze whole atomic
layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictor.types import Floats
from profiling.errors import InputError


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """Per-layer costs of one training step with L atomic layers; everything that scales with the batch is
    **per sample**.

    Attributes:
        name: the user's name for the model.
        flops: [L] forward floating-point operations per sample.
        activation_bytes: [L] bytes kept from forward to backward, per sample.
        parameter_bytes: [L].
    """

    name: str
    flops: Floats
    activation_bytes: Floats
    parameter_bytes: Floats

    def __post_init__(self) -> None:
        for field in ("flops", "activation_bytes", "parameter_bytes"):
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
    def parameter_share(self) -> Floats:
        """[L + 1] share of parameters in layers k and later; 0 throughout if there are none."""
        tail = np.append(np.cumsum(self.parameter_bytes[::-1])[::-1], 0.0)
        return tail / tail[0] if tail[0] > 0 else tail

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

        return cls(name, per_layer(flop_share), per_layer(activation_share), per_layer(parameter_share))
