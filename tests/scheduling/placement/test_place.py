from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.types import PredictionArrays
from profiling.errors import InfeasibleError, InputError, UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.place import Placer, _first, place
from scheduling.placement.ranking import PlacementConfig
from scheduling.policies import get_policy
from tests.scheduling.placement.plain_stages import quantify
from tests.scheduling.tables import GIB, JOBS, table

PREDICTOR = table()


def cluster(*gpus: Gpu) -> ClusterSnapshot:
    return ClusterSnapshot((Node("n", tuple(gpus)),))


def test_empty_fast_gpu_wins() -> None:
    snapshot = cluster(
        Gpu("0", "k80"), Gpu("1", "v100", tenants=(Tenant(JOBS[1], 1e5, "x"),)), Gpu("2", "v100")
    )
    decision = place(JOBS[0], 1000, snapshot, PREDICTOR)
    assert decision.decision == "place"
    assert decision.ranked[0].gpu == "2"
    body = decision.to_json()
    assert set(body["ranked"][0]) == {"node", "gpu", "score", "finish_s", "delays_s", "reasons"}
    assert body["ranked"][0]["finish_s"] == pytest.approx(100.0)
    shared = next(r for r in decision.ranked if r.gpu == "1")
    assert shared.delays_s["x"] > 0
    assert [r.score for r in decision.ranked] == sorted(r.score for r in decision.ranked)


def test_a_share_that_nothing_enforces_is_named() -> None:
    class Whole:
        """The table, which has no shares."""

        def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
            whole = [tuple(replace(w, sm_share_ratio=1.0) for w in s.workloads) for s in sets]
            return PREDICTOR.predict_arrays(
                [replace(s, workloads=w) for s, w in zip(sets, whole, strict=True)]
            )

    snapshot = cluster(Gpu("0", "v100", "time-slice"), Gpu("1", "v100", "mps"), Gpu("2", "k80", "mps"))
    decision = place(replace(JOBS[0], sm_share_ratio=0.5), 1000, snapshot, Whole())
    said = {r.gpu: [reason for reason in r.reasons if "sm_share_ratio" in reason] for r in decision.ranked}
    assert said == {
        "0": ["its sm_share_ratio is taken as enforced, which only MPS does"],
        "1": [],
        "2": ["its sm_share_ratio is taken as enforced, which MPS does only from Volta on"],
    }


@pytest.mark.parametrize("objective", ["jct", "interference", "makespan"])
def test_an_empty_gpu_precedes_one_whose_tenant_is_done(objective: str) -> None:
    done = Gpu("0", "v100", tenants=(Tenant(JOBS[1], 0.0, "x"),))
    decision = place(
        JOBS[0], 1000, cluster(done, Gpu("1", "v100")), PREDICTOR, PlacementConfig(objective=objective)
    )
    assert [ranked.gpu for ranked in decision.ranked] == ["1", "0"]
    assert decision.ranked[0].score == decision.ranked[1].score


def test_a_job_of_unknown_length_runs_for_an_hour_and_the_decision_states_its_steps() -> None:
    unknown = place(JOBS[0], None, cluster(Gpu("0", "k80"), Gpu("1", "v100")), PREDICTOR)
    assert unknown.iterations == 36000  # 0.1 s a step on the V100, the fastest
    assert "length unknown: assuming 36000 steps" in unknown.reasons[0]
    assert unknown.to_json()["iterations"] == 36000
    assert place(JOBS[0], 1234, cluster(Gpu("1", "v100")), PREDICTOR).iterations == 1234
    gang = place(
        JOBS[0], None, cluster(Gpu("0", "v100"), Gpu("1", "v100")), PREDICTOR, PlacementConfig(gpus=2)
    )
    assert gang.iterations == 36000


def test_waits_for_an_imminent_departure() -> None:
    a, b = Workload("a"), Workload("b")
    predictor = TablePredictor(
        {("v100", a): Solo(1.0), ("v100", b): Solo(1.0)}, {("v100", (a, b)): (0.5, 0.5)}
    )
    snapshot = cluster(Gpu("0", "v100", tenants=(Tenant(b, 10.0),)))
    # now: a is done 10 s late and b 10 s late; after b has left only a is 10 s late
    decision = place(a, 1000, snapshot, predictor)
    assert decision.decision == "wait"
    assert decision.wait_s == pytest.approx(10.0)
    assert decision.ranked[0].score == pytest.approx(1020.0)
    assert place(a, 1000, snapshot, predictor, PlacementConfig(wait=False)).decision == "place"


