from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from profiling.devices import get_device
from profiling.errors import InfeasibleError, InputError
from scheduling.slices.fleet import FleetPlan, plan_fleet
from scheduling.slices.options import SliceConfig, SliceJob
from scheduling.slices.plan import best_of, plan_slices
from scheduling.slices.questions import ask
from tests.scheduling.slices.rates import AmdahlPredictor


def random_jobs(count: int, seed: int) -> tuple[AmdahlPredictor, list[SliceJob]]:
    rng = np.random.default_rng(seed)
    predictor = AmdahlPredictor(rng.uniform(0, 1, count), rng.uniform(1, 15, count))
    return predictor, [SliceJob(w, float(rng.integers(100, 10_000))) for w in predictor.jobs()]


def placed(fleet: FleetPlan) -> list[int]:
    return sorted(
        numbers[m]
        for numbers, plan in fleet.cards
        for s in plan.chosen.slices
        if s.option
        for m in s.option.members
    )


@pytest.mark.parametrize("objective", ["throughput", "jct", "fairness"])
@pytest.mark.parametrize("seed", [0, 1])
def test_without_sharing_two_cards_are_as_good_as_any_split_of_the_jobs(objective: str, seed: int) -> None:
    predictor, jobs = random_jobs(5, seed)
    config = SliceConfig(objective=objective, sharing=())
    fleet = plan_fleet(jobs, "a100", 2, predictor, config)
    ranks = []
    for split in product((0, 1), repeat=5):
        sides = [[j for j, s in zip(jobs, split, strict=True) if s == side] for side in (0, 1)]
        plans = [best_of(ask(side, "a100", predictor, config)).chosen for side in sides if side]
        least = min(o.least_speed for p in plans for s in p.slices if (o := s.option))
        key = least if objective == "fairness" else sum(p.value for p in plans)
        ranks.append((sum(p.placed for p in plans), key))
    best = max(ranks)
    assert (len(placed(fleet)), fleet.value) == pytest.approx(best, rel=1e-5)
    assert fleet.bound == pytest.approx(best[1], rel=1e-4)


def test_everyone_is_placed_once_or_waits_and_memory_holds() -> None:
    predictor, jobs = random_jobs(40, 3)
    fleet = plan_fleet(jobs, "a100", 6, predictor)
    assert sorted([*placed(fleet), *fleet.waiting]) == list(range(40))
    assert fleet.waiting
    assert len(fleet.cards) <= 6
    for _, plan in fleet.cards:
        for part in plan.chosen.slices:
            if part.option is not None:
                assert part.option.memory_bytes <= get_device(part.device).memory_bytes
    assert fleet.value >= fleet.bound * (1 - 1e-6)  # sharing can only add to that
    answer = fleet.to_json()
    assert answer["placed"] == len(placed(fleet))
    assert sum(answer["kinds"].values()) == len(fleet.cards)


def test_equal_jobs_are_one_kind_and_one_card_is_the_single_plan() -> None:
    predictor = AmdahlPredictor([0.3, 0.8], [3, 3])
    big, small = (SliceJob(w, 1000.0) for w in predictor.jobs())
    fleet = plan_fleet([big, small] * 30, "a100", 20, predictor)
    assert len(placed(fleet)) == 60
    single_card = plan_fleet([big, small, small], "a100", 1, predictor, SliceConfig(shares=(0.5,)))
    assert single_card.value == pytest.approx(
        plan_slices([big, small, small], "a100", predictor, SliceConfig(shares=(0.5,))).chosen.value
    )


def test_what_cannot_be_planned() -> None:
    predictor, jobs = random_jobs(2, 0)
    with pytest.raises(InputError, match="gpus"):
        plan_fleet(jobs, "a100", 0, predictor)
    with pytest.raises(InputError, match="no jobs"):
        plan_fleet([], "a100", 1, predictor)
    huge = AmdahlPredictor([0.5], [100])
    with pytest.raises(InfeasibleError):
        plan_fleet([SliceJob(huge.jobs()[0])], "a100", 3, huge)
