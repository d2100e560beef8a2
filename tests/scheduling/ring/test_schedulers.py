from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InfeasibleError, InputError, LimitError
from scheduling.ring.baselines import first_fit, list_scheduling, random_fit
from scheduling.ring.engine import Assignment, Execution, RingRun, RingSchedule
from scheduling.ring.exact import distributions, exact
from scheduling.ring.fabric import Fabric
from scheduling.ring.model import FormulaError
from scheduling.ring.pick import fa_ffp, lbsgf, whole_or_wait
from scheduling.ring.search import best_list, by_priority, local_search, lower_bound_s
from scheduling.ring.sjf_bco import SjfBcoConfig, sjf_bco
from tests.scheduling.ring.instances import cluster, instances, job, mix, replay

SCHEDULERS = {
    "sjf-bco": sjf_bco,
    "sjf-bco-literal": functools.partial(sjf_bco, config=SjfBcoConfig(packing=False)),
    "list": list_scheduling,
    "list-idle": functools.partial(list_scheduling, idle=True),
    "first-fit": first_fit,
    "first-fit-idle": functools.partial(first_fit, idle=True),
    "random": random_fit,
    "random-idle": functools.partial(random_fit, idle=True),
    "longest": by_priority,
    "best-list": best_list,
    "local-search": functools.partial(local_search, trials=10),
}


def check(place, jobs, schedule, execution=None):
    """Gangs are complete, capacity holds at every start, every job runs once, and a replay is identical."""
    by_name = {j.name: j for j in jobs}
    assert sorted(a.job for a in schedule.assignments) == sorted(by_name)
    for assignment in schedule.assignments:
        assert len(set(assignment.gpus)) == len(assignment.gpus) == by_name[assignment.job].gpus
        assert assignment.end_s > assignment.start_s >= 0
        for other in schedule.assignments:
            apart = other.end_s <= assignment.start_s + 1e-6 or assignment.end_s <= other.start_s + 1e-6
            assert other is assignment or apart or not set(assignment.gpus) & set(other.gpus)
    again = replay(place, jobs, schedule, execution)
    assert again.makespan_s == pytest.approx(schedule.makespan_s, rel=1e-9)
    ends = {a.job: a.end_s for a in again.assignments}
    assert ends == pytest.approx({a.job: a.end_s for a in schedule.assignments}, rel=1e-9)


@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=25, deadline=None)
@given(
    instance=instances(),
    slot_s=st.sampled_from([None, 10.0]),
    fabric=st.sampled_from([Fabric(), Fabric(2, 4.0), Fabric(rails=4)]),
)
def test_every_schedule_is_complete_and_replays_identically(name, instance, slot_s, fabric):
    place, jobs = instance
    execution = Execution(fabric, slot_s=slot_s)
    schedule = SCHEDULERS[name](place, jobs, execution)
    check(place, jobs, schedule, execution)
    assert schedule.makespan_s >= lower_bound_s(place, jobs, execution) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("place", "fabric"), [(cluster(4, 4, alpha=1.0), Fabric()), (cluster(2, 2), Fabric(rails=8))]
)
def test_the_lower_bound_of_the_literal_form_makes_no_schedule_fail(place, fabric):
    """Where f(alpha, k) is negative only for placements that the schedule does not have."""
    execution = Execution(fabric, clamp=False)
    place, jobs = replace(place, xi1=0.3), [job(name, 2) for name in "ab"]
    schedule = by_priority(place, jobs, execution)
    assert all(len(assignment.placement) == 1 for assignment in schedule.assignments)
    assert 0 < lower_bound_s(place, jobs, execution) <= schedule.makespan_s


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_gang_larger_than_the_cluster_is_infeasible(name):
    with pytest.raises(InfeasibleError, match="does not fit"):
        SCHEDULERS[name](cluster(2, 2), [job("a", 5)])


