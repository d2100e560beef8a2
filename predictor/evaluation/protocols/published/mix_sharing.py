"""Mixes under MPS shares from each job's pressure on the others and its own sensitivity.

The aim is to extrapolate to larger mixes. Pressure and sensitivity are those of Bubble-Up (Mars et al., MICRO
2011), which measures them with a synthetic neighbour; here they are fitted to mixes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss, softplus

from datasets.bundle import Bundle, Floats, partners
from predictor.evaluation.protocols.published.mix_profiles import profiles

_STEPS, _RATE = 600, 0.05
# Weight decay on profile weights, and on a job's own effects; chosen on mixes of three after fitting to mixes
# of two.
_WEIGHT_DECAY, _EFFECT_DECAY = 1e-3, 1e-2
_BETA = 0.1  # log ratio below which the loss is quadratic
# Limits of the pressure's growth: it is not 0, to allow division by it, and its exponent is capped to stay
# finite.
_LEAST_GROWTH, _MOST_GROWTH = 1e-3, 5.0


@dataclass(frozen=True, slots=True)
class _Mixes:
    """n members with their partners: `own` [n], `others` [n, M] numbers of jobs (0 where `present` [n, M] is 0)."""

    own: Tensor
    others: Tensor
    present: Tensor

    def beside(self, pressure: Tensor) -> Tensor:
        """[n] sum of the partners' `pressure` [V]."""
        return (pressure[self.others] * self.present).sum(1)


# Maps four numbers per job, [4, V], and two exponents to the log ratio of the steps with the whole card and
# with the smallest share.
Form = Callable[[Tensor, Tensor, _Mixes], Tensor]


def by_growing_pressure(q: Tensor, exponents: Tensor, mixes: _Mixes) -> Tensor:
    """A job is slowed by the sum of its partners' pressures, scaled by its own sensitivity.

    Each further partner counts for more than the one before, because all of them also wait for one another's
    cache misses. Without this growth it is Bubble-Up's form.
    """
    growth = softplus(exponents[0] - 3.0) + _LEAST_GROWTH
    alone, sensitivity, pressure, least = q[0][mixes.own], q[1].exp(), q[2].exp(), q[3].exp()
    together = torch.expm1((growth * mixes.beside(pressure)).clamp(max=_MOST_GROWTH)) / growth
    shared = least[mixes.own] * mixes.beside(least)
    return alone + torch.log1p(sensitivity[mixes.own] * together) - torch.log1p(shared)


def by_demand(q: Tensor, exponents: Tensor, mixes: _Mixes) -> Tensor:
    """The jobs share the demand in excess of one device; each job feels more or less of it."""
    p, p_least = 1.0 + softplus(exponents)
    alone, demand, least = q[0][mixes.own], q[1].exp(), q[3].exp()
    whole = (demand[mixes.own] + mixes.beside(demand)) ** p
    shared = (least[mixes.own] + mixes.beside(least)) ** p_least
    felt = 2 * torch.sigmoid(q[2][mixes.own])
    return alone + felt * torch.log1p(whole) / p - torch.log1p(shared) / p_least


# Form -> start values of its four numbers.
FORMS: dict[Form, tuple[float, float, float, float]] = {
    by_demand: (-1.0, -1.0, 0.0, -3.0),
    by_growing_pressure: (-1.0, 0.0, -1.0, -3.0),
}


class MixSharing:
    """Mean of `FORMS`.

    A job's numbers are linear in its solo profile, plus an effect of its own if it was in training.
    """

    def fit(self, train: Bundle, seed: int = 0) -> MixSharing:
        """Learn from the measured points of `train`.

        Raises:
            InputError: no measured points.
        """
        del seed  # nothing is drawn
        points = np.flatnonzero(train.learned_points())
        self.train_ = train
        self.points_, self.target_ = points, np.log(train.y[points])
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`."""
        # Jobs on the test side may have been measured alone only.
        table = profiles(test.known["solo"])
        numbers = {name: number for number, name in enumerate(table.index)}
        columns = table.to_numpy(dtype=np.float64)
        columns = np.nan_to_num((columns - columns.mean(0)) / (columns.std(0) + 1e-6))
        features = torch.tensor(columns, dtype=torch.float32)
        learned, asked = _mixes(self.train_, numbers, self.points_), _mixes(test, numbers)
        known = torch.zeros(len(numbers))
        known[learned.own] = 1.0
        known[learned.others[learned.present > 0]] = 1.0
        target = torch.tensor(self.target_, dtype=torch.float32)
        answers = [
            _fitted(form, start, features, known, learned, target)(asked) for form, start in FORMS.items()
        ]
        return np.exp(torch.stack(answers).mean(0).numpy().astype(np.float64))


def _fitted(
    form: Form, start: tuple[float, ...], features: Tensor, known: Tensor, mixes: _Mixes, target: Tensor
) -> Callable[[_Mixes], Tensor]:
    weight = torch.zeros(4, features.shape[1], requires_grad=True)
    offset = torch.tensor(start, requires_grad=True)
    effect = torch.zeros(4, len(features), requires_grad=True)
    exponents = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.Adam([weight, offset, effect, exponents], lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=_STEPS)

    def numbers() -> Tensor:
        return weight @ features.T + offset[:, None] + effect * known

    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = smooth_l1_loss(form(numbers(), exponents, mixes), target, beta=_BETA)
        loss = loss + _WEIGHT_DECAY * (weight**2).sum() + _EFFECT_DECAY * (effect**2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
    fitted = numbers().detach()
    return lambda asked: form(fitted, exponents.detach(), asked)


def _mixes(bundle: Bundle, numbers: dict[str, int], points: np.ndarray | None = None) -> _Mixes:
    rows = bundle.rows.reset_index(drop=True)
    own = rows["workload"].map(numbers).to_numpy(dtype=np.int64)
    beside = partners(rows)
    others = np.full((len(rows), max(1, max(map(len, beside), default=0))), -1, dtype=np.int64)
    for row, index in enumerate(beside):
        others[row, : len(index)] = own[index]
    if points is not None:
        own, others = own[points], others[points]
    present = torch.tensor(others >= 0, dtype=torch.float32)
    return _Mixes(torch.tensor(own), torch.tensor(np.maximum(others, 0)), present)
