"""Observed step times as evidence for the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from predictor.learning.config import PosteriorConfig
from predictor.learning.covariances import Evidence
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import slope, to_scale
from predictor.learning.observed import Observed
from predictor.learning.rows import Rows

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


def evidence_of(seen: Observed, kept: Integers, known: KnownMembers, config: PosteriorConfig) -> Evidence:
    """Rows `kept` of what was observed, on the process's scale."""
    p = config.parameters
    own, partners = seen.own[kept], seen.partners[kept]
    expected = seen.log_slowdown[kept]
    observed = seen.log_step_s[kept] - seen.log_solo_s[kept]
    together = (partners >= 0).any(1)
    unknown = np.full(len(kept), float(config.learn_solo)) * known.solo_predicted[own]
    count = seen.count[kept]
    error = observed - expected
    on_scale = to_scale(observed, p.knee) - to_scale(expected, p.knee)
    # What an error of the solo step time would be on the scale: the secant, so that it explains all of the difference or none.
    steep = slope(observed, p.knee)
    secant = np.where(np.abs(error) > 1e-6, on_scale / np.where(error == 0, 1.0, error), steep)
    rows = Rows(own, partners, np.where(together, secant, 1.0) * unknown)
    noise = p.noise / np.minimum(count, config.repeats)
    return Evidence(
        known.members,
        rows,
        np.where(together, on_scale, error),
        noise * np.where(together, steep**2, 1.0),
        np.zeros(len(kept), dtype=bool),
        seen.rank[kept],
    )
