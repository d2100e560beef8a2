"""The stages of one GPU as a plain loop: the reference for the batched form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.types import SetPredictor
from profiling.workload import ColocationSet, Workload
from scheduling.core.set_cache import contention
from scheduling.core.snapshot import Tenant


@dataclass(frozen=True, slots=True)
class Quantification:
    """What joining one GPU means, in plain numbers.

    Attributes:
        interference: on the newcomer plus the mean over the tenants of that on each; 0 for an empty GPU.
        finish_s: seconds until the newcomer is done.
        delays_s: per tenant, how much later it is done than without the newcomer.
        empty_s: seconds until the GPU becomes empty.
        slowdowns: largest predicted slowdown of each, the newcomer last.
        fits: whether the memory of all together fits.
    """

    interference: float
    finish_s: float
    delays_s: tuple[float, ...]
    empty_s: float
    slowdowns: tuple[float, ...]
    fits: bool


def quantify(
    predictor: SetPredictor,
    device: str,
    tenants: Sequence[Tenant],
    job: Workload,
    iterations: float,
    sharing: str = "time-slice",
    literal: bool = False,
) -> Quantification:
    """Follow one GPU from the newcomer's start until it is empty.

    Args:
        tenants: who runs there now, with iterations left.
        job, iterations: the newcomer.

    Raises:
        UnknownNameError: the predictor does not know the device or a model.
    """
    entries = [(t.job, t.iterations_left) for t in tenants] + [(job, iterations)]
    finish, harm, worst, fits = _follow(predictor, device, sharing, entries, len(tenants), literal)
    before = _follow(predictor, device, sharing, entries[:-1], None, literal)[0] if tenants else []
    scores = [h / f if f > 0 else 0.0 for h, f in zip(harm, finish, strict=True)]
    return Quantification(
        interference=scores[-1] + (sum(scores[:-1]) / len(tenants) if tenants else 0.0),
        finish_s=finish[-1],
        delays_s=tuple(f - b for f, b in zip(finish[:-1], before, strict=True)),
        empty_s=max(finish),
        slowdowns=tuple(worst),
        fits=fits,
    )


def _follow(
    predictor: SetPredictor,
    device: str,
    sharing: str,
    entries: Sequence[tuple[Workload, float]],
    newcomer: int | None,
    literal: bool,
) -> tuple[list[float], list[float], list[float], bool]:
    left = [n for _, n in entries]
    here = list(range(len(entries)))
    finish, harm, worst = [0.0] * len(left), [0.0] * len(left), [1.0] * len(left)
    clock, fits, first = 0.0, True, True
    while here:
        together = ColocationSet(device, tuple(entries[i][0] for i in here), sharing)
        alone = [ColocationSet(device, (entries[i][0],), sharing) for i in here]
        answer = predictor.predict_arrays([together, *alone])
        size = len(here)
        kappa = contention(
            answer.slowdown[0, :size], answer.utilization_ratio[0, :size], answer.utilization_ratio[1:, 0]
        )
        if first:
            fits, first = bool(answer.fits[0]), False
        need = [left[i] * float(answer.step_time_s[0, k]) for k, i in enumerate(here)]
        period = min(need)
        clock += period
        stay = []
        first_to_leave = need.index(period)
        for k, i in enumerate(here):
            worst[i] = max(worst[i], float(answer.slowdown[0, k]))
            if newcomer in here and size > 1:
                harm[i] += period * (float(kappa[k]) - (0.0 if literal else 1.0))
            if k == first_to_leave or need[k] <= period * (1.0 + 1e-12):
                finish[i] = clock
            else:
                left[i] -= period / float(answer.step_time_s[0, k])
                stay.append(i)
        here = stay
    return finish, harm, worst, fits
