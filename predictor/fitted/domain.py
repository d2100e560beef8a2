"""Whether a workload resembles those in training.

Its distance in embedding space is compared with the distances among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from models.features import Floats


@dataclass(frozen=True)
class Domain:
    """Embeddings of the training workloads, and the distance up to which a new one counts as similar.

    Attributes:
        points: [P, E].
        radius: 95 % quantile of the distance from a training workload to the nearest one of another
            architecture; with a single architecture, the largest distance between its workloads.
    """

    points: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    radius: float = 0.0

    @classmethod
    def fit(cls, points: Floats, architectures: Sequence[str]) -> Domain:
        """Treat each architecture as new to the others."""
        names = np.array(architectures)
        distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
        if len(set(architectures)) < 2:
            return cls(points, float(distance.max(initial=0.0)))
        distance[names[:, None] == names[None]] = np.inf
        return cls(points, float(np.quantile(distance.min(1), 0.95)))

    def contains(self, embedding: Floats) -> bool:
        """Whether the nearest training workload is within the radius."""
        return not len(self.points) or self._nearest(embedding) <= self.radius

    def _nearest(self, embedding: Floats) -> float:
        return float(np.linalg.norm(self.points - embedding, axis=1).min())
