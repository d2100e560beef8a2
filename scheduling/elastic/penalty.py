"""Frozen penalty: the share of its progress that a job gives up while its first k layers are frozen.

S_k is the share of the squared gradient norm in the frozen prefix, and the penalty is pi_k = S_k ** kappa.
kappa is a setting, not a constant of nature: results are given for several values (docs/elastic.md has those
of our own runs). Source: Gao et al., "IceFrog", IEEE TPDS 36(6), 2025 (abstract: frozen penalty, effective
progress); the form is our own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from predictor.types import Bools, Floats
from profiling.checked_fields import check_range
from profiling.errors import InputError


@dataclass(frozen=True, slots=True)
class FreezingGuards:
    """Limits on freezing a prefix.

    Attributes:
        kappa: exponent of the penalty.
        max_norm_share: largest S_k of a frozen prefix.
        warmup_progress: nothing is frozen before this share of the job's progress.
        max_debt_ratio: debt (the integral of the penalty over progress) stays below this share of the
            progress made.
    """

    kappa: float = 2.0
    max_norm_share: float = 0.5
    warmup_progress: float = 0.1
    max_debt_ratio: float = 0.1

    def __post_init__(self) -> None:
        if not 0.5 <= self.kappa <= 10:
            raise InputError("kappa is out of range", expected="0.5 to 10", got=self.kappa)
        ratios = ("max_norm_share", "warmup_progress", "max_debt_ratio")
        check_range(self, lambda value: 0 <= value <= 1, "a ratio from 0 to 1", *ratios)


def norm_shares(squared_norms: Floats) -> Floats:
    """[L + 1] S_k for k = 0..L from squared gradient norms [L]; all 0 if there is no gradient yet."""
    norms = np.clip(np.asarray(squared_norms, dtype=np.float64), 0.0, None)
    total = norms.sum()
    if not np.isfinite(total):
        raise InputError("invalid gradient norms", expected="finite numbers", got=norms.tolist())
    return np.append(0.0, np.cumsum(norms) / total) if total > 0 else np.zeros(len(norms) + 1)


def frozen_penalty(norm_share: Floats, kappa: float) -> Floats:
    """pi = S ** kappa, elementwise; 0 where nothing is frozen."""
    return np.clip(norm_share, 0.0, 1.0) ** kappa


def allowed_prefixes(
    norm_share: Floats, progress: float | Floats, debt: float | Floats, guards: FreezingGuards
) -> Bools:
    """[..., K] prefixes that the guards allow now; one that freezes nothing (share 0) is always allowed.

    Args:
        norm_share: [..., K] S_k of the candidate prefixes, 0 for the one that freezes nothing.
        progress, debt: effective progress from 0 to 1, and the penalty integrated over it; numbers, or arrays
            that broadcast against `norm_share`.
        guards: limits on freezing.
    """
    share = np.asarray(norm_share, dtype=np.float64)
    within_debt = np.asarray(debt) < guards.max_debt_ratio * np.asarray(progress)
    affordable = within_debt | (frozen_penalty(share, guards.kappa) <= guards.max_debt_ratio)
    warm = np.asarray(progress) >= guards.warmup_progress
    return (share <= 0.0) | ((share <= guards.max_norm_share) & affordable & warm)


def allowed_changes(
    norm_share: Floats,
    progress: float | Floats,
    debt: float | Floats,
    guards: FreezingGuards,
    is_current: Bools,
) -> Bools:
    """[..., K] prefixes to which a job may change, or which it may keep; arguments as for `allowed_prefixes`.

    The current prefix may use the debt up to its cap, a new one only up to a lower limit, or the two would
    alternate.

    Args:
        is_current: [..., K] whether a prefix is the current one.
    """
    stricter = replace(guards, max_debt_ratio=0.8 * guards.max_debt_ratio)
    return np.where(
        is_current,
        allowed_prefixes(norm_share, progress, debt, guards),
        allowed_prefixes(norm_share, progress, debt, stricter),
    )
