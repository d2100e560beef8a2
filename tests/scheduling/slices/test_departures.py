"""Completion times in plans count that jobs speed up as those beside them end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import load_predictor
from predictor.types import SetPredictor
from profiling.workload import Workload
from scheduling.slices.card_plan import CardPlan
from scheduling.slices.fleet import plan_fleet
from scheduling.slices.options import OBJECTIVES, SetOption, SliceConfig, SliceJob
from scheduling.slices.plan import plan_slices
from tests.scheduling.slices.rates import AmdahlPredictor, ask, simulated_s


def random_jobs(count: int, seed: int) -> tuple[AmdahlPredictor, list[SliceJob]]:
    rng = np.random.default_rng(seed)
    predictor = AmdahlPredictor(rng.uniform(0, 1, count), rng.uniform(1, 6, count))
    lengths = 10 ** rng.uniform(2, 5, count)
    return predictor, [SliceJob(w, float(n)) for w, n in zip(predictor.jobs(), lengths, strict=True)]


def of_option(predictor: SetPredictor, jobs: list[SliceJob], option: SetOption) -> list[float]:
    work = []
    for number, share in zip(option.members, option.sm_share_ratio, strict=True):
        steps = jobs[number].iterations
        assert steps is not None
        work.append((replace(jobs[number].workload, sm_share_ratio=share), steps))
    return simulated_s(predictor, option.device, work, option.sharing)


def options_of(plan: CardPlan) -> list[SetOption]:
    return [placed.option for placed in plan.slices if placed.option is not None]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(3))
def test_completion_times_of_every_plan_are_those_of_a_simulation(objective: str, seed: int) -> None:
    predictor, jobs = random_jobs(5, seed)
    plan = plan_slices(jobs, "a100", predictor, SliceConfig(objective=objective))
    for card in (plan.chosen, *plan.alternatives):
        expected = [s for option in options_of(card) for s in of_option(predictor, jobs, option)]
        got = [s for option in options_of(card) for s in option.completion_s]
        assert got == pytest.approx(expected)
        assert plan.summary(card)["mean_completion_s"] == pytest.approx(np.mean(expected))
        if objective == "jct":
            assert card.value == pytest.approx(-sum(expected))


def test_a_share_of_its_own_stays_when_a_job_is_alone() -> None:
    predictor, (first, *others) = random_jobs(3, 7)
    jobs = [replace(first, workload=replace(first.workload, sm_share_ratio=0.3), iterations=1e6), *others]
    options = ask(jobs, "a100", predictor, SliceConfig(objective="jct"))
    columns = options.columns
    shared = [columns.option(row) for row in np.flatnonzero(columns.fits) if len(columns.members[row]) > 1]
    assert {option.sm_share_ratio[0] for option in shared if 0 in option.members} == {0.3, 1.0}
    for option in shared:
        assert option.completion_s == pytest.approx(of_option(predictor, jobs, option))


def test_a_short_job_beside_a_long_one_makes_sharing_good() -> None:
    """At their first speeds the long job would take twice its time alone, and sharing would lose against slices."""
    bound = AmdahlPredictor([0.0] * 2, [4] * 2)
    long, short = bound.jobs()
    plan = plan_slices(
        [SliceJob(long, 100_000), SliceJob(short, 100)],
        "a100",
        bound,
        SliceConfig(objective="jct", sharing=("time-slice",)),
    )
    (option,) = options_of(plan.chosen)
    assert plan.chosen.kind == "time-slice"
    assert option.completion_s == pytest.approx([10_020, 40])  # 0.1 s and 0.2 s a step alone


@pytest.mark.parametrize(("card", "gpus", "count"), [("a100", 2, 18), ("v100", 3, 11)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_fleet_counts_departures(objective: str, card: str, gpus: int, count: int) -> None:
    predictor, jobs = random_jobs(count, 2)
    fleet = plan_fleet(jobs, card, gpus, predictor, SliceConfig(objective=objective))
    assert not fleet.waiting
    expected = []
    for numbers, plan in fleet.cards:
        own = [jobs[number] for number in numbers]
        for option in options_of(plan.chosen):
            expected += of_option(predictor, own, option)
            assert option.completion_s == pytest.approx(of_option(predictor, own, option))
    assert fleet.to_json()["mean_completion_s"] == pytest.approx(np.mean(expected))
    if objective == "jct":
        assert fleet.value == pytest.approx(-sum(expected))


def test_with_the_shipped_predictor() -> None:
    predictor = load_predictor()
    jobs = [
        SliceJob(Workload.parse(spec), steps)
        for spec, steps in (
            ("resnet50-imagenet:batch_size=32", 100_000.0),
            ("lstm-wikitext2", 1000.0),
            ("dcgan-64", 30_000.0),
        )
    ]
    plan = plan_slices(jobs, "a100", predictor, SliceConfig(objective="jct"))
    for card in (plan.chosen, *plan.alternatives):
        for option in options_of(card):
            assert option.completion_s == pytest.approx(of_option(predictor, jobs, option), rel=1e-5)