def test_order_of_the_schedulers_on_a_mixed_load():
    place, jobs = cluster(4, 8, 4, 8), mix(3, 60)
    makespan = {name: run(place, jobs).makespan_s for name, run in SCHEDULERS.items()}
    assert makespan["sjf-bco"] < makespan["list"] < makespan["first-fit"]
    assert makespan["sjf-bco"] < makespan["random"]
    assert makespan["local-search"] <= makespan["best-list"] <= makespan["longest"]


def test_sjf_bco_without_jobs():
    assert sjf_bco(cluster(1), []).assignments == ()
    assert local_search(cluster(1), []).makespan_s == 0
    with pytest.raises(InputError, match="load_factor"):
        SjfBcoConfig(load_factor=0.5)


def test_packing_keeps_a_gang_on_a_server_in_use_and_the_listing_does_not():
    run = RingRun(cluster(4, 4, 8))
    run.start(job("first", 1), [(0, 0)], 10.0)
    assert fa_ffp(job("a", 3), run) == ((0, 1), (0, 2), (0, 3))
    assert fa_ffp(job("a", 4), run) == tuple((1, g) for g in range(4))
    run.start(job("second", 2), [(0, 1), (1, 0)], 5.0)
    spread = fa_ffp(job("b", 4), run, packing=False)
    assert spread is not None
    assert len({server for server, _ in spread}) > 1


def test_the_bound_keeps_jobs_off_heavily_loaded_gpus():
    run = RingRun(cluster(2, 2))
    pair_job = job("a", 2)
    for server in run.load:
        server[0] = 100.0
    assert fa_ffp(pair_job, run, 50.0) == ((0, 1), (1, 1))
    assert fa_ffp(pair_job, run, 0.001) is None


def test_lbsgf_uses_the_least_busy_servers():
    run = RingRun(cluster(4, 4, 4))
    run.load = [[5.0] * 4, [0.0] * 4, [1.0] * 4]
    wide = lbsgf(job("a", 6), run)
    assert wide is not None
    assert {server for server, _ in wide} == {1, 2}
    run.start(job("b", 1), [(1, 0)])
    assert lbsgf(job("c", 4), run) is None
    wider = lbsgf(job("c", 4), run, load_factor=2.0)
    assert wider == tuple((2, g) for g in range(4))


def test_whole_or_wait_splits_only_what_no_server_holds():
    run = RingRun(cluster(4, 4))
    run.start(job("a", 2), [(0, 0), (1, 0)])
    assert whole_or_wait(job("b", 4), run) is None
    assert whole_or_wait(job("b", 6), run) is not None


def _all_schedules(place, jobs, execution, slots):
    """Smallest makespan over all placements and starts."""
    options = [[(c, t) for c in distributions(place.servers, j.gpus) for t in range(slots)] for j in jobs]
    best = float("inf")
    for choice in itertools.product(*options):
        run = RingRun(place, execution)
        try:
            for ring_job, (placement, t) in sorted(
                zip(jobs, choice, strict=True), key=lambda item: item[1][1]
            ):
                run.advance(t * execution.slot_s)
                run.start(ring_job, [(s, g) for s, n in placement.items() for g in sorted(run.idle[s])[:n]])
        except InputError:
            continue
        best = min(best, run.finish().makespan_s)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_exact_equals_exhaustive_search(seed):
    import random

    source = random.Random(seed)
    place = cluster(2, 2, alpha=0.5)
    jobs = [
        job(f"j{n}", source.choice([1, 2, 3]), 0.1, source.uniform(20, 120), source.randint(8, 30))
        for n in range(3)
    ]
    execution = Execution(slot_s=1.0)
    incumbent = list_scheduling(place, jobs, execution)
    solved = exact(place, jobs, execution, incumbent)
    assert solved.optimal
    check(place, jobs, solved.schedule, execution)
    slots = round(incumbent.makespan_s)
    assert solved.schedule.makespan_s == _all_schedules(place, jobs, execution, min(slots, 7))
    assert solved.lower_bound_s == solved.schedule.makespan_s
    for scheduler in SCHEDULERS.values():
        assert scheduler(place, jobs, execution).makespan_s >= solved.schedule.makespan_s


