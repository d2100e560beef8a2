from __future__ import annotations

import json
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from benchmarks.slices_simulation import REFERENCED, Reference, compare, mean_jct_s
from predictor import load_predictor
from predictor.types import SetPredictor
from profiling.devices import get_device, mig_layout
from profiling.errors import InfeasibleError, InputError, UnknownNameError
from profiling.workload import Workload
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.slices.best_static import best_static
from scheduling.slices.cluster import Reshape, SlicePolicy, SliceSnapshot, Slot
from scheduling.slices.costs import SliceCosts
from scheduling.slices.placing import least_seconds, places_of
from scheduling.slices.policies import SLICE_POLICIES, get_slice_policy
from scheduling.slices.policies.full import Full
from scheduling.slices.simulate import SliceResult, simulate_slices
from tests.scheduling.slices.rates import AmdahlPredictor
from tests.shared import shared_data

PARALLEL, BOUND, HUNGRY = Workload("parallel"), Workload("bound"), Workload("hungry")
FREE = SliceCosts(0.0, 0.0, 0.0, 0.0, 0.0)


def table() -> SliceTable:
    """`parallel` scales with its slice, `bound` runs alike everywhere, `hungry` fits on 3g and larger."""
    solo = {}
    for size in (1, 2, 3, 4, 7):
        device = f"a100:mig={size}g"
        solo[device, PARALLEL] = Solo(0.7 / size)
        solo[device, BOUND] = Solo(0.1)
        if size >= 3:
            solo[device, HUNGRY] = Solo(0.7 / size)
    return SliceTable(solo)


def job(number: int, workload: Workload, seconds: float, submit_s: float = 0.0) -> TraceJob:
    """With the given seconds alone on the whole card."""
    return TraceJob(str(number), workload, seconds / 0.1, submit_s)


# Period of the reference controllers; a completion on the other side of a round shifts a start.
CONTROLLER_ROUND_S = 10.0


@cache
def reference() -> Reference:
    return Reference(shared_data("miso", "simulator"), load_predictor())


@pytest.mark.parametrize("trace", ["small-seed1", "small-seed2", "small-seed3"])
def test_mean_completion_equals_that_of_the_published_controllers(trace: str) -> None:
    rows = compare(reference(), trace)
    for name, policy, _ in REFERENCED:
        allowed = 3.0 if policy in ("full", "mps") else 5.0
        assert abs(rows["policies"][name]["error_percent"]) < allowed, name
    assert rows["order_as_in_reference"]
    ours = rows["policies"]["isacpp-slices"]
    assert ours["mean_jct_s"] < rows["policies"]["miso"]["reference_mean_jct_s"]
    assert ours["against_oracle_percent"] < 3.0
    assert ours["mean_jct_s"] < rows["policies"]["isacpp-slices, one job per slice"]["mean_jct_s"]


@pytest.mark.parametrize(("name", "policy", "options"), REFERENCED)
def test_a_hundred_jobs_on_eight_cards(name: str, policy: str, options: dict) -> None:
    expected = reference().results["default-seed1"][name]
    result = reference().run("default-seed1", policy, **options)
    assert mean_jct_s(result) == pytest.approx(expected["mean_jct_s"], rel=0.03)
    if policy in ("full", "mps"):
        jct = reference().jct_s["default-seed1"][name]
        for run, seconds in zip(result.jobs, result.completion_s(), strict=True):
            assert seconds == pytest.approx(jct[run.job.id], abs=2 * CONTROLLER_ROUND_S + 2.0)


@pytest.mark.parametrize("policy", sorted(SLICE_POLICIES))
def test_every_policy_ends_every_job_and_does_their_work(policy: str) -> None:
    jobs = [job(k, (PARALLEL, BOUND, HUNGRY)[k % 3], 30.0 + 10 * k, 20.0 * k) for k in range(9)]
    result = simulate_slices(jobs, ["a100", "a100"], get_slice_policy(policy), table(), table())
    for run in result.jobs:
        assert run.finished_s is not None
        assert run.left == 0.0
        alone = 10.0 + run.job.iterations * 0.1
        assert run.finished_s - run.job.submit_s >= alone - 1e-6
        held_s = sum(i.stop_s - i.start_s for i in result.intervals if i.job == run.number)
        assert run.attained_gpu_s == pytest.approx(held_s)
        assert run.served_s == {"a100": pytest.approx(held_s)}
        assert run.waited_s + held_s == pytest.approx(run.finished_s - run.job.submit_s)
        assert run.waited_s >= (run.started_s or 0.0) - run.job.submit_s - 1e-6
    answer = result.to_json()
    # An A100 of 40 GB may draw 400 W.
    assert answer["energy_at_power_limit_kwh"] == pytest.approx(0.4 * answer["gpu_hours"])
    assert answer["jobs"] == 9
    assert answer["throughput_of_one_gpu"] <= 9
    json.dumps(answer)


