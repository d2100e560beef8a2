"""`LayerTimeModel`: step time of one model by frozen prefix, batch size and GPUs, fitted to its measurements.

Non-negative least squares on relative errors over the columns of `benchmarks.layer_fits.form`, once for each
setting of the roofline (launch floor, mix of FLOPs and activations). The four best settings are averaged,
because a few batch sizes cannot tell them apart and each extrapolates differently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.layer_fits.form import COLUMNS, Roof, columns
from benchmarks.layer_fits.profile import LayerProfile
from predictor.freezing.allreduce import Exchange
from predictor.types import Floats
from profiling.errors import InputError

ROOFS = tuple(Roof(f, m) for f in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0) for m in (0.0, 0.3, 0.7, 1.0))
AVERAGED = 4
ALONE = Exchange()


@dataclass(frozen=True, eq=False)
class Rows:
    """N measured steps as arrays [N]; `step_time_s` is the whole step, exposed gradient exchange included."""

    frozen_prefix: NDArray[np.int64]
    batch_size: Floats
    step_time_s: Floats
    gpus: Floats
    nodes: Floats

    @classmethod
    def of(
        cls,
        frozen_prefix: ArrayLike,
        batch_size: ArrayLike,
        step_time_s: ArrayLike,
        gpus: ArrayLike = 1.0,
        nodes: ArrayLike = 1.0,
    ) -> Rows:
        """Build from array-likes, repeating scalars. Raises `InputError` if a time is not positive."""
        k = np.atleast_1d(np.asarray(frozen_prefix, dtype=np.int64))
        rest = [
            np.broadcast_to(np.asarray(v, dtype=np.float64), k.shape)
            for v in (batch_size, step_time_s, gpus, nodes)
        ]
        rows = cls(k, *rest)
        if not np.all(rows.step_time_s > 0) or not np.all(rows.batch_size > 0):
            raise InputError("measured steps are out of range", expected="step times and batch sizes above 0")
        return rows

    def __len__(self) -> int:
        return len(self.frozen_prefix)

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        return Rows(**{name: getattr(self, name)[mask] for name in self.__dataclass_fields__})


@dataclass(frozen=True, eq=False)
class LayerTimeModel:
    """A fitted model: the mean of C forms with non-negative `weights` [C, 5] over `form.COLUMNS`."""

    profile: LayerProfile
    weights: Floats
    roofs: tuple[Roof, ...]
    exchange: Exchange = ALONE
    rewrapped: bool = False

    @classmethod
    def fit(cls, profile: LayerProfile, rows: Rows, *, rewrapped: bool = False) -> LayerTimeModel:
        """Fit compute on one GPU, then the gradient exchange on several, then compute again.

        The last fit adds batch sizes that occur only on several GPUs, each source weighted by its
        repeatability.

        Raises:
            InputError: no row on one GPU.
        """
        one_gpu = rows.gpus == 1
        if one_gpu.sum() < 4:
            raise InputError(
                "too few rows to fit", expected="at least 4 steps on one GPU", got=int(one_gpu.sum())
            )
        solo, many = rows.where(one_gpu), rows.where(~one_gpu)
        model = _fit_compute(profile, solo, np.ones(len(solo)))
        if len(many) >= 8:
            for _ in range(2):
                exchange = _fit_exchange(model, many, rewrapped)
                model = replace(model, exchange=exchange, rewrapped=rewrapped)
                model = _refit_with(model, solo, many)
            model = replace(model, exchange=_fit_exchange(model, many, rewrapped))
        return replace(model, rewrapped=rewrapped)

    def compute_s(self, frozen_prefix: ArrayLike, batch_size: ArrayLike) -> Floats:
        """[N] seconds of a step on one GPU."""
        k, b = np.broadcast_arrays(np.atleast_1d(frozen_prefix), np.asarray(batch_size, dtype=np.float64))
        return self._mean(k, b, COLUMNS)

    def backward_s(self, frozen_prefix: NDArray[np.int64], batch_size: Floats) -> Floats:
        """[N] seconds of the backward pass of the unfrozen layers, behind which the exchange can be
        hidden."""
        return self._mean(frozen_prefix, batch_size, ("backward_roof",))

    def step_time_s(
        self,
        frozen_prefix: ArrayLike,
        batch_size: ArrayLike,
        gpus: ArrayLike = 1,
        nodes: ArrayLike = 1,
    ) -> Floats:
        """[N] seconds per step of `batch_size` samples per GPU."""
        k, b, n, m = np.broadcast_arrays(
            np.atleast_1d(np.asarray(frozen_prefix, dtype=np.int64)),
            np.asarray(batch_size, dtype=np.float64),
            np.asarray(gpus, dtype=np.float64),
            np.asarray(nodes, dtype=np.float64),
        )
        compute = self._mean(k, b, COLUMNS)
        exposed = self.exchange.exposed_s(
            self.profile.parameter_share[k],
            self.backward_s(k, b),
            n,
            m,
            rewrapped=self.rewrapped,
        )
        return compute * self.exchange.compute_factor(n) + np.where(n > 1, exposed, 0.0)

    def _mean(self, k: NDArray[np.int64], b: Floats, names: tuple[str, ...]) -> Floats:
        chosen = [COLUMNS.index(name) for name in names]
        total = np.zeros(len(k))
        for roof, weight in zip(self.roofs, self.weights, strict=True):
            total += columns(self.profile, k, b, roof)[:, chosen] @ weight[chosen]
        return total / len(self.roofs)


def _fit_compute(profile: LayerProfile, rows: Rows, weight: Floats) -> LayerTimeModel:
    solutions = []
    for order, roof in enumerate(ROOFS):
        x = columns(profile, rows.frozen_prefix, rows.batch_size, roof)
        solution = _solve(x, rows.step_time_s, weight)
        solutions.append(
            (float(np.mean(weight * (x @ solution / rows.step_time_s - 1) ** 2)), order, solution)
        )
    best = sorted(solutions, key=lambda item: item[:2])[:AVERAGED]
    return LayerTimeModel(
        profile, np.array([item[2] for item in best]), tuple(ROOFS[item[1]] for item in best)
    )


def _solve(x: Floats, y: Floats, weight: Floats) -> Floats:
    """Non-negative least squares on relative errors."""
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    solution, _ = nnls(x * (root / y)[:, None], root)
    return solution


def _fit_exchange(model: LayerTimeModel, rows: Rows, rewrapped: bool) -> Exchange:
    """Robust non-linear least squares of the seven parameters of `Exchange` on relative errors."""
    from scipy.optimize import least_squares

    compute = model.compute_s(rows.frozen_prefix, rows.batch_size)
    backward = model.backward_s(rows.frozen_prefix, rows.batch_size)
    share = model.profile.parameter_share[rows.frozen_prefix]

    def residual(theta: Floats) -> Floats:
        exchange = Exchange(*map(float, theta))
        exposed = exchange.exposed_s(share, backward, rows.gpus, rows.nodes, rewrapped=rewrapped)
        return (compute * exchange.compute_factor(rows.gpus) + exposed) / rows.step_time_s - 1.0

    start = np.array([0.1, 0.01, 0.01, 0.5, 0.2, 1.0, 0.0])
    top = np.array([10.0, 10.0, 10.0, 1.0, 1.0, 3.0, 1.0])
    low = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.5, -0.2])
    solution = least_squares(residual, start, bounds=(low, top), loss="soft_l1", f_scale=0.03)
    return Exchange(*(float(v) for v in np.clip(solution.x, low, top)))


def _refit_with(model: LayerTimeModel, solo: Rows, many: Rows) -> LayerTimeModel:
    """Fit compute again, with rows of several GPUs reduced to one and weighted by the ratio of residual
    variances."""
    factor = model.exchange.compute_factor(many.gpus)
    exposed = model.step_time_s(many.frozen_prefix, many.batch_size, many.gpus, many.nodes) - factor * (
        model.compute_s(many.frozen_prefix, many.batch_size)
    )
    reduced = (many.step_time_s - exposed) / factor
    usable = reduced > 0.2 * many.step_time_s
    reduced = np.where(usable, reduced, 1.0)
    noise = reduced / model.compute_s(many.frozen_prefix, many.batch_size) - 1.0
    spread = max(float(np.mean(noise[usable] ** 2)), 1e-6)
    own = solo.step_time_s / model.compute_s(solo.frozen_prefix, solo.batch_size) - 1.0
    # Rows are weighted by their noise, and all rows of several GPUs together weigh no more than those of one.
    ratio = min(float(np.mean(own**2)) / spread, 1.0) * min(1.0, len(solo) / len(many))
    rows = Rows.of(
        np.concatenate([solo.frozen_prefix, many.frozen_prefix[usable]]),
        np.concatenate([solo.batch_size, many.batch_size[usable]]),
        np.concatenate([solo.step_time_s, reduced[usable]]),
    )
    weight = np.concatenate([np.ones(len(solo)), np.full(int(usable.sum()), ratio)])
    again = _fit_compute(model.profile, rows, weight)
    return replace(again, exchange=model.exchange, rewrapped=model.rewrapped)
