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
    weight: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.forget()

    def forward(self, features: Tensor) -> Tensor:
        """[G] correction of the log step time, from features [G, width]."""
        apart = ((features - self.mean) / self.scale).clamp(-4.0, 4.0).unsqueeze(1) - self.jobs
        return (-(apart**2).sum(2) / (2 * LENGTH**2)).exp() @ self.weight

    def forget(self) -> None:
        """Know nothing."""
        self.register_buffer("jobs", torch.zeros(0, self.width))
        self.register_buffer("weight", torch.zeros(0))
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("scale", torch.ones(self.width))

    def remember(self, features: Floats, error: Floats) -> Floats:
        """Know these jobs and nothing else.

        Args:
            features: [R, width], rows all different.
            error: [R] log measured / predicted.

        Returns:
            [R] what would be left of the error of each job if only the others were known (the same, section 5.4.2).
        """
        mean, spread = features.mean(0), features.std(0)
        scale = np.where(spread > 1e-6, spread, np.inf)
        jobs = np.clip((features - mean) / scale, -4.0, 4.0)
        apart = ((jobs[:, None] - jobs) ** 2).sum(2)
        inverse = np.linalg.inv(np.exp(-apart / (2 * LENGTH**2)) + NOISE_RATIO**2 * np.eye(len(jobs)))
        weight = inverse @ error
        for name, values in (("jobs", jobs), ("weight", weight), ("mean", mean), ("scale", scale)):
            setattr(self, name, torch.tensor(values, dtype=torch.float32))
        return np.asarray(weight / np.diag(inverse))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("jobs", "weight"):
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name]))
        super()._load_from_state_dict(state, prefix, *rest)