def test_without_costs_a_lone_job_takes_its_solo_time() -> None:
    for policy in ("full", "oracle", "miso", "isacpp-slices"):
        result = simulate_slices(
            [job(0, PARALLEL, 50.0, 3.0)], ["a100"], get_slice_policy(policy), table(), table(), FREE
        )
        assert float(result.jobs[0].finished_s or 0) == pytest.approx(
            (3.0 if policy == "isacpp-slices" else 10.0) + 50.0
        )


def test_two_jobs_get_four_and_three_sevenths() -> None:
    jobs = [job(0, PARALLEL, 100.0), job(1, PARALLEL, 100.0)]
    alone = get_slice_policy("isacpp-slices", most_per_slice=1)
    result = simulate_slices(jobs, ["a100"], alone, table(), table(), FREE)
    # 4/7 of the card until the first is done, then all of it for the rest of the other.
    assert sorted(float(j.finished_s or 0) for j in result.jobs) == pytest.approx([175.0, 200.0])
    oracle = simulate_slices(jobs, ["a100"], get_slice_policy("oracle"), table(), table(), FREE)
    assert min(float(j.finished_s or 0) for j in oracle.jobs) == pytest.approx(700 / 3, abs=10.1)  # 3g + 3g


def test_the_best_static_partition_is_the_shortest_in_the_mean() -> None:
    jobs = [job(k, (PARALLEL, HUNGRY)[k % 2], 60.0 + 10 * k, 5.0 * k) for k in range(8)]

    def run(policy: SlicePolicy) -> SliceResult:
        return simulate_slices(jobs, ["a100", "a100"], policy, table(), table())

    best = best_static(["a100", "a100"], run)
    assert best.policy.startswith("static-mig:")
    for partition in ("7g", "4g+3g", "3g+2g+2g"):
        other = run(get_slice_policy(f"static-mig:{partition}"))
        assert best.completion_s(True).mean() <= other.completion_s(True).mean()
    with pytest.raises(
        InfeasibleError
    ):  # `hungry` fits on none of these slices; others are passed over above
        run(get_slice_policy("static-mig:2g+2g+2g+1g"))
    with pytest.raises(InputError, match=r"4g\+3g.*got 4g\+4g"):
        run(get_slice_policy("static-mig:4g+4g"))
    with pytest.raises(InputError, match="one type"):
        best_static(["a100", "h100"], run)


def test_a_job_goes_to_the_faster_card_even_if_it_has_to_share_it() -> None:
    """Speeds of cards of several types are comparable: 3g of the second card is as fast as twice the first."""
    solo = {(f"a100:mig={size}g", PARALLEL): Solo(0.7 / size) for size in (1, 2, 3, 4, 7)}
    solo |= {(f"h200:mig={size}g", PARALLEL): Solo(0.1 / size) for size in (1, 2, 3, 4, 7)}
    times = SliceTable(solo)
    jobs = [job(k, PARALLEL, 100.0) for k in range(2)]
    result = simulate_slices(jobs, ["a100", "h200"], get_slice_policy("isacpp-slices"), times, times, FREE)
    assert all(run.served_s.keys() == {"h200"} for run in result.jobs)


def test_a_job_whose_slice_stays_is_not_disturbed() -> None:
    # A job on 3g at slot 4 stays while its neighbour leaves and another comes.
    jobs = [job(0, BOUND, 200.0), job(1, BOUND, 20.0), job(2, BOUND, 50.0, 100.0)]
    result = simulate_slices(jobs, ["a100"], get_slice_policy("isacpp-slices"), table(), table())
    assert result.moves <= 1  # the first job, when it has to share; no later move pays


@pytest.mark.parametrize("policy", sorted(SLICE_POLICIES))
def test_an_idle_cluster_does_not_wake_the_controller(policy: str) -> None:
    """The next job starts in the same round as if it had been woken all along."""
    jobs = [job(0, PARALLEL, 50.0), job(1, PARALLEL, 50.0, 1e6 + 3.0), job(2, BOUND, 50.0, 1e6 + 4.0)]
    result = simulate_slices(jobs, ["a100"], get_slice_policy(policy), table(), table(), FREE)
    assert len(result.decisions_s) < 100
    rounds = result.seen_s[1:]
    assert rounds == ([1e6 + 3.0, 1e6 + 4.0] if policy == "isacpp-slices" else [1e6 + 10.0] * 2)