def test_memory_full_means_wait() -> None:
    snapshot = cluster(Gpu("0", "v100", tenants=(Tenant(JOBS[5], 100.0),)))
    decision = place(JOBS[5], 10, snapshot, PREDICTOR)
    assert decision.decision == "wait"
    assert decision.ranked == ()
    assert "memory" in " ".join(decision.reasons)


@pytest.mark.parametrize(
    "others", [(), (Gpu("1", "k80"),), (Gpu("1", "v100", tenants=(Tenant(JOBS[5], 1e6),)),)]
)
def test_a_tenant_that_is_done_leaves_at_once(others: tuple[Gpu, ...]) -> None:
    """Like one that is almost done, whatever the other GPUs are."""
    done, nearly = (
        place(JOBS[5], 100, cluster(Gpu("0", "v100", tenants=(Tenant(JOBS[5], left),)), *others), PREDICTOR)
        for left in (0.0, 1e-9)
    )
    assert (done.decision, nearly.decision) == ("wait", "wait")
    assert done.wait_s == 0.0
    assert done.reasons == nearly.reasons
    assert "0 s" in done.reasons[0]


def test_budgets() -> None:
    a, b = Workload("a"), Workload("b")
    predictor = TablePredictor(
        {("v100", a): Solo(1.0), ("v100", b): Solo(1.0)}, {("v100", (a, b)): (0.9, 0.4)}
    )
    snapshot = cluster(Gpu("0", "v100", tenants=(Tenant(b, 1000.0),)))
    refused = place(a, 10, snapshot, predictor, PlacementConfig(wait=False))
    assert refused.decision == "wait"
    assert "budget" in " ".join(refused.reasons)
    assert place(a, 10, snapshot, predictor, PlacementConfig(max_slowdown=3, wait=False)).decision == "place"
    patient = cluster(Gpu("0", "v100", tenants=(Tenant(b, 1000.0, max_slowdown=2.5),)))
    assert place(a, 10, patient, predictor, PlacementConfig(wait=False)).decision == "place"


def test_objectives_differ() -> None:
    snapshot = cluster(Gpu("0", "k80"), Gpu("1", "v100", tenants=(Tenant(JOBS[0], 100.0),)))
    interference = place(JOBS[1], 1000, snapshot, PREDICTOR, PlacementConfig(objective="interference"))
    assert interference.ranked[0].gpu == "0"
    assert interference.ranked[0].score == 0.0
    jct = place(JOBS[1], 1000, snapshot, PREDICTOR, PlacementConfig(objective="jct", wait=False))
    assert jct.ranked[0].gpu == "1"


def test_unknown_length() -> None:
    decision = place(JOBS[0], None, cluster(Gpu("0", "k80"), Gpu("1", "v100")), PREDICTOR)
    assert decision.ranked[0].finish_s == pytest.approx(3600.0)
    assert "length unknown" in decision.reasons[0]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="no GPU"):
        place(JOBS[0], 1, ClusterSnapshot(()), PREDICTOR)
    with pytest.raises(InputError, match="iterations"):
        place(JOBS[0], 0, cluster(Gpu("0", "v100")), PREDICTOR)
    with pytest.raises(UnknownNameError):
        place(JOBS[0], 1, cluster(Gpu("0", "nowhere")), PREDICTOR)
    with pytest.raises(InfeasibleError, match="does not fit"):
        place(JOBS[5], 1, cluster(Gpu("0", "v100")), table(memory_gib=4.0))
    with pytest.raises(InputError, match="objective"):
        PlacementConfig(objective="speed")


def test_a_job_that_ran_out_of_memory_is_not_said_to_need_what_the_device_has() -> None:
    class RanOut:
        def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
            arrays = PREDICTOR.predict_arrays(sets)
            upper = np.where(arrays.fits, 16 * GIB, arrays.memory_upper_bytes)
            return replace(arrays, memory_upper_bytes=upper, fits=np.zeros(len(sets), bool))

    with pytest.raises(InfeasibleError, match=r"upper bound of predicted memory: v100: ran out of it\)"):
        place(JOBS[0], 1, cluster(Gpu("0", "v100")), RanOut())


