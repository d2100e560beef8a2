"""Throughput model of a data-parallel job on one GPU type, and its fit to observed step times.

Model of Pollux (Qiao et al., OSDI 2021, section 3.2): T_accum = alpha_c + beta_c b; T_net from the slowest
link; T_step = (T_accum^gamma + T_net^gamma)^(1/gamma). Priors as in AdaptDL (Apache-2.0): costs not observed
yet are assumed to be zero, so that a job is willing to try.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from predictor.types import Floats

_TINY = 1e-8

# (nodes, replicas, batch) -> step and sync seconds.
Profile = Mapping[tuple[int, int, int], tuple[float, float]]


class ThroughputParams(NamedTuple):
    """Parameters of the model, in seconds.

    `beta_c` is per sample, `beta_n` and `beta_r` per replica beyond two; `gamma` is from 1 (no overlap) to
    10.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


def accumulation_s(params: ThroughputParams, local_batch: Any) -> Any:
    """Seconds of forward and backward for `local_batch` samples."""
    return params.alpha_c + params.beta_c * local_batch


def network_s(params: ThroughputParams, nodes: Any, replicas: Any) -> Any:
    """Seconds of gradient exchange."""
    beyond = np.maximum(np.asarray(replicas) - 2, _TINY)
    across, inside = np.asarray(nodes) > 1, np.asarray(replicas) > 1
    alpha = np.where(across, params.alpha_n, np.where(inside, params.alpha_r, _TINY))
    beta = np.where(across, params.beta_n, np.where(inside, params.beta_r, _TINY))
    return alpha + beta * beyond


def step_s(
    params: ThroughputParams, nodes: Any, replicas: Any, local_batch: Any, accumulation: Any = 0
) -> Any:
    """Seconds per optimiser step with `accumulation` further passes."""
    compute = accumulation_s(params, local_batch)
    net = network_s(params, nodes, replicas)
    top = np.maximum(compute, net)  # factored out, so that powers do not under- or overflow
    combined = top * ((compute / top) ** params.gamma + (net / top) ** params.gamma) ** (1.0 / params.gamma)
    return combined + accumulation * compute


def fit(profile: Profile) -> ThroughputParams:
    """Fit on log times (root mean squared log error of both times) by L-BFGS-B within bounds.

    Args:
        profile: at least one observation.
    """
    from scipy.optimize import minimize

    keys = np.array(list(profile.keys()), float).reshape(-1, 3)
    values = np.array(list(profile.values()), float).reshape(-1, 2)
    nodes, replicas, batch = keys.T
    step = values[:, 0]
    compute = np.maximum(values[:, 0] - values[:, 1], _TINY)
    start = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
    lower = np.array([_TINY] * 6 + [1.0])
    upper = np.array([np.inf] * 6 + [10.0])
    if len(np.unique(batch)) == 1:  # constant and slope cannot be distinguished: half each
        start[0] = lower[0] = upper[0] = compute.mean() / 2
    for unknown, columns in (
        (not (nodes > 1).any(), (2, 3)),
        (not ((nodes == 1) & (replicas > 1)).any(), (4, 5)),
        (not (replicas > 2).any(), (3, 5)),
    ):
        if unknown:
            for column in columns:
                start[column] = upper[column] = lower[column]
    across, inside = nodes > 1, (nodes == 1) & (replicas > 1)
    beyond = np.maximum(replicas - 2, _TINY)
    log_compute, log_step = np.log(compute), np.log(step)
    count = len(step)

    def objective(x: Floats) -> tuple[float, Floats]:
        alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = x
        a = alpha_c + beta_c * batch
        n = np.where(
            across,
            alpha_n + beta_n * beyond,
            np.where(inside, alpha_r + beta_r * beyond, _TINY + _TINY * beyond),
        )
        log_a, log_n = np.log(a), np.log(n)
        top = np.maximum(log_a, log_n)
        share_a, share_n = np.exp(gamma * (log_a - top)), np.exp(gamma * (log_n - top))
        total = share_a + share_n
        log_t = top + np.log(total) / gamma
        d1, d2 = log_a - log_compute, log_t - log_step
        e1, e2 = np.sqrt((d1 * d1).mean()), np.sqrt((d2 * d2).mean())
        w1 = d1 / (count * e1) if e1 > 0 else np.zeros(count)
        w2 = d2 / (count * e2) if e2 > 0 else np.zeros(count)
        by_a = w1 / a + w2 * (share_a / total) / a
        by_n = w2 * (share_n / total) / n
        by_gamma = (w2 * ((share_a * log_a + share_n * log_n) / (total * gamma) - log_t / gamma)).sum()
        ratio_n, ratio_r = beta_n / alpha_n, beta_r / alpha_r
        grad = np.array(
            [
                by_a.sum(),
                (by_a * batch).sum(),
                by_n[across].sum() - 2e-2 * ratio_n**2 / alpha_n,
                (by_n * beyond)[across].sum() + 2e-2 * ratio_n / alpha_n,
                by_n[inside].sum() - 2e-2 * ratio_r**2 / alpha_r,
                (by_n * beyond)[inside].sum() + 2e-2 * ratio_r / alpha_r,
                by_gamma + 2e-3 * (gamma - 1.0),
            ]
        )
        value = e1 + e2 + 1e-3 * (gamma - 1.0) ** 2 + 1e-2 * (ratio_n**2 + ratio_r**2)
        return float(value), grad

    bounds = list(zip(lower, upper, strict=True))
    solution = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", tol=1e-5).x
    if not (nodes > 1).any():  # a link between nodes is not better than one inside
        solution[2], solution[3] = max(solution[2], 1.1 * solution[4]), max(solution[3], 1.1 * solution[5])
    return ThroughputParams(*(float(v) for v in solution))