def test_a_card_whose_jobs_all_end_while_they_are_observed_takes_others() -> None:
    """Two jobs need less than the 30 s of an observation; no round would end if the card stayed closed."""
    jobs = [job(0, BOUND, 12.0), job(1, BOUND, 4.0), job(2, PARALLEL, 20.0, 400.0)]
    result = simulate_slices(jobs, ["a100"], get_slice_policy("miso"), table(), table())
    observed, _, last = result.jobs
    assert observed.finished_s is not None
    assert observed.finished_s < 45.0
    assert last.finished_s == pytest.approx(420.0, abs=25.0)


def test_a_wake_up_costs_the_same_however_many_jobs_there_are() -> None:
    class Watched(Full):
        def decide(self, snapshot: SliceSnapshot, belief: SetPredictor) -> Reshape | None:
            views.add(id(snapshot.jobs))
            return Full.decide(self, snapshot, belief)

    views: set[int] = set()
    simulate_slices([job(k, BOUND, 12.0, 100.0 * k) for k in range(5)], ["a100"], Watched(), table(), table())
    assert len(views) == 1  # the states are not copied


def test_jobs_too_large_for_small_slices_are_queued() -> None:
    jobs = [job(k, HUNGRY, 50.0) for k in range(3)]
    for policy in ("oracle", "miso", "isacpp-slices", "static-mig"):
        result = simulate_slices(jobs, ["a100"], get_slice_policy(policy), table(), table())
        ends = sorted(float(j.finished_s or 0) for j in result.jobs)
        assert ends[2] > ends[0] + 40  # no more than two at a time


def test_misplacing_or_waiting_forever_is_an_error() -> None:
    class Misplaced:
        name, round_s, blocking = "misplaced", None, False

        def initial(self, device: str) -> tuple[Slot, ...]:
            return (Slot("a100:mig=1g", 0),)

        def decide(self, snapshot: SliceSnapshot, belief: object) -> Reshape | None:
            return Reshape(0, (Slot("a100:mig=1g", 0, snapshot.queue),)) if snapshot.queue else None

    with pytest.raises(InfeasibleError, match="do not fit"):
        simulate_slices([job(0, HUNGRY, 10.0)], ["a100"], Misplaced(), table(), table())

    class Idle(Misplaced):
        name = "idle"

        def decide(self, snapshot: SliceSnapshot, belief: object) -> Reshape | None:
            return None

    with pytest.raises(InfeasibleError, match="idle leaves 1 jobs waiting"):
        simulate_slices([job(0, HUNGRY, 10.0)], ["a100"], Idle(), table(), table())


def test_inputs_are_checked() -> None:
    with pytest.raises(InputError):
        simulate_slices([], ["a100"], get_slice_policy("full"), table(), table())
    with pytest.raises(InputError, match=r"unique.*'0'"):
        simulate_slices(
            [job(0, BOUND, 1), job(0, HUNGRY, 1)], ["a100"], get_slice_policy("full"), table(), table()
        )
    with pytest.raises(InputError, match="does not support this partition"):
        simulate_slices(
            [job(0, BOUND, 1)], ["a100"], get_slice_policy("static-mig", partition="4g+4g"), table(), table()
        )
    with pytest.raises(UnknownNameError, match="isacpp-slices"):
        get_slice_policy("misso")
    with pytest.raises(InputError, match="resume_s"):
        SliceCosts(resume_s=-1)


def test_shares_are_interpolated_from_slices() -> None:
    from profiling.workload import ColocationSet

    arrays = table().predict_arrays(
        [
            ColocationSet("a100", (Workload("parallel", sm_share_ratio=0.5),)),
            ColocationSet("a100", (PARALLEL, BOUND, PARALLEL), "mps"),
            ColocationSet("a100:mig=1g", (HUNGRY,)),
            ColocationSet("a100:mig=2g", (PARALLEL, BOUND)),
        ]
    )
    assert arrays.step_time_s[0, 0] == pytest.approx(0.2)
    # A third of the card each, or 15 % per neighbour if that is more.
    assert arrays.step_time_s[1] == pytest.approx([0.3, 0.13, 0.3])
    assert arrays.fits.tolist() == [True, True, False, True]
    assert arrays.slowdown[3, :2] == pytest.approx([2.0, 2.0])
    whole = SliceTable({("a100", PARALLEL): Solo(0.1)}).predict_arrays(
        [ColocationSet("a100", (PARALLEL, PARALLEL), "mps")]
    )
    assert whole.step_time_s[0] == pytest.approx([0.2, 0.2])
    with pytest.raises(UnknownNameError):
        table().predict_arrays([ColocationSet("a100", (Workload("nobody"),))])


