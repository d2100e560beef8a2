"""Partitions and placements for many cards of one type at once.

A mixed-integer program gives each card a partition and each job a slice of its own. It is exact as long as
slices are not shared: once the number of cards with each partition is fixed to integers, the rest is a
transportation problem, whose optimum is integral. Remaining jobs join cards by sharing (see `joining`). The
other cards are replanned for their jobs with sharing allowed, which can only improve them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, SetPredictor
from profiling.devices import get_device, mig_layout
from profiling.errors import InfeasibleError, InputError, UnavailableError
from scheduling.core.highs import solve_milp
from scheduling.slices.card_plan import CardPlan, SlicePlan
from scheduling.slices.joining import CardPlanner, filled
from scheduling.slices.options import Options, SliceConfig, SliceJob, devices_of, sets_of
from scheduling.slices.plan import best_of
from scheduling.slices.questions import answer, check_jobs
from scheduling.slices.reasons import not_enforced, too_large

# Maximum number of sets queried when cards are replanned; the limits on set size are lowered to stay below
# it.
MOST_SETS = 200_000


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The plan for all cards.

    Attributes:
        cards: for each card in use, the numbers of its jobs and its plan (which numbers them from 0).
        waiting: numbers of the jobs without room.
        bound: upper bound of the objective if no slice is shared, for as many jobs as can get a slice of
            their own.
        reasons: why some jobs fit on no such card, and SM shares that it does not enforce.
    """

    jobs: tuple[SliceJob, ...]
    card: str
    gpus: int
    config: SliceConfig
    cards: tuple[tuple[tuple[int, ...], SlicePlan], ...]
    waiting: tuple[int, ...]
    bound: float
    reasons: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """Sum of the cards' objectives; the least speed for `fairness`."""
        chosen = [plan.chosen for _, plan in self.cards]
        if self.config.objective == "fairness":
            return min(o.least_speed for c in chosen for s in c.slices if (o := s.option) is not None)
        return sum(c.value for c in chosen)

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object of `cotenant plan slices --gpus N --json`."""
        summaries = [plan.summary(plan.chosen) for _, plan in self.cards]
        placed = sum(s["placed"] for s in summaries)
        return {
            "device": self.card,
            "gpus": self.gpus,
            "objective": self.config.objective,
            "value": self.value,
            "bound_one_job_a_slice": self.bound,
            "placed": placed,
            "speed_sum": sum(s["speed_sum"] for s in summaries),
            "least_speed_ratio": min((s["least_speed_ratio"] for s in summaries), default=0.0),
            "mean_completion_s": sum(s["mean_completion_s"] * s["placed"] for s in summaries)
            / max(placed, 1),
            "kinds": dict(Counter(_title(plan.chosen) for _, plan in self.cards).most_common()),
            "cards": [{"jobs": list(numbers), **plan.card_json(plan.chosen)} for numbers, plan in self.cards],
            "waiting": [str(self.jobs[j].workload) for j in self.waiting],
            "reasons": list(self.reasons),
        }


def _title(plan: CardPlan) -> str:
    return f"{plan.kind} {plan.partition}".strip()


def plan_fleet(
    jobs: Sequence[SliceJob],
    card: str,
    gpus: int,
    predictor: SetPredictor,
    config: SliceConfig = SliceConfig(),
) -> FleetPlan:
    """Plan `gpus` cards of one type so that as many of these jobs as possible run.

    Raises:
        InputError: no jobs, no cards, or a job that the card cannot run.
        InfeasibleError: no job fits on the card at all.
    """
    config = config.on(card)
    if gpus < 1:
        raise InputError("gpus is out of range", expected="an integer from 1", got=gpus)
    check_jobs(jobs, card)
    card = get_device(card).name
    # Kinds with the same workload are adjacent, so that similar cards come out alike.
    kinds = sorted(dict.fromkeys(jobs), key=lambda job: str(job.workload))
    number = {kind: k for k, kind in enumerate(kinds)}
    kind_of = np.array([number[job] for job in jobs])
    count = np.bincount(kind_of, minlength=len(kinds))
    devices = devices_of(card, config.mig)
    alone = answer(kinds, card, [(d, (k,)) for d in devices for k in range(len(kinds))], predictor, config)
    patterns = _patterns(card, devices)
    speed, value = _tables(alone, devices)
    if not np.isfinite(value).any():
        raise InfeasibleError(f"no job fits on {card}", hint="lower the batch sizes, or plan for more memory")
    allowed, floor = np.isfinite(value), -np.inf
    if config.objective == "fairness":
        floor = _fair_floor(speed, count, patterns, gpus, _most(allowed, count, patterns, gpus))
        allowed = speed >= floor
    program = _Program(allowed, count, patterns, gpus)
    used, given, bound = program.solve(value[program.kinds, program.devices])
    bound = floor if config.objective == "fairness" else bound
    groups = _groups(used, given, patterns, kind_of)
    fits = np.asarray(np.isfinite(value).any(axis=1))[kind_of]
    placed = {job for group in groups for job in group}
    left = [job for job in range(len(jobs)) if fits[job] and job not in placed]
    joined: list[tuple[tuple[int, ...], SlicePlan]] = []
    if left and config.sharing:
        length_s = alone.iterations * alone.reference_s
        planner = CardPlanner(kinds, _memory_bytes(alone), length_s, card, predictor, config)
        groups, joined = _joined(planner, groups, left, gpus, kind_of.tolist())
    cards = [*(_replan(jobs, card, devices, groups, predictor, config) if groups else ()), *joined]
    waiting = set(range(len(jobs))) - {j for numbers, plan in cards for j in _placed(numbers, plan)}
    # Kinds may differ in their iterations alone.
    large = dict.fromkeys(filter(None, (too_large(alone, k) for k in range(len(kinds)))))
    reasons = (*large, *not_enforced(alone))
    return FleetPlan(tuple(jobs), card, gpus, config, tuple(cards), tuple(sorted(waiting)), bound, reasons)


def _placed(numbers: tuple[int, ...], plan: SlicePlan) -> list[int]:
    return [numbers[m] for s in plan.chosen.slices if s.option is not None for m in s.option.members]


def _patterns(card: str, devices: list[str]) -> NDArray[np.int64]:
    """[P, D] number of slices of each device in each way to use a card, the unpartitioned card first."""
    whole = np.zeros((1, len(devices)), np.int64)
    whole[0, 0] = 1
    if len(devices) == 1:
        return whole
    layout = mig_layout(card)
    rows = [
        [sum(layout.device(p) == device for p in partition.profiles) for device in devices]
        for partition in layout.maximal
    ]
    return np.concatenate([whole, np.array(rows, np.int64)])


def _tables(alone: Options, devices: list[str]) -> tuple[Floats, Floats]:
    """[K, D] relative speed and value; -inf if the job does not fit."""
    row = np.array([[alone.rows[d, (k,)][0] for d in devices] for k in range(len(alone.jobs))])
    columns = alone.columns
    fits = columns.fits[row]
    return np.where(fits, columns.least_speed[row], -np.inf), np.where(fits, columns.value[row], -np.inf)


def _memory_bytes(alone: Options) -> Floats:
    """[K] upper bound of the memory of each kind, alone on the whole card."""
    rows = [alone.rows[alone.card, (k,)][0] for k in range(len(alone.jobs))]
    return alone.columns.memory_bytes[rows]


def _joined(
    planner: CardPlanner, seeds: list[list[int]], left: list[int], gpus: int, kind_of: list[int]
) -> tuple[list[list[int]], list[tuple[tuple[int, ...], SlicePlan]]]:
    """The cards that no job joined, and the others with their plans; see `filled`."""
    groups = filled(planner, seeds, left, gpus, kind_of)
    own = {frozenset(group) for group in seeds}
    plans: dict[tuple[int, ...], SlicePlan] = {}
    joined = []
    for group in (g for g in groups if frozenset(g) not in own):
        numbers = tuple(sorted(group, key=kind_of.__getitem__))
        state = tuple(kind_of[job] for job in numbers)
        if state not in plans:
            plans[state] = planner.final(state)
        joined.append((numbers, plans[state]))
    return [g for g in groups if frozenset(g) in own], joined


class _Program:
    """Assign jobs of K kinds to cards of P patterns.

    Variables: x[k, d] jobs of kind k on device d, and y[p] cards of pattern p. Constraints: the sum of x[k, d] over d is
    at most count[k]; the sum of x[k, d] over k is at most the sum of y[p] patterns[p, d] over p; the sum of y is at most
    `gpus`. Only y has to be declared integer.
    """

    def __init__(
        self, allowed: NDArray[np.bool_], count: NDArray[np.int64], patterns: NDArray[np.int64], gpus: int
    ) -> None:
        from scipy.sparse import coo_array

        self.kinds, self.devices = np.nonzero(allowed)
        self.shape, self.gpus, self.count = allowed.shape, gpus, count
        pairs, shapes = len(self.kinds), len(patterns)
        k_count, d_count = self.shape
        at = np.arange(pairs)
        p, d = np.nonzero(patterns)
        entries = [
            (self.kinds, at, np.ones(pairs)),
            (k_count + self.devices, at, np.ones(pairs)),
            (k_count + d, pairs + p, -patterns[p, d].astype(float)),
            (np.full(shapes, k_count + d_count), pairs + np.arange(shapes), np.ones(shapes)),
        ]
        rows, columns, data = (np.concatenate(part) for part in zip(*entries, strict=True))
        self.matrix = coo_array(
            (data, (rows, columns)), shape=(k_count + d_count + 1, pairs + shapes)
        ).tocsr()
        self.upper = np.concatenate([count, np.zeros(d_count), [gpus]])
        self.pairs, self.shapes = pairs, shapes

    def solve(self, value: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
        """Place as many jobs as possible, then maximise the sum of `value` [pairs].

        Returns:
            The number of cards of each pattern [P], the jobs [K, D], and an upper bound of the sum.

        Raises:
            UnavailableError: the solver fails.
        """
        from scipy.optimize import Bounds, LinearConstraint

        # One more placed job outweighs any rearrangement of the others. (Expressed as a constraint, this
        # takes the
        # solver twenty times as long.)
        placed = 10.0 * max(float(np.ptp(value)), float(np.abs(value).max()), 1e-12)
        result = solve_milp(
            np.concatenate([-1.0 - (value - value.min()) / placed, np.zeros(self.shapes)]),
            constraints=LinearConstraint(self.matrix, -np.inf, self.upper),
            bounds=Bounds(0.0, np.concatenate([self.count[self.kinds], np.full(self.shapes, self.gpus)])),
            integrality=np.concatenate([np.zeros(self.pairs), np.ones(self.shapes)]),
            options={"mip_rel_gap": 1e-6, "time_limit": 60.0},
        )
        if result.x is None:
            raise UnavailableError("no plan found for the fleet", got=result.message)
        given = np.zeros(self.shape, np.int64)
        given[self.kinds, self.devices] = np.rint(result.x[: self.pairs]).astype(np.int64)
        best = float(result.fun if result.mip_dual_bound is None else result.mip_dual_bound)
        count = int(given.sum())
        bound = (-best - count) * placed + count * float(value.min())
        return np.rint(result.x[self.pairs :]).astype(np.int64), given, bound


def _most(
    allowed: NDArray[np.bool_], count: NDArray[np.int64], patterns: NDArray[np.int64], gpus: int
) -> int:
    """The number of jobs that can be placed.

    Jobs that may go to the same devices are merged into one kind, so that solving takes milliseconds.
    """
    alike, kind = np.unique(allowed, axis=0, return_inverse=True)
    program = _Program(alike, np.bincount(kind.ravel(), count).astype(np.int64), patterns, gpus)
    return int(program.solve(np.ones(program.pairs))[1].sum()) if program.pairs else 0


def _fair_floor(
    speed: Floats, count: NDArray[np.int64], patterns: NDArray[np.int64], gpus: int, most: int
) -> float:
    """The highest minimum speed at which `most` jobs can be placed, by bisection over the speeds that
    occur."""
    levels = np.unique(speed[np.isfinite(speed)])
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _most(speed >= levels[middle], count, patterns, gpus) >= most:
            low = middle
        else:
            high = middle - 1
    return float(levels[low])


def _groups(
    used: NDArray[np.int64],
    given: NDArray[np.int64],
    patterns: NDArray[np.int64],
    kind_of: NDArray[np.int64],
) -> list[list[int]]:
    """The jobs of each card that gets any; kinds are dealt out in order, so that cards come out alike."""
    free = {k: list(np.flatnonzero(kind_of == k)[::-1]) for k in range(len(given))}
    queues = [
        [int(free[k].pop()) for k in range(len(given)) for _ in range(int(given[k, d]))]
        for d in range(given.shape[1])
    ]
    groups = []
    for pattern in np.repeat(np.arange(len(patterns)), used):
        slots = [d for d in range(given.shape[1]) for _ in range(int(patterns[pattern, d]))]
        placed = [queues[d].pop() for d in slots if queues[d]]
        if placed:
            groups.append(placed)
    return groups


def _replan(
    jobs: Sequence[SliceJob],
    card: str,
    devices: list[str],
    groups: list[list[int]],
    predictor: SetPredictor,
    config: SliceConfig,
) -> list[tuple[tuple[int, ...], SlicePlan]]:
    """The best plan of each card for its jobs.

    Cards with equal jobs are planned once, and all sets are queried together.
    """
    numbers = [tuple(sorted(group, key=lambda j: str(jobs[j].workload))) for group in groups]
    flat = list(dict.fromkeys(jobs[j] for group in numbers for j in group))
    index = {job: k for k, job in enumerate(flat)}
    alike = [tuple(index[jobs[j]] for j in group) for group in numbers]
    # Pairs are only tried with an even split here, because a fleet has thousands of sets.
    for most, most_on_card in ((config.max_together, config.max_on_card), (2, 3), (1, 2)):
        tried = replace(
            config,
            shares=(0.5,),
            max_together=min(most, config.max_together),
            max_on_card=min(most_on_card, config.max_on_card),
        )
        sets = dict.fromkeys(s for group in set(alike) for s in sets_of(card, devices, group, tried))
        if len(sets) <= MOST_SETS:
            break
    known = answer(flat, card, list(sets), predictor, tried)
    plans = {group: best_of(known.restricted(group, devices), alternatives=False) for group in set(alike)}
    return [(group, plans[key]) for group, key in zip(numbers, alike, strict=True)]
