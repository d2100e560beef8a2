"""Multi-stage interference: what happens on a GPU, departure by departure, when a job joins it.

Liu et al., "ISACPP", IEEE TPDS 36(8), 2025 (doi 10.1109/TPDS.2025.3577796), but the score is contention above
1, so that an unharmed member counts 0, like an empty GPU; `literal=True` gives the paper's form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats
from scheduling.core.set_cache import Ints, SetCache


@dataclass(frozen=True, slots=True)
class Stages:
    """Outcome of N co-locations of up to M members, in the caller's order of members.

    Attributes:
        finish_s: [N, M] seconds from now until the member leaves; 0 where there is none.
        interference: [N, M] time-weighted contention above 1 while together with the newcomer, over its own
            time left.
        slowdown: [N, M] largest predicted slowdown over the stages.
        fits: [N] whether the first set's memory fits.
    """

    finish_s: Floats
    interference: Floats
    slowdown: Floats
    fits: NDArray[np.bool_]

    def take(self, rows: Ints, width: int | None = None) -> Stages:
        """The outcome of some sets, optionally with the first `width` members only."""
        return Stages(
            self.finish_s[rows, :width],
            self.interference[rows, :width],
            self.slowdown[rows, :width],
            self.fits[rows],
        )


def stages(
    cache: SetCache,
    devices: Ints,
    members: Ints,
    iterations: Floats,
    present: NDArray[np.bool_],
    newcomer: NDArray[np.bool_] | None = None,
    literal: bool = False,
) -> Stages:
    """Follow N sets until each is empty, all of them together, one departure at a time.

    A stage lasts for the minimum of iterations left x step time. Members that reach it leave (all of them on
    a tie); the others' iterations drop by stage duration / step time, as real numbers.

    Args:
        cache: cache of the predictor.
        devices: [N] device numbers of `cache`.
        members: [N, M] workload numbers of `cache`.
        iterations: [N, M] iterations left.
        present: [N, M] mask of existing members.
        newcomer: [N, M] mask of the job that joins (at most one per row); without one, or if None,
            interference is 0.
        literal: weigh contention itself, not contention - 1.
    """
    count, width = members.shape
    # [M, N] from here on: NumPy is several times as fast along the long axis as along rows of a few members.
    order = np.argsort(np.where(present, members, np.iinfo(np.int64).max), axis=1, kind="stable").T
    flat = np.arange(count) * width + order
    ids, alive = members.take(flat), present.take(flat)
    left = np.where(alive, iterations.take(flat), np.inf)  # absent members never leave
    new = newcomer.take(flat) if newcomer is not None and newcomer.any() else None
    finish, harm, worst = np.zeros((width, count)), np.zeros((width, count)), np.ones((width, count))
    fits = np.ones(count, bool)
    out_finish, out_harm, out_worst = finish.copy(), harm.copy(), worst.copy()
    clock = np.zeros(count)
    at_work = np.arange(count)  # the sets in the arrays below: empty ones are written out and dropped
    stays, first = alive, True
    for _ in range(width + 1):  # at least one member of each set leaves in every round
        go = stays.any(axis=0)
        if not go.all():
            gone, kept = np.flatnonzero(~go), np.flatnonzero(go)
            where = at_work[gone]
            out_finish[:, where] = finish.take(gone, axis=1)
            out_worst[:, where] = worst.take(gone, axis=1)
            ids, stays, left, finish, worst = (
                x.take(kept, axis=1) for x in (ids, stays, left, finish, worst)
            )
            if new is not None:
                out_harm[:, where] = harm.take(gone, axis=1)
                new, harm = new.take(kept, axis=1), harm.take(kept, axis=1)
            at_work, clock = at_work[kept], clock[kept]
        if not at_work.size:
            break
        alive = stays
        rows = cache.rows(devices[at_work], ids.T, alive.T)
        at = np.cumsum(alive, axis=0)  # position of each member's answer; not used for absent members
        at += rows * cache.step_time_s.shape[1] - 1
        step = cache.step_time_s.take(at)
        if first:
            fits[at_work] = cache.fits[rows]
            first = False
        need = left * step
        period = need.min(axis=0)
        done = (need <= period * (1.0 + 1e-12)) & alive
        stays = alive & ~done
        left -= period / step
        np.copyto(left, np.inf, where=done)
        if new is not None:
            together = alive & ((alive & new).any(axis=0) & (alive.sum(axis=0) > 1))
            kappa = cache.contention.take(at)
            harm += np.where(together, period * (kappa if literal else kappa - 1.0), 0.0)
        np.maximum(worst, cache.slowdown.take(at), out=worst, where=alive)
        clock += period
        np.copyto(finish, clock, where=done)
    score = out_harm
    if new is not None:
        score = np.divide(out_harm, out_finish, out=np.zeros_like(out_harm), where=out_finish > 0)
    back = np.empty_like(order)
    back[order, np.arange(count)] = np.arange(width)[:, None]
    flat = back * count + np.arange(count)
    return Stages(out_finish.take(flat).T, score.take(flat).T, out_worst.take(flat).T, fits)