LIGHT = Workload("light")


def light_belief(memory_bytes: float = 0.0, ratio: float = 0.97) -> TablePredictor:
    """A job that runs alike on every slice, with up to three of its kind nearly undisturbed."""
    devices = [f"a100:mig={size}" for size in ("1g", "1g.10gb", "2g", "3g", "4g", "7g")] + ["a100", "v100"]
    return TablePredictor(
        {(device, LIGHT): Solo(0.1, memory_bytes) for device in devices},
        {(d, (LIGHT,) * size): (ratio,) * size for d in devices for size in (2, 3)},
        {device: get_device(device).memory_bytes for device in devices},
    )


def test_a_job_measured_on_no_whole_card_still_runs_on_its_slices() -> None:
    times = SliceTable({("a100:mig=3g", BOUND): Solo(0.1), ("a100:mig=2g", BOUND): Solo(0.2)})
    jobs = [job(k, BOUND, 100.0) for k in range(2)]
    result = simulate_slices(jobs, ["a100"], get_slice_policy("isacpp-slices"), times, times, FREE)
    assert result.completion_s() == pytest.approx([100.0, 100.0])


def mean_s(belief: TablePredictor, cards: list[str], most: int, jobs: int = 8) -> float:
    policy = get_slice_policy("isacpp-slices", most_per_slice=most)
    trace = [job(k, LIGHT, 100.0) for k in range(jobs)]
    return float(simulate_slices(trace, cards, policy, belief, belief, FREE).completion_s().mean())


def test_more_than_seven_light_jobs_share_slices_and_finish_sooner() -> None:
    belief = light_belief()
    assert mean_s(belief, ["a100"], 3) < 104.0
    assert mean_s(belief, ["a100"], 1) > 110.0  # one of eight waits for another


def test_jobs_do_not_share_a_slice_where_their_memory_does_not_fit_or_they_slow_each_other() -> None:
    for belief in (light_belief(3.5 * 2**30, 0.4), light_belief(39e9)):
        assert mean_s(belief, ["a100"], 3) == pytest.approx(mean_s(belief, ["a100"], 1))


def test_a_card_without_mig_is_shared_as_a_whole() -> None:
    belief = light_belief()
    assert mean_s(belief, ["v100"], 3, 3) < 104.0
    assert mean_s(belief, ["a100", "v100"], 3, 10) < 104.0


def test_the_exact_search_equals_trying_every_cut_and_assignment() -> None:
    random = np.random.default_rng(0)
    layout = mig_layout("a100")
    for jobs in (1, 2, 3, 4):
        seconds = {place: random.uniform(1, 9, 1 << jobs) for place in places_of("a100")}
        for values in seconds.values():
            values[0] = np.inf
        best = np.inf
        for slices in range(1, jobs + 1):
            for cut in (c for c in layout._placements(0, layout.compute_slices) if len(c) == slices):
                places = [(layout.device(profile), start) for start, profile in cut]
                for where in product(range(slices), repeat=jobs):
                    masks = [sum(1 << k for k in range(jobs) if where[k] == at) for at in range(slices)]
                    if all(0 < mask.bit_count() <= 2 for mask in masks):
                        best = min(best, sum(seconds[p][m] for p, m in zip(places, masks, strict=True)))
        found = least_seconds("a100", seconds, jobs, 2)
        assert found is not None
        assert found[0] == pytest.approx(best)
        chosen = sum(seconds[place][sum(1 << k for k in members)] for place, members in found[1])
        assert chosen == pytest.approx(best)


def test_options_of_sharing_are_checked() -> None:
    with pytest.raises(InputError, match="most_per_slice"):
        get_slice_policy("isacpp-slices", most_per_slice=0)
    with pytest.raises(InputError, match="most_per_card"):
        get_slice_policy("isacpp-slices", most_per_card=13)


