"""Observed step times as evidence for the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from predictor.learning.config import PosteriorConfig
from predictor.learning.covariances import Evidence
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import slope, to_scale
from predictor.learning.observed import Observed
from predictor.learning.process import CANNOT_BE
from predictor.learning.rows import Rows, variance

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# Iterations of the search for the linearisation point; more make no difference.
_STEPS = 6
# Times the noise of an observation.
_SAYS_NOTHING = 1e6


def evidence_of(seen: Observed, kept: Integers, known: KnownMembers, config: PosteriorConfig) -> Evidence:
    """Evidence from the rows `kept` of the observations, on the process's scale.

    A row measures the combined error of solo step time and slowdown, which is not linear in the two. It is
    linearised around their most probable values given that row alone.
    """
    p = config.parameters
    own, partners = seen.own[kept], seen.partners[kept]
    expected = seen.log_slowdown[kept]
    together = (partners >= 0).any(1)
    unknown = np.full(len(kept), float(config.learn_solo)) * known.solo_predicted[own]
    observed = seen.log_step_s[kept] - seen.log_solo_s[kept]
    count = np.minimum(seen.count[kept], config.repeats)
    noise = p.noise / count
    # Prior variances of the two errors; if the solo step time is known, all of the error belongs to the
    # slowdown.
    of_solo = unknown * variance(p, known.members, _alone(own, partners))
    of_slowdown = variance(p, known.members, Rows(own, partners, np.zeros(len(own))))
    solo = np.zeros(len(kept))
    for _ in range(_STEPS):
        steep = slope(observed - solo, p.knee)
        target = to_scale(observed - solo, p.knee) - to_scale(expected, p.knee) + steep * solo
        solo = steep * of_solo * target / (steep**2 * (of_solo + noise) + of_slowdown)
    # What no graph explains (an input pipeline, say) says nothing of other jobs.
    error = observed - expected
    off = ~together & (np.abs(error) > CANNOT_BE * np.sqrt(of_solo + noise))
    return Evidence(
        known.members,
        Rows(own, partners, np.where(together, steep, 1.0) * unknown),
        np.where(together, target, np.where(off, 0.0, error)),
        noise * np.where(together, steep**2, np.where(off, _SAYS_NOTHING, 1.0)),
        np.zeros(len(kept), dtype=bool),
        seen.rank[kept],
        count,
    )


def _alone(own: Integers, partners: Integers) -> Rows:
    """Rows of the same jobs without partners, whose solo step time is unknown."""
    return Rows(own, np.full_like(partners, -1), np.ones(len(own)))