def test_a_replaced_predictor_is_freed() -> None:
    snapshot = cluster(Gpu("0", "v100", tenants=(Tenant(JOBS[1], 1e5),)), Gpu("1", "k80"))
    predictor = table()
    placer = Placer(predictor)
    decision = placer.place(JOBS[0], 1000, snapshot)
    assert placer.place(JOBS[0], 1000, snapshot) == decision == place(JOBS[0], 1000, snapshot, predictor)
    state = SchedulingSnapshot(snapshot)
    state.waiting[0] = JobState(TraceJob("j", JOBS[0], 10.0), 0, 10.0)
    assert get_policy("isacpp").decide(state, placer.cache)
    kept = [weakref.ref(predictor), weakref.ref(placer), weakref.ref(placer.cache)]
    del predictor, placer, state
    gc.collect()
    assert [ref() for ref in kept] == [None, None, None]


@pytest.mark.parametrize("step_time_s", [5e-324, 1e-310, 1e300, float("nan")])
@pytest.mark.parametrize("who", [0, 1])
def test_impossible_step_times_are_refused(step_time_s: float, who: int) -> None:
    """They must neither be placed nor keep the stages running forever."""
    base = table()
    solo = {k: Solo(step_time_s) if k[1] == JOBS[who] else v for k, v in base.solo.items()}
    predictor = TablePredictor(solo, base.ratios, base.memory_bytes)
    snapshot = cluster(Gpu("0", "v100", tenants=(Tenant(JOBS[1], 1e5, "x"),)))
    with pytest.raises(InputError, match="step time"):
        place(JOBS[0], 1000, snapshot, predictor)


@pytest.mark.parametrize("iterations", [0, -1.0, 5e-324, 1e300, float("nan"), True])
def test_impossible_lengths_are_refused(iterations: float) -> None:
    with pytest.raises(InputError, match="iterations"):
        place(JOBS[0], iterations, cluster(Gpu("0", "v100")), PREDICTOR)


def test_equal_gpus_are_grouped_and_ranked_in_order() -> None:
    snapshot = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "n", "count": 50, "gpus": [{"device": "v100", "count": 8}]}]}
    )
    decision = place(JOBS[0], 10, snapshot, PREDICTOR, PlacementConfig(limit=3))
    assert [(r.node, r.gpu) for r in decision.ranked] == [("n-0", "0"), ("n-0", "1"), ("n-0", "2")]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["v100", "k80"]),
            st.lists(st.tuples(st.integers(0, 5), st.floats(1, 1e4)), max_size=2),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 4),
    st.floats(1, 1e4),
    st.sampled_from(["jct", "interference", "makespan"]),
)
def test_decides_like_a_plain_loop(raw: list, number: int, iterations: float, objective: str) -> None:
    gpus = [Gpu(str(i), d, tenants=tuple(Tenant(JOBS[j], n) for j, n in t)) for i, (d, t) in enumerate(raw)]
    config = PlacementConfig(objective=objective, wait=False)
    decision = place(JOBS[number], iterations, cluster(*gpus), PREDICTOR, config)
    plain = []
    for gpu in gpus:
        q = quantify(PREDICTOR, gpu.device, gpu.tenants, JOBS[number], iterations)
        total = q.finish_s + sum(q.delays_s)
        score = {"jct": total, "interference": q.interference, "makespan": q.empty_s}[objective]
        if q.fits and max(q.slowdowns) <= config.max_slowdown:
            plain.append((score, gpu.id))
    assert len(plain) == len(decision.ranked)
    expected = {name: score for score, name in plain}
    for offer in decision.ranked:
        assert offer.score == pytest.approx(expected[offer.gpu], rel=1e-9, abs=1e-9)
    if plain:
        assert decision.ranked[0].score == pytest.approx(min(plain)[0], rel=1e-9, abs=1e-9)
    scores = Placer(PREDICTOR).scores(JOBS[number], iterations, cluster(*gpus), config)
    ranked = {offer.gpu: offer.score for offer in decision.ranked}
    assert scores.tolist() == [ranked.get(gpu.id, float("inf")) for gpu in gpus]