@pytest.mark.parametrize("policy", ["oracle", "miso", "isacpp-slices", "full"])
def test_cards_without_mig_beside_others_run_jobs_too(policy: str) -> None:
    mixed = AmdahlPredictor([0.1, 0.5, 0.3], [2.0, 18.0, 2.0])  # the second does not fit on the V100
    small, large, other = mixed.jobs()
    jobs = [job(k, (small, large, other)[k % 3], 60.0 + 10 * k, 5.0 * k) for k in range(9)]
    # `full` takes the first idle card, whether the job fits there or not.
    jobs = [j for j in jobs if policy != "full" or j.workload != large]
    result = simulate_slices(jobs, ["v100", "a100"], get_slice_policy(policy), mixed, mixed, FREE)
    assert all(run.finished_s is not None and run.left == 0.0 for run in result.jobs)
    assert {d for run in result.jobs for d in run.served_s} == {"v100", "a100"}
    assert not any("v100" in run.served_s for run in result.jobs if run.job.workload == large)
    if policy in ("oracle", "miso"):  # one at a time
        spans = sorted((i.start_s, i.stop_s) for i in result.intervals if i.gpu == 0)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


def test_a_card_is_busy_while_a_job_is_moved_even_if_its_neighbour_ends_meanwhile() -> None:
    # The first job leaves 4g at 15 s; from 20 to 28 s the third is saved for it, and the second ends at 25 s.
    jobs = [job(0, BOUND, 15.0), job(1, BOUND, 25.0), job(2, BOUND, 100.0)]
    policy = get_slice_policy("static-mig:4g+2g+1g")
    result = simulate_slices(jobs, ["a100"], policy, table(), table(), SliceCosts(0.0, 0.0, 0.0, 8.0, 0.0))
    assert [j.finished_s for j in result.jobs] == pytest.approx([15.0, 25.0, 108.0])
    assert result.busy_s_on == {"a100": pytest.approx(108.0)}


@pytest.mark.parametrize("policy", ["static-mig:7g", "isacpp-slices"])
def test_no_job_takes_the_place_of_one_whose_end_is_not_known_yet(policy: str) -> None:
    options = {"most_per_slice": 1, "most_per_card": 1} if policy == "isacpp-slices" else {}
    jobs = [job(k, PARALLEL, 60.0 + k / 3) for k in range(3)]
    costs = SliceCosts(0.0, 0.0, 0.0, 0.0, report_s=7.0)
    result = simulate_slices(jobs, ["a100"], get_slice_policy(policy, **options), table(), table(), costs)
    for before, after in pairwise(result.jobs):
        assert before.finished_s is not None
        assert after.started_s is not None
        assert after.started_s - before.finished_s >= 7.0 - 1e-6


def test_a_job_does_not_wait_forever_if_the_controller_has_yet_to_learn_of_an_end() -> None:
    jobs = [job(0, BOUND, 19.0), job(1, BOUND, 5.0)]
    policy = get_slice_policy("static-mig:7g")
    result = simulate_slices(jobs, ["a100"], policy, table(), table(), SliceCosts(0.0, 0.0, 0.0, 0.0, 2.5))
    assert [j.finished_s for j in result.jobs] == pytest.approx([19.0, 35.0])  # at 20 s it does not know yet


def test_a_slice_with_more_memory_is_the_larger_of_two_with_equal_multiprocessors() -> None:
    solo = {("a100:mig=1g.10gb", HUNGRY): Solo(0.1), ("a100:mig=7g", HUNGRY): Solo(0.1)}
    times, policy = SliceTable(solo), get_slice_policy("static-mig:1g.10gb+1g")
    result = simulate_slices([job(0, HUNGRY, 50.0)], ["a100"], policy, times, times, FREE)
    assert result.jobs[0].finished_s == pytest.approx(50.0)


@pytest.mark.parametrize("policy", ["oracle", "miso", "isacpp-slices"])
def test_a_job_holds_its_card_while_that_is_partitioned_for_it(policy: str) -> None:
    jobs = [job(0, PARALLEL, 100.0), job(1, PARALLEL, 100.0)]
    result = simulate_slices(jobs, ["a100"], get_slice_policy(policy), table(), table())
    assert [(run.started_s, run.waited_s) for run in result.jobs] == [(0.0, 0.0)] * 2


def test_jobs_of_known_length_that_end_together() -> None:
    belief = light_belief()
    policy = get_slice_policy("isacpp-slices", most_per_slice=2, knows_length=True)
    result = simulate_slices([job(k, LIGHT, 100.0) for k in range(4)], ["v100"], policy, belief, belief, FREE)
    assert result.completion_s().max() < 210.0  # two at a time
