"""Observed step times as evidence for the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.learning.config import PosteriorConfig
from predictor.learning.covariances import Evidence
from predictor.learning.known_members import KnownMembers
from predictor.learning.link import slope, to_scale
from predictor.learning.observed import Observed
from predictor.learning.process import Process
from predictor.learning.rows import Rows

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

# A log step time that differs by less from what was observed is left as it is, and so is what is off by more after so many turns.
_NEAR, _MOST_TURNS = 0.003, 4


def process_of(
    seen: Observed, kept: Integers, known: KnownMembers, config: PosteriorConfig, earlier: Process | None
) -> Process:
    """The process given rows `kept` of what was observed.

    A row says what the error of the solo step time and that of the slowdown come to together, which is not linear in the two. It is
    taken to be linear between all and nothing, then, where the process has it in between, around what the process says.

    Args:
        earlier: as for `Process`.
    """
    own = seen.own[kept]
    around = np.full(len(kept), np.nan)
    for turn in range(_MOST_TURNS + 1):
        evidence = evidence_of(seen, kept, known, config, around)
        process = earlier = Process(config.parameters, evidence, config.most_rows, earlier)
        if turn == _MOST_TURNS or not evidence.rows.solo.any():
            break
        solo = process.solo(known.members)[own]
        off = np.abs(_left_over(seen, kept, evidence, solo, config.parameters.knee)) > _NEAR
        if not off.any():
            break
        around[off] = solo[off]
    return process


def evidence_of(
    seen: Observed, kept: Integers, known: KnownMembers, config: PosteriorConfig, around: Floats
) -> Evidence:
    """Rows `kept` of what was observed, on the process's scale.

    Args:
        around: [len(kept)] errors of log solo step times that rows are linear around; NaN where from none to all of what was off.
    """
    p = config.parameters
    own, partners = seen.own[kept], seen.partners[kept]
    expected = seen.log_slowdown[kept]
    observed = seen.log_step_s[kept] - seen.log_solo_s[kept]
    together = (partners >= 0).any(1)
    unknown = np.full(len(kept), float(config.learn_solo)) * known.solo_predicted[own]
    count = seen.count[kept]
    error = observed - expected
    on_scale = to_scale(observed, p.knee) - to_scale(expected, p.knee)
    steep = slope(observed, p.knee)
    secant = np.where(np.abs(error) > 1e-6, on_scale / np.where(error == 0, 1.0, error), steep)
    tangent = np.flatnonzero(~np.isnan(around))
    rest = observed[tangent] - around[tangent]
    steep[tangent] = secant[tangent] = slope(rest, p.knee)
    on_scale[tangent] += to_scale(rest, p.knee) - to_scale(observed[tangent], p.knee)
    on_scale[tangent] += secant[tangent] * around[tangent]
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


def _left_over(seen: Observed, kept: Integers, evidence: Evidence, solo: Floats, knee: float) -> Floats:
    """[len(kept)] by how much log step times of linear rows are off where those of jobs alone are off by `solo`."""
    rest = seen.log_step_s[kept] - seen.log_solo_s[kept] - solo
    linear = evidence.target - evidence.rows.solo * solo
    left = (to_scale(rest, knee) - to_scale(seen.log_slowdown[kept], knee) - linear) / slope(rest, knee)
    return np.where((evidence.rows.partners >= 0).any(1) & (evidence.rows.solo > 0), left, 0.0)
