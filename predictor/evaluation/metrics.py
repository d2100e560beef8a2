"""Metrics of predictions: physical errors, rank correlation, quantiles, bootstrap intervals, coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiling.errors import InputError

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)


def _pair(measured: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    y, p = np.asarray(measured, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if y.shape != p.shape or y.ndim != 1 or len(y) == 0:
        raise InputError(
            "measured and predicted values do not match",
            expected="two vectors of one length",
            got=f"{y.shape}, {p.shape}",
        )
    if not (np.isfinite(y).all() and np.isfinite(p).all()):
        raise InputError("a value to score is not a number", expected="finite values", got="NaN or infinity")
    return y, p


def mape_percent(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean of |error| / |measured|, in percent; NaN if no row is left.

    Rows measured as 0 are ignored.
    """
    y, p = _pair(measured, predicted)
    nonzero = y != 0
    return float(100 * np.mean(np.abs((p - y)[nonzero] / y[nonzero]))) if nonzero.any() else math.nan


def median_ape_percent(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Median of |error| / |measured|, in percent, over the rows of `mape_percent`."""
    y, p = _pair(measured, predicted)
    nonzero = y != 0
    return float(100 * np.median(np.abs((p - y)[nonzero] / y[nonzero]))) if nonzero.any() else math.nan


def mae(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute error, in the unit of the values."""
    y, p = _pair(measured, predicted)
    return float(np.mean(np.abs(p - y)))


def rmse(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Root of the mean squared error, in the unit of the values."""
    y, p = _pair(measured, predicted)
    return float(np.sqrt(np.mean((p - y) ** 2)))


def r2(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Share of the variance explained: 1 - squared error / that of the mean. NaN if all values are equal."""
    y, p = _pair(measured, predicted)
    spread = float(np.sum((y - y.mean()) ** 2))
    return 1 - float(np.sum((p - y) ** 2)) / spread if spread > 0 else math.nan


def spearman(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Spearman's rank correlation; NaN if either side is constant."""
    from scipy.stats import rankdata

    y, p = _pair(measured, predicted)
    if np.ptp(y) == 0 or np.ptp(p) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(y), rankdata(p))[0, 1])


def r2_log(measured: ArrayLike, predicted: ArrayLike) -> float:
    """R2 of the logarithms; NaN if a value is not positive, or all are equal."""
    y, p = _pair(measured, predicted)
    return r2(np.log(y), np.log(p)) if (y > 0).all() and (p > 0).all() else math.nan


METRICS = {
    "mape_percent": mape_percent,
    "median_ape_percent": median_ape_percent,
    "mae": mae,
    "rmse": rmse,
    "r2": r2,
    "r2_log": r2_log,
    "spearman": spearman,
}


def score(
    measured: ArrayLike,
    predicted: ArrayLike,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
) -> dict[str, Any]:
    """All metrics of one set of predictions, as JSON values (None if a metric cannot be computed).

    Args:
        measured, predicted: [n].
        lower, upper: [n] ends of 90 % intervals, if the predictor gives them.

    Returns:
        `n`, `METRICS`, `geometric_factor` (if all values are positive), `error_quantiles` of the absolute
        error and, with intervals, `coverage_90` and `median_width`.

    Raises:
        InputError: the vectors do not match, are empty or contain NaN.
    """
    y, p = _pair(measured, predicted)
    result: dict[str, Any] = {"n": len(y)}
    result |= {name: _json(metric(y, p)) for name, metric in METRICS.items()}
    if (y > 0).all() and (p > 0).all():
        # The typical factor by which predictions are off: the relevant error for values that span decades,
        # such as step times.
        result["geometric_factor"] = float(np.exp(np.mean(np.abs(np.log(p / y)))))
    quantiles = np.quantile(np.abs(p - y), QUANTILES)
    result["error_quantiles"] = {f"p{q * 100:g}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)}
    if lower is not None and upper is not None:
        result["coverage_90"] = coverage(y, lower, upper)
        result["median_width"] = float(np.median(np.asarray(upper) - np.asarray(lower)))
    return result


def bounds_kept(predicted: ArrayLike, at_least: ArrayLike, at_most: ArrayLike) -> dict[str, Any]:
    """How well predictions respect bounds, for values only known to lie above or below a limit.

    Args:
        predicted, at_least, at_most: [n]; NaN if there is no prediction or no bound.

    Returns:
        `n` predictions with a bound, `kept_ratio` that respect it, `mean_violation` (0 if respected), and the
        same by `at_least` and `at_most`.
    """
    p, low, high = (np.asarray(values, dtype=np.float64) for values in (predicted, at_least, at_most))
    result: dict[str, Any] = {"n": 0}
    sides = {"at_least": low - p, "at_most": p - high}
    worse = np.fmax(sides["at_least"], sides["at_most"])
    if not np.isnan(worse).all():
        result = _kept(worse)
        result |= {name: _kept(beyond) for name, beyond in sides.items() if not np.isnan(beyond).all()}
    return result


def _kept(beyond: NDArray[np.float64]) -> dict[str, Any]:
    off = np.maximum(beyond[~np.isnan(beyond)], 0.0)
    return {"n": len(off), "kept_ratio": float((off <= 0).mean()), "mean_violation": float(off.mean())}


def coverage(measured: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """Share of values within their interval, ends included."""
    y, low = _pair(measured, lower)
    _, high = _pair(measured, upper)
    return float(np.mean((low <= y) & (y <= high)))


# Coverage of the bootstrap's intervals.
_LEVEL = 0.95


def bootstrap(
    measured: ArrayLike,
    predicted: ArrayLike,
    groups: ArrayLike,
    resamples: int,
) -> dict[str, list[float | None]]:
    """95 % percentile bootstrap intervals of every metric.

    Whole `groups` are resampled, because errors within a set are correlated.

    Args:
        measured, predicted: [n].
        groups: [n] labels of the resampled groups, such as set ids.
        resamples: number of resamples.

    Returns:
        metric -> [lower, upper]; None if it could not be computed in any resample.
    """
    y, p = _pair(measured, predicted)
    _, codes = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.r_[True, np.diff(codes[order]) > 0, True])
    count = len(bounds) - 1
    generator = np.random.default_rng(0)
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(resamples):
        drawn = generator.integers(0, count, count)
        starts, lengths = bounds[drawn], (bounds[1:] - bounds[:-1])[drawn]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = order[np.repeat(starts, lengths) + offsets]
        for name, metric in METRICS.items():
            value = metric(y[rows], p[rows])
            if math.isfinite(value):
                values[name].append(value)
    tail = (1 - _LEVEL) / 2
    return {
        name: [_json(float(q)) for q in np.quantile(drawn_values, [tail, 1 - tail])]
        if drawn_values
        else [None, None]
        for name, drawn_values in values.items()
    }


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
