"""Fits the kernel's parameters to measured sets by maximum a posteriori.

See Rasmussen and Williams 2006, section 5.4.1.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.link import slope, to_scale
from predictor.gaussian_process.members import MemberScale
from predictor.gaussian_process.rows import Rows, covariance

# Start of the search and centre of the prior.
_START = KernelParameters()
# Parameters identifiable from few measurements; the rest stay near the start, or half a dozen architectures
# overfit them.
_FREE = ("noise", "both", "job", "partner", "models", "job_model", "partner_model")
_FREE_DEVIATION, _HELD_DEVIATION = 1.5, 0.15
_NOT_FITTED = ("solo_job", "solo_like", "solo_model")
# Most sets that the likelihood takes (a sample of 150 leaves the choice of probes to its seed), seed of the
# sample, steps of L-BFGS.
_SETS, _SEED, _STEPS = 600, 0, 8


def fit_parameters(
    features: Floats,
    scale: MemberScale,
    members: Members,
    rows: Rows,
    sets: Integers,
    log_slowdown: Floats,
    prior: Floats | None = None,
) -> KernelParameters:
    """Find the most probable parameters for measured log slowdowns around a prior mean.

    The prior mean is taken to be known up to a constant.

    Args:
        features: [V, MEMBER_WIDTH] of the members; their places follow from the weights being tried.
        scale: scale of the features.
        members: their numbers of architecture, job and setting.
        rows: [N] measured members beside their partners.
        sets: [N] set of each row; whole sets are sampled.
        log_slowdown: [N] measured.
        prior: [N] log slowdowns predicted by a model that was not trained on these rows; None for a constant.
    """
    names = [f.name for f in fields(KernelParameters) if f.name not in _NOT_FITTED]
    chosen = np.random.default_rng(_SEED).permutation(np.unique(sets))[:_SETS]
    pick = np.flatnonzero(np.isin(sets, chosen))
    rows, observed = rows.take(pick), log_slowdown[pick]
    expected = np.zeros(0) if prior is None else prior[pick]
    used, index = np.unique(np.concatenate([rows.own, rows.partners.ravel()]), return_inverse=True)
    # -1, which marks missing partners, sorts first.
    shift = int(used[0] < 0)
    own, partners = index[: len(pick)] - shift, index[len(pick) :].reshape(rows.partners.shape) - shift
    rows = Rows(own, partners)
    groups = scale.standard(features[used[shift:]])
    base = members.take(used[shift:])
    begin = np.array([_to_free(name, getattr(_START, name)) for name in names])
    deviation = np.array([_FREE_DEVIATION if n in _FREE else _HELD_DEVIATION for n in names])

    def parameters_at(values: Floats) -> KernelParameters:
        return replace(_START, **{n: _from_free(n, float(v)) for n, v in zip(names, values, strict=True)})

    def loss(values: Floats) -> float:
        p = parameters_at(values)
        place = np.concatenate(
            [np.sqrt(getattr(p, f"weight_{name}")) * group for name, group in groups.items()], 1
        )
        placed = replace(base, place=place)
        target, steep = to_scale(observed, p.knee), slope(observed, p.knee)
        if prior is not None:
            target = target - to_scale(expected, p.knee)
        gram = covariance(p, placed, rows, placed, rows)
        gram[np.diag_indices_from(gram)] += p.noise * steep**2 + 1e-6
        try:
            factor = cholesky(gram, lower=True, check_finite=False)
        except LinAlgError:
            return 1e10
        error = solve_triangular(factor, target - target.mean(), lower=True, check_finite=False)
        fit = 0.5 * float(error @ error) + float(np.log(np.diag(factor)).sum() - np.log(steep).sum())
        return fit + 0.5 * float((((values - begin) / deviation) ** 2).sum())

    bounds = list(zip(begin - 4 * deviation, begin + 4 * deviation, strict=True))
    optimum = minimize(
        loss, begin, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS, "eps": 1e-4}
    )
    return parameters_at(optimum.x)


def _to_free(name: str, value: float) -> float:
    return float(np.log(value / (1 - value)) if name == "across_devices" else np.log(value))


def _from_free(name: str, value: float) -> float:
    return float(1 / (1 + np.exp(-value)) if name == "across_devices" else np.exp(value))