def test_exact_refuses_unsupported_instances():
    place, jobs = cluster(2, 2), [job("a", 2)]
    with pytest.raises(InputError, match="slot time"):
        exact(place, jobs, Execution(), RingSchedule((Assignment("a", ((0, 0), (0, 1)), 0, 5),)))
    execution = Execution(slot_s=1.0)
    incumbent = list_scheduling(place, jobs, execution)
    with pytest.raises(LimitError, match="too large"):
        exact(place, jobs, execution, incumbent, largest=5)


@pytest.mark.parametrize("scheduler", [best_list, local_search, sjf_bco])
def test_lists_under_which_a_job_never_ends_are_skipped(scheduler):
    """Packing splits the third gang, whose steps then exceed a slot; it can wait for a server instead."""
    place = cluster(3, 3)
    jobs = [job(name, 2, gradient_size=1e4) for name in "abc"]
    execution = Execution(slot_s=1.0)
    with pytest.raises(InfeasibleError, match="never ends"):
        by_priority(place, jobs, execution, pick="pack")
    schedule = scheduler(place, jobs, execution)
    check(place, jobs, schedule, execution)
    assert all(len(assignment.placement) == 1 for assignment in schedule.assignments)
    with pytest.raises(InfeasibleError, match="never ends"):
        scheduler(place, [job("a", 4, gradient_size=1e4)], execution)


def test_exact_refuses_a_long_schedule_before_building_it():
    jobs, execution = [job("a", 2, iterations=1e12)], Execution(slot_s=1.0)
    with pytest.raises(LimitError, match="too large"):
        exact(cluster(2), jobs, execution, best_list(cluster(2), jobs, execution))


def test_placements_are_listed_in_order_however_many_servers_there_are():
    servers = (1, 3, 2)
    for gpus in range(1, sum(servers) + 2):
        counts = itertools.product(*(range(min(count, gpus) + 1) for count in servers))
        listed = [{s: n for s, n in enumerate(row) if n} for row in counts if sum(row) == gpus]
        assert list(distributions(servers, gpus)) == listed
    assert len(list(distributions((1,) * 40, 2))) == 40 * 39 / 2
    assert list(distributions((1,) * 2000, 2000)) == [dict.fromkeys(range(2000), 1)]


def test_exact_refuses_too_many_placements_before_listing_them():
    place, jobs = cluster(*(8,) * 40), [job("a", 40), job("b", 40)]
    execution = Execution(slot_s=10.0)
    with pytest.raises(LimitError, match="too large"):
        exact(place, jobs, execution, best_list(place, jobs, execution))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_job_that_takes_longer_than_a_number_can_hold_is_named(name):
    with pytest.raises(InputError, match="job 'a': execution time is out of range"):
        SCHEDULERS[name](cluster(4), [job("a", 2, 1e3, iterations=1e308)])


LITERAL = Execution(clamp=False)


@pytest.mark.parametrize("name", ["sjf-bco", "sjf-bco-literal", "first-fit", "best-list", "local-search"])
def test_schedules_outside_the_literal_formula_are_left_out_with_a_warning(name):
    """Alone on its links, a split job would get no bandwidth: k = 0.1 is below alpha / (1 + alpha) = 1/3."""
    place = replace(cluster(4, 4, alpha=0.5), xi1=0.1)
    jobs = [job("a", 3), job("b", 3), job("c", 2)]
    with pytest.warns(
        UserWarning, match=r"\d+ of \d+ schedules .* left out, .*: job '.': f\(alpha, k\) is not"
    ):
        schedule = SCHEDULERS[name](place, jobs, LITERAL)
    check(place, jobs, schedule, LITERAL)
    assert all(len(assignment.placement) == 1 for assignment in schedule.assignments)
    with pytest.raises(FormulaError):
        SCHEDULERS[name](place, [job("wide", 5)], LITERAL)
