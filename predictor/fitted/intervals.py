"""Split-conformal intervals of the log throughput ratio, by group.

Residuals of jobs whose architecture was held out are divided by a scale that grows with the predicted
slowdown; their 90 % quantile (with the finite-sample correction of Vovk et al., 2005) gives the width for a
new job of the same group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

LEVEL = 0.9
# Fewer rows than this say nothing about utilisation, whose error is then assumed to be this.
ENOUGH, UTILIZATION_ERROR = 8, 0.15
# Covers 90 % of the log errors on a GPU type left out of the cost model's fit (lamikr-by-device: 1,008 rows of known
# networks on eight types, 26 Nov 2026).
NEW_DEVICE_LOG_ERROR = 0.59
# Covers 90 % of the log errors of a step on a MIG slice relative to the whole card: 0.21 on MISO's jobs, which the cost
# model has learned from, times the ratio of its errors on jobs that it has not (25 against 10 %, 26 Nov 2026).
SLICE_LOG_ERROR = 0.5
# Half widths in units of the scale, and log errors, where nothing could be held out: a factor of 4.5.
UNCALIBRATED = 1.5
# `device_factor` where no device type could be held out; the shipped predictor's, measured on three GPU types (27 Nov 2026). With 1, a predictor of CPU measurements covers 30 % of Gavel's sets
# on GPUs, with this 69 %.
UNMEASURED_DEVICE_FACTOR = 2.6
# Groups: were all members measured alone?
GROUPS = ("solo", "graph")


@dataclass(frozen=True, slots=True)
class Intervals:
    """Quantiles of the normalised residual per group, and of the log solo step time.

    Attributes:
        floor: part of the scale that does not grow with the slowdown.
        quantile: group to quantile.
        solo_log_error: 90 % bound of |log predicted / measured| solo step time of jobs without a solo
            measurement.
        utilization_error: 90 % bound of |predicted - measured| utilisation of sets with held-out models.
        device_factor: group to the factor by which intervals are wider where something of a set was never measured
            (`Coverage.never_measured`); estimated from device types left out.
    """

    floor: float = 0.05
    quantile: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GROUPS, UNCALIBRATED))
    solo_log_error: float = 0.5
    utilization_error: float = UTILIZATION_ERROR
    device_factor: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(GROUPS, UNMEASURED_DEVICE_FACTOR)
    )

    def __post_init__(self) -> None:
        for name, values in (("quantile", self.quantile), ("device_factor", self.device_factor)):
            missing = set(GROUPS) - set(values)
            if missing:
                raise ValueError(f"intervals.{name} lacks {', '.join(sorted(missing))}")

    def half_width(self, log_slowdown: Floats, group: str, members: Floats | float = 2.0) -> Floats:
        """Half width of the interval of the log ratio, same shape as `log_slowdown`.

        Args:
            log_slowdown: predicted.
            group: one of `GROUPS`.
            members: `effective_members` of each set.
        """
        return np.asarray(self.quantile[group] * self.scale(log_slowdown, members))

    def scale(self, log_slowdown: Floats, members: Floats | float = 2.0) -> Floats:
        """By which residuals are divided, same shape as `log_slowdown`.

        Args:
            log_slowdown: predicted.
            members: `effective_members` of each set. Eight jobs that fill a device are eight times as slow, and
                predicted no worse than two that are twice as slow, so a log slowdown is taken relative to the
                log of the number of jobs.
        """
        alike = math.log(2) / np.log(np.maximum(members, 2))
        return np.asarray(self.floor + np.asarray(log_slowdown) * alike)

    def widened_by(self, residuals: dict[str, tuple[Floats, Floats]]) -> Intervals:
        """The same with a `device_factor` that covers residuals of held-out device types, as for `fit`.

        Without enough residuals it stays `UNMEASURED_DEVICE_FACTOR`.
        """
        factors = {
            group: max(1.0, conformal_quantile(np.abs(error) / (self.floor + slow)) / self.quantile[group])
            for group, (error, slow) in residuals.items()
            if len(error) >= ENOUGH
        }
        return replace(self, device_factor=self.device_factor | factors).consistent()

    @property
    def is_calibrated(self) -> bool:
        """Whether architectures could be held out to measure the widths."""
        return self.quantile["graph"] != UNCALIBRATED

    @property
    def is_calibrated_for_devices(self) -> bool:
        """Whether device types could be held out to measure `device_factor`."""
        return not math.isclose(self.device_factor["graph"], UNMEASURED_DEVICE_FACTOR, rel_tol=1e-9)

    def consistent(self) -> Intervals:
        """The same, with intervals from graphs at least as wide as those with solo measurements.

        Residuals of a few architectures and devices cannot show that a prediction gets better with less
        knowledge.
        """
        quantile, factor = self.quantile, self.device_factor
        graph = max(quantile["graph"], quantile["solo"])
        # Each factor is relative to the quantile of its group.
        unseen = max(quantile["graph"] * factor["graph"], quantile["solo"] * factor["solo"])
        return replace(
            self, quantile=quantile | {"graph": graph}, device_factor=factor | {"graph": unseen / graph}
        )

    @classmethod
    def fit(
        cls,
        residuals: dict[str, tuple[Floats, Floats]],
        solo_residuals: Floats,
        utilization_residuals: Floats,
        floor: float = 0.05,
    ) -> Intervals:
        """Fit to held-out rows.

        Args:
            residuals: group to (log residual, predicted log slowdown).
            solo_residuals: log errors of solo step times.
            utilization_residuals: errors of utilisation.
            floor: part of the scale that does not grow with the slowdown.
        """
        quantile = {}
        for group in GROUPS:
            error, slow = residuals[group]
            quantile[group] = conformal_quantile(np.abs(error) / (floor + slow))
        busy = np.abs(utilization_residuals)
        apart = conformal_quantile(busy) if len(busy) >= ENOUGH else UTILIZATION_ERROR
        solo_error = conformal_quantile(np.abs(solo_residuals))
        if not len(residuals["solo"][0]):
            quantile["solo"] = quantile["graph"]
        return cls(floor, quantile, solo_error, utilization_error=apart).consistent()


def effective_members(utilization: Floats, set_index: Integers, sets: int) -> Floats:
    """[S] as how many equally busy members the members of each set count, at least 2.

    The inverse participation ratio of their utilisation alone: n equal ones count as n, and one that does next to
    nothing does not count, or a third job without work would narrow the intervals of a pair.

    Args:
        utilization: [T] of each member alone; times `remaining_contention` under a share of the multiprocessors.
        set_index: [T] number of its set.
        sets: number of sets S.
    """
    total = np.bincount(set_index, utilization, minlength=sets)
    squares = np.bincount(set_index, np.square(utilization), minlength=sets)
    return np.maximum(total**2 / np.maximum(squares, np.finfo(np.float64).tiny), 2.0)


def conformal_quantile(scores: Floats) -> float:
    """Smallest score that covers `LEVEL` of new ones; the largest if there are too few, and `UNCALIBRATED` without any."""
    if not len(scores):
        return UNCALIBRATED
    rank = min(math.ceil((len(scores) + 1) * LEVEL), len(scores))
    return float(np.sort(scores)[rank - 1])