def test_gangs_take_whole_gpus_of_one_type() -> None:
    nodes = (
        Node(
            "a",
            tuple(Gpu(str(k), "v100", tenants=(Tenant(JOBS[0], 10.0),) if k < 2 else ()) for k in range(4)),
        ),
        Node("b", tuple(Gpu(str(k), "v100") for k in range(4))),
        Node("c", tuple(Gpu(str(k), "k80") for k in range(4))),
    )
    snapshot = ClusterSnapshot(nodes)
    two = place(JOBS[1], 100, snapshot, PREDICTOR, PlacementConfig(gpus=2)).ranked
    assert [r.gang for r in two] == [(("a", "2"), ("a", "3")), (("c", "0"), ("c", "1"))]
    four = place(JOBS[1], 100, snapshot, PREDICTOR, PlacementConfig(gpus=4)).to_json()
    assert {g["node"] for g in four["ranked"][0]["gang"]} == {"b"}
    assert place(JOBS[1], 100, snapshot, PREDICTOR, PlacementConfig(gpus=8)).decision == "wait"
    with pytest.raises(InfeasibleError, match="9 GPUs"):
        place(JOBS[1], 100, snapshot, PREDICTOR, PlacementConfig(gpus=9))


def test_the_reason_of_a_gang_counts_the_gpus_that_it_could_have() -> None:
    tenants = (Tenant(JOBS[0], 10.0),)
    half = (Gpu("0", "v100"), Gpu("1", "v100", tenants=tenants))
    nodes = (Node("a", half), Node("b", half), Node("c", tuple(Gpu(str(k), "k80") for k in range(8))))
    scattered = place(JOBS[1], 100, ClusterSnapshot(nodes[:2]), PREDICTOR, PlacementConfig(gpus=2))
    assert scattered.reasons == ("a gang needs 2 empty GPUs of one type (v100: 1 on one node)",)
    too_few = place(JOBS[1], 100, ClusterSnapshot(nodes[:2]), PREDICTOR, PlacementConfig(gpus=4))
    assert too_few.reasons == ("a gang needs 4 empty GPUs of one type (v100: 2)",)
    solo = {(device, job): Solo(0.1, 14 * GIB) for device in ("v100", "k80") for job in JOBS}
    large = TablePredictor(solo, {}, {"v100": 16 * GIB, "k80": 12 * GIB})
    with pytest.raises(InfeasibleError, match="at most 4 GPUs, got 6"):
        place(JOBS[1], 100, ClusterSnapshot(nodes), large, PlacementConfig(gpus=6))


@pytest.mark.parametrize("limit", [1, 5, 17, 40, 100])
def test_ties_go_to_the_first(limit: int) -> None:
    rng = np.random.default_rng(limit)
    score = rng.choice([1.0, 2.0, 3.0, np.inf], 20)
    cost_s = rng.choice([10.0, 20.0], 20)
    tenants = rng.integers(0, 3, 20)
    state_of = rng.integers(0, 20, 60)  # a state that no GPU is in counts for nothing
    whole = np.lexsort((tenants[state_of], cost_s[state_of], score[state_of]))
    expected = whole[np.isfinite(score[state_of][whole])][:limit].tolist()
    count_of = np.bincount(state_of, minlength=20)
    assert _first(score, cost_s, tenants, state_of, count_of, limit).tolist() == expected


def test_departures_that_leave_no_room_are_not_evaluated() -> None:
    """However many tenants a GPU has, the newcomer is followed beside at most `max_members - 1`."""
    predictor, sizes = table(sizes=6), set[int]()

    class Counting:
        def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
            sizes.update(len(s.workloads) for s in sets if JOBS[4] in s.workloads)
            return predictor.predict_arrays(sets)

    tenants = tuple(Tenant(JOBS[k % 3], 1e3 * (k + 1), f"t{k}") for k in range(5))
    snapshot = cluster(Gpu("0", "v100", tenants=tenants))
    decision = place(JOBS[4], 1000, snapshot, Counting(), PlacementConfig(max_slowdown=50))
    assert (decision.decision, decision.ranked) == ("wait", ())
    assert sizes == {1, 2, 3, 4, 6}, "six in the first check"
