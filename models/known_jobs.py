"""Jobs that were measured alone correct the step time of those most like them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.features import Floats

# In standard deviations of the features: the same model with twice the batch lies about 1 away, another model 4 and more.
LENGTH = 1.0
# What a repeated measurement differs by, beside what models differ by from the prior.
NOISE_RATIO = 0.3


class KnownJobs(nn.Module):
    """Gaussian process (Rasmussen and Williams 2006, section 2.2) over what a prediction was off by.

    A job far from all known ones is not corrected. Knows nothing at first.

    Args:
        width: number of features of a job.
    """

    jobs: Tensor
    error: Tensor
    weight: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("jobs", torch.zeros(0, width))
        self.register_buffer("error", torch.zeros(0))
        self.register_buffer("weight", torch.zeros(0))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def forward(self, features: Tensor) -> Tensor:
        """[G] correction of the log step time, from features [G, width]."""
        apart = self._scaled(features).unsqueeze(1) - self._scaled(self.jobs)
        return (-(apart**2).sum(2) / (2 * LENGTH**2)).exp() @ self.weight

    def _scaled(self, features: Tensor) -> Tensor:
        return ((features - self.mean) / self.scale).clamp(-4.0, 4.0)

    def remember(self, features: Floats, error: Floats) -> Floats:
        """Know these jobs beside those that are known; what is said of a known one replaces what was.

        Args:
            features: [R, width], rows all different.
            error: [R] log measured / predicted.

        Returns:
            [R] what would be left of the error of each job if only the others were known (the same, section 5.4.2).
        """
        told = {job.tobytes() for job in features.astype(np.float32)}
        known = self.jobs.numpy()
        kept = np.array([job.tobytes() not in told for job in known], dtype=bool)
        jobs = np.concatenate([known[kept], features]).astype(np.float64)
        errors = np.concatenate([self.error.numpy()[kept], error]).astype(np.float64)
        mean, spread = jobs.mean(0), jobs.std(0)
        scale = np.where(spread > 1e-6, spread, np.inf)
        scaled = np.clip((jobs - mean) / scale, -4.0, 4.0)
        apart = ((scaled[:, None] - scaled) ** 2).sum(2)
        inverse = np.linalg.inv(np.exp(-apart / (2 * LENGTH**2)) + NOISE_RATIO**2 * np.eye(len(jobs)))
        weight = inverse @ errors
        found = {"jobs": jobs, "error": errors, "weight": weight, "mean": mean, "scale": scale}
        for name, values in found.items():
            setattr(self, name, torch.tensor(values, dtype=torch.float32))
        return np.asarray(weight / np.diag(inverse))[len(jobs) - len(features) :]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("jobs", "error", "weight"):
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name]))
        super()._load_from_state_dict(state, prefix, *rest)
