from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from profiling.devices import get_device
from profiling.errors import InfeasibleError, InputError
from scheduling.slices.fleet import FleetPlan, plan_fleet
from scheduling.slices.options import SliceConfig, SliceJob
from scheduling.slices.plan import best_of, plan_slices
from tests.scheduling.slices.rates import AmdahlPredictor, ask


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


def test_every_job_is_placed_once_or_waits_and_memory_is_respected() -> None:
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


def assert_within_memory(fleet: FleetPlan) -> None:
    for _, plan in fleet.cards:
        for part in plan.chosen.slices:
            if part.option is not None:
                assert part.option.fits
                assert part.option.memory_bytes <= get_device(part.device).memory_bytes


@pytest.mark.parametrize("objective", ["throughput", "jct", "fairness"])
@pytest.mark.parametrize(
    ("card", "mig", "on_one"), [("v100", True, 4), ("a100", False, 7), ("a100", True, 10)]
)
def test_several_cards_hold_as_many_jobs_each_as_one_does(
    card: str, mig: bool, on_one: int, objective: str
) -> None:
    predictor = AmdahlPredictor([0.5], [3])
    config = SliceConfig(objective=objective, mig=mig, shares=(0.5,))
    job = SliceJob(predictor.jobs()[0], 1000.0)
    one = plan_slices([job] * on_one, card, predictor, config).chosen
    assert not one.waiting
    fleet = plan_fleet([job] * (2 * on_one), card, 2, predictor, config)
    assert placed(fleet) == list(range(2 * on_one))
    assert len(fleet.cards) == 2
    assert_within_memory(fleet)
    if objective != "fairness":
        assert fleet.value >= 2 * one.value - 1e-6 * abs(one.value)


def test_unshareable_large_jobs_do_not_displace_others() -> None:
    # 16 GiB each: 12 beside 2 and 2, or 9 beside 5.
    predictor = AmdahlPredictor([0.5] * 6, [12, 9, 5, 2, 2, 15])
    *tight, alone = [SliceJob(w, 1000.0) for w in predictor.jobs()]
    fleet = plan_fleet(tight, "v100", 2, predictor)
    assert not fleet.waiting
    assert_within_memory(fleet)
    crowded = plan_fleet([*tight, alone], "v100", 2, predictor)
    assert crowded.waiting == (5,)
    assert_within_memory(crowded)


def test_a_job_that_fits_on_no_card_waits_and_the_others_share() -> None:
    predictor = AmdahlPredictor([0.5, 0.5], [3, 100])
    small, huge = (SliceJob(w, 1000.0) for w in predictor.jobs())
    fleet = plan_fleet([huge, small, small, small], "v100", 2, predictor)
    assert fleet.waiting == (0,)
    assert placed(fleet) == [1, 2, 3]


def test_many_leftover_jobs_join_several_at_once() -> None:
    rng = np.random.default_rng(4)
    predictor = AmdahlPredictor(rng.uniform(0, 1, 8), rng.uniform(1, 5, 8))
    jobs = [SliceJob(predictor.jobs()[k % 8], float(k + 1)) for k in range(400)]
    fleet = plan_fleet(jobs, "v100", 120, predictor)
    assert not fleet.waiting
    assert placed(fleet) == list(range(400))
    assert_within_memory(fleet)


def test_without_sharing_jobs_that_are_left_over_wait() -> None:
    predictor = AmdahlPredictor([0.5], [3])
    job = SliceJob(predictor.jobs()[0], 1000.0)
    fleet = plan_fleet([job] * 4, "v100", 2, predictor, SliceConfig(sharing=()))
    assert len(fleet.waiting) == 2


def test_invalid_plans() -> None:
    predictor, jobs = random_jobs(2, 0)
    with pytest.raises(InputError, match="gpus"):
        plan_fleet(jobs, "a100", 0, predictor)
    with pytest.raises(InputError, match="no jobs"):
        plan_fleet([], "a100", 1, predictor)
    huge = AmdahlPredictor([0.5], [100])
    with pytest.raises(InfeasibleError):
        plan_fleet([SliceJob(huge.jobs()[0])], "a100", 3, huge)


def test_a_job_that_fits_on_no_card_is_named_with_the_memory_it_needs() -> None:
    predictor = AmdahlPredictor([0.5, 0.5], [10, 100])
    small, huge = (SliceJob(w, 1000.0) for w in predictor.jobs())
    longer = SliceJob(huge.workload, 2000.0)
    fleet = plan_fleet([small, huge, longer], "a100", 2, predictor)
    assert fleet.waiting == (1, 2)
    (reason,) = fleet.to_json()["reasons"]
    assert str(huge.workload) in reason
    assert "100.0 GiB and a100 has 40.0" in reason
    assert plan_slices([small, huge, longer], "a100", predictor).reasons.count(reason) == 1
    assert plan_fleet([small], "a100", 2, predictor).reasons == ()


def test_of_equal_jobs_the_shortest_find_room_for_the_shortest_completion() -> None:
    """A job of unknown length counts as an hour, not as nothing."""
    predictor = AmdahlPredictor([0.5], [9])
    workload = predictor.jobs()[0]
    jobs = [SliceJob(workload)] * 25 + [SliceJob(workload, 10.0)] * 25
    fleet = plan_fleet(jobs, "v100", 25, predictor, SliceConfig(objective="jct"))
    assert fleet.waiting == tuple(range(25))


@pytest.mark.parametrize("most", [1, 2])
def test_a_limit_for_slices_leaves_a_whole_card_to_many(most: int) -> None:
    predictor = AmdahlPredictor([0.3] * 4, [6] * 4)
    jobs = [SliceJob(w) for w in predictor.jobs()]
    config = SliceConfig(sharing=("time-slice",), max_together=most)
    single = plan_slices(jobs, "a100", predictor, config).chosen
    assert single.kind == "time-slice"
    assert plan_fleet(jobs, "a100", 1, predictor, config).value == pytest.approx(single.value)


@pytest.mark.parametrize("objective", ["throughput", "jct"])
@pytest.mark.parametrize("seed", [1, 4, 10])
def test_jobs_that_count_more_do_not_wait_for_those_of_less_memory(objective: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    predictor = AmdahlPredictor(rng.uniform(0, 1, 7), rng.uniform(4, 14, 7))
    jobs = [SliceJob(w, float(10 ** rng.uniform(3, 5))) for w in predictor.jobs()]
    config = SliceConfig(objective=objective)
    fleet = plan_fleet(jobs, "v100", 2, predictor, config)
    assert fleet.waiting
    worth = {}
    for size in range(1, len(jobs) + 1):
        for group in combinations(range(len(jobs)), size):
            chosen = plan_slices([jobs[j] for j in group], "v100", predictor, config, False).chosen
            if chosen.placed == size:
                worth[group] = chosen.value
    pairs = [(a, b) for a in worth for b in worth if not set(a) & set(b)]
    best = max((len(a) + len(b), worth[a] + worth[b]) for a, b in pairs)
    assert (len(jobs) - len(fleet.waiting), fleet.value) == pytest.approx(best)
