"""Settings of answers to users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.answering.set_network import Array
from predictor.examples.examples import settings_of


def setting_rows(modes: Sequence[str], campaigns: Sequence[str]) -> Array:
    """One-hot settings of answers to users: the sharing mode, and a campaign other than those trained on."""
    return settings_of(modes, ["" for _ in modes], campaigns).astype(np.float32)
