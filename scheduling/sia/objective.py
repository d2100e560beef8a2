"""Sia's objective (section 3.3) as one utility to maximise.

It combines normalised goodput, restart factor, power and penalties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.types import Floats
from profiling.errors import InputError
from scheduling.core.set_cache import Ints


@dataclass(frozen=True, slots=True)
class SiaConfig:
    """Configuration of Sia.

    Attributes:
        p: fairness power; negative values favour jobs that have little. The published runs: -0.5; the paper's
            default: 0.5.
        lambda_n: price of leaving a job out; above the smallest gain, 1.
        lambda_a: price of changing an allocation.
        clip: largest normalised goodput.
        largest: most GPUs of a configuration.
        gap: relative gap at which the solver may stop.
        decimals: decimals to which the public simulator rounds the normalised goodput to the power p; None:
            not rounded.
    """

    p: float = -0.5
    lambda_n: float = 1.1
    lambda_a: float = 0.01
    clip: float = 3000.0
    largest: int = 64
    gap: float = 1e-4
    decimals: int | None = None

    def __post_init__(self) -> None:
        if self.p == 0 or not -10 <= self.p <= 10:
            raise InputError(
                "p is out of range", expected="a number from -10 to 10 that is not 0", got=self.p
            )
        if self.decimals is not None and self.decimals < 0:
            raise InputError("decimals is out of range", expected="an integer from 0", got=self.decimals)
        if not self.lambda_n >= 1:
            raise InputError("lambda_n is out of range", expected="a number from 1", got=self.lambda_n)


def restart_factor(age_s: float, restarts: int, cost_s: float) -> float:
    """(T - N S) / (T + S), at least 0.01; 1 while the job is younger than one restart."""
    if age_s < cost_s:
        return 1.0
    return max((age_s - restarts * cost_s) / (age_s + cost_s), 0.01)


def utilities(goodput: Floats, least: Floats, factor: Floats, current: Ints, config: SiaConfig) -> Floats:
    """Utility of each configuration in the sum to maximise; negative infinity if it is not possible.

    Args:
        goodput: [J, C], NaN where a configuration is not possible.
        least: [J] value to which the row's smallest goodput is normalised (1, or the smallest number of GPUs
            that the job runs on).
        factor: [J] restart factor of all configurations but the current one.
        current: [J] current configuration or -1.
        config: configuration.
    """
    possible = goodput > 0
    smallest = np.where(possible, goodput, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        row = np.minimum(
            goodput / np.where(np.isfinite(smallest), smallest, 1.0) * least[:, None], config.clip
        )
    jobs = np.arange(len(goodput))
    held = current >= 0
    other = np.zeros(goodput.shape, bool)
    other[held] = True
    other[jobs[held], current[held]] = False
    row = np.where(other, row * factor[:, None], row)
    with np.errstate(invalid="ignore", divide="ignore"):
        power = row**config.p
    if config.decimals is not None:
        power = power.round(config.decimals)
    worth = power + config.lambda_n if config.p > 0 else config.lambda_n - power
    # Every change costs lambda_a, including being left out, so keeping the configuration is worth that much
    # more.
    kept = np.zeros(goodput.shape)
    kept[jobs[held], current[held]] = config.lambda_a
    return np.where(possible, worth + kept, -np.inf)
