"""Fits a link's bandwidth, alpha and overhead per server to measured iteration times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiling.errors import InputError


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One measured iteration time of a job that spans servers, and its contention."""

    gpus: int
    gradient_size: float
    servers: int
    contention: float
    compute_s: float
    iteration_time_s: float


@dataclass(frozen=True, slots=True)
class LinkFit:
    """inter_bandwidth (b_e), alpha and xi2 of equation 8; b_e includes the reduction."""

    inter_bandwidth: float
    alpha: float
    xi2: float


def fit_link(samples: Iterable[LinkSample]) -> LinkFit:
    """Weighted least squares (by 1 / time) of tau - compute = xi2 servers + volume (k + alpha (k - 1)) / b_e.

    Linear in xi2, 1 / b_e and alpha / b_e, all non-negative. Samples should have at least two sizes and two
    contentions.

    Raises:
        InputError: fewer than three samples, or no bandwidth explains them.
    """
    import numpy as np
    from scipy.optimize import nnls

    rows, times = [], []
    for sample in samples:
        volume = 2 * sample.gradient_size * (sample.gpus - 1) / sample.gpus
        rows.append([sample.servers, volume * sample.contention, volume * (sample.contention - 1)])
        times.append(sample.iteration_time_s - sample.compute_s)
    if len(rows) < 3:
        raise InputError("fit_link", expected="three samples or more", got=len(rows))
    matrix, target = np.asarray(rows, dtype=float), np.asarray(times, dtype=float)
    if not (target > 0).all():
        raise InputError(
            "fit_link", expected="iteration times above the compute time", got=float(target.min())
        )
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    (overhead, slope, loss), _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
    overhead, slope, loss = overhead / scale[0], slope / scale[1], loss / scale[2]
    if not slope > 0:
        raise InputError("fit_link: time does not grow with size", expected="samples of two sizes or more")
    return LinkFit(float(1 / slope), float(loss / slope), float(overhead))
