"""Pipelines with a flush: a plan's memory, links and copies compared with its own timeline."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.capture.pipedream_profile import PipeDreamProfile, ProfileNode
from profiling.errors import InfeasibleError
from scheduling.pipeline.cluster import PipelineCluster
from scheduling.pipeline.plan import Plan, plan
from scheduling.pipeline.schedules import worker_orders
from scheduling.pipeline.stage_costs import send_s
from scheduling.pipeline.states import StateSpace, antichain_states
from scheduling.pipeline.timeline import StageTimes, simulate
from tests.scheduling.pipeline.literal import random_profile

FLUSHED = ("gpipe", "1f1b", "interleaved", "zb-h1")


def space_of(seed: int, nodes: int, density: float) -> StateSpace:
    return antichain_states(random_profile(seed, nodes, density=density))


def bounds_of(space: StateSpace, chosen: Plan) -> list[int]:
    """Boundaries of the stages, as numbers of nodes before each."""
    done: list[str] = []
    bounds = [0]
    for stage in chosen.stages:
        done += stage.modules
        bounds.append(next(b for b in range(space.count + 1) if set(space.members(0, b)) == set(done)))
    return bounds


def peak_bytes(space: StateSpace, chosen: Plan, worker: int, recompute: bool) -> float:
    """Peak memory of a worker: its weights, and what the actions of the timeline allocate and free."""
    bounds, width = bounds_of(space, chosen), len(chosen.timeline.bubble_s)
    share = chosen.stages[0].replicas * chosen.microbatches
    activations = np.diff(space.activation_bytes[bounds]) / share
    inputs = space.output_bytes[bounds[:-1]] / share
    last = "W" if chosen.schedule == "zb-h1" else "B"
    held = peak = 0.0
    for slot in chosen.timeline.slots:
        kind, part = slot.action.kind, slot.action.stage
        if slot.worker != worker:
            continue
        if kind == "F":
            held += inputs[part] if recompute else activations[part]
        if kind == "B" and recompute:
            held += activations[part]
        peak = max(peak, held)
        if kind == last:
            held -= activations[part] + (inputs[part] if recompute else 0.0)
    weights = np.diff(space.parameter_bytes[bounds])[worker::width].sum()
    return float(weights + peak)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    schedule=st.sampled_from(FLUSHED),
    workers=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    microbatches=st.sampled_from([1, 2, 4, 6]),
    chunks=st.integers(1, 3),
    recompute=st.booleans(),
    density=st.sampled_from([0.0, 0.3]),
)
def test_memory_and_transfers_match_the_timeline(
    seed: int,
    schedule: str,
    workers: list[int],
    microbatches: int,
    chunks: int,
    recompute: bool,
    density: float,
) -> None:
    space = space_of(seed, 7, density)
    bandwidths = 10.0 ** np.random.default_rng(seed).uniform(7, 10, len(workers))
    cluster = PipelineCluster(tuple(workers), tuple(bandwidths.tolist()))
    chosen = plan(space, cluster, schedule, microbatches, recompute=recompute, chunks=chunks)
    bounds, width = bounds_of(space, chosen), len(chosen.timeline.bubble_s)
    for number, stage in enumerate(chosen.stages):
        expected = peak_bytes(space, chosen, number % width, recompute)
        assert stage.memory_bytes == pytest.approx(expected, rel=1e-9)
    share = chosen.stages[0].replicas * microbatches
    ends = {(s.action.kind, s.action.microbatch, s.action.stage): s for s in chosen.timeline.slots}
    for (kind, microbatch, part), slot in ends.items():
        before = {"F": part - 1, "B": part + 1}.get(kind, -1)
        if not 0 <= before < len(chosen.stages):
            continue
        pairs = zip(chosen.stages[before].devices, chosen.stages[part].devices, strict=True)
        sent = float(space.output_bytes[bounds[max(part, before)]]) / share
        slowest_s = max(
            0.0 if a == b else sent / bandwidths[level_of(a, b, workers)] for a, b in pairs
        )  # the least that it takes, were no link shared
        came_s = ends[kind, microbatch, before].end_s
        assert slot.start_s >= came_s + slowest_s - 1e-9 * (1 + came_s)


def level_of(a: int, b: int, workers: list[int]) -> int:
    sizes = [math.prod(workers[: level + 1]) for level in range(len(workers))]
    return next(level for level, size in enumerate(sizes) if a // size == b // size)


def test_workers_of_a_member_share_its_link() -> None:
    cluster = PipelineCluster((4, 2), (100.0, 10.0))
    assert send_s(cluster, 50.0, [0], [1]) == 0.5
    assert send_s(cluster, 50.0, [0, 1], [2, 3]) == 0.5
    assert send_s(cluster, 50.0, [0], [4]) == 5.0
    assert send_s(cluster, 50.0, [0, 1, 2, 3], [4, 5, 6, 7]) == 20.0
    assert send_s(cluster, 50.0, [2, 3], [3, 4]) == 5.0  # the slower of two
    assert send_s(cluster, 50.0, [3], [3]) == 0.0


@pytest.mark.parametrize("schedule", FLUSHED)
def test_one_more_worker_on_a_slow_network_is_left_idle(schedule: str) -> None:
    """Summing gradients over it would take longer than it saves."""
    space = space_of(3, 8, 0.0)
    alone = plan(space, PipelineCluster((1,), (1e3,)), schedule, 4)
    for workers in ((2,), (3,), (1, 2), (2, 2, 2)):
        more = plan(space, PipelineCluster(workers, (1e3,) * len(workers)), schedule, 4)
        assert more.step_time_s <= alone.step_time_s
    inside = plan(space, PipelineCluster((4,), (1e10,)), schedule, 4)
    across = plan(space, PipelineCluster((4, 2), (1e10, 1e3)), schedule, 4)
    assert across.step_time_s <= inside.step_time_s
    with_all = plan(space, PipelineCluster((2,), (1e3,)), schedule, 4, allow_idle=False, depth=1)
    assert with_all.workers_used == 2
    assert with_all.step_time_s > alone.step_time_s


def test_fewer_copies_may_share_a_slow_link_better() -> None:
    """Two stages of 3 s, 1 GB between them, on two machines of four: of 4, 3 and 2 copies, 4, 2 and none cross."""
    nodes = tuple(ProfileNode(name, "Conv", 1.0, 2.0, 1e9, 0.0) for name in "ab")
    space = antichain_states(PipeDreamProfile("two", nodes, (("a", "b"),)))
    chosen = plan(space, PipelineCluster((4, 2), (1e9, 1e9)), "1f1b", 1, depth=2)
    assert chosen.stages[0].replicas == 3
    # 4 copies: 6 / 4 + 2 s; 3: 6 / 3 + 2 * 2/3 s; 2: 6 / 2 + 2 * 1/2 s.
    assert chosen.step_time_s == pytest.approx(2 + 4 / 3)


def test_over_a_slow_link_the_fewest_copies_that_fit_are_the_fastest() -> None:
    node = ProfileNode("a", "Conv", 1.0, 2.0, 4e9, 1e9)
    space = antichain_states(PipeDreamProfile("one", (node,), ()))
    chosen = plan(space, PipelineCluster((4,), (1e8,), memory_bytes=3.5e9), "1f1b", 1)
    assert chosen.stages[0].replicas == 2
    # 1 copy needs 5 GB; 2: 3 / 2 + 2 * 1/2 * 10 s; 4: 3 / 4 + 2 * 3/4 * 10 s.
    assert chosen.step_time_s == pytest.approx(11.5)


def of_four(outputs: tuple[float, ...], branch: bool) -> StateSpace:
    """Layers of 3 s each with these outputs in bytes; with `branch`, no chain."""
    nodes = [ProfileNode(f"n{i}", "Conv", 1.0, 2.0, size, 0.0) for i, size in enumerate(outputs)]
    edges = [(f"n{i}", f"n{i + 1}") for i in range(3)]
    if branch:
        nodes.append(ProfileNode("free", "Conv", 0.0, 0.0, 0.0, 0.0))
        edges.append(("n0", "free"))
    space = antichain_states(PipeDreamProfile("four", tuple(nodes), tuple(edges)))
    assert space.is_chain is not branch
    return space


@pytest.mark.parametrize("branch", [False, True])
def test_a_pipeline_over_a_slow_link_is_cut_where_less_has_to_cross(branch: bool) -> None:
    """Between two halves of 6 s each are 10 GB, which take 10 s; a stage of 9 s and one of 3 s exchange 1 MB."""
    space = of_four((1e6, 1e10, 1e6, 0.0), branch)
    slow, fast = (plan(space, PipelineCluster((2,), (b,)), "1f1b", 1, depth=2) for b in (1e9, 1e12))
    assert slow.step_time_s == pytest.approx(12 + 2 * 1e-3)
    assert fast.step_time_s == pytest.approx(12, abs=0.03)


@pytest.mark.parametrize("branch", [False, True])
def test_a_transfer_shorter_than_the_stages_moves_the_cut_too(branch: bool) -> None:
    """Between two halves of 6 s each are 2 GB, which take 2 s in each direction; behind the third layer is 1 MB."""
    space = of_four((1e6, 2e9, 1e6, 0.0), branch)
    chosen = plan(space, PipelineCluster((2,), (1e9,)), "1f1b", 1, depth=2)
    assert chosen.step_time_s == pytest.approx(12, abs=0.005)


@pytest.mark.parametrize(("bandwidth", "behind"), [(1e8, 0.004), (1e9, 0.009), (1e12, 1e-9)])
def test_steps_are_close_to_those_of_the_best_cut(bandwidth: float, behind: float) -> None:
    """On average over small chains, with the fastest of all cuts, depths and copies."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        costs = rng.uniform([0.001, 0.001, 0, 0], [0.1, 0.2, 1e8, 1e8], (int(rng.integers(3, 7)), 4))
        nodes = tuple(ProfileNode(f"n{i}", "Conv", *row) for i, row in enumerate(costs.tolist()))
        edges = tuple((f"n{i}", f"n{i + 1}") for i in range(len(nodes) - 1))
        space = antichain_states(PipeDreamProfile("chain", nodes, edges))
        workers, microbatches = int(rng.integers(2, 5)), int(rng.choice([1, 2, 4, 8]))
        chosen = plan(space, PipelineCluster((workers,), (bandwidth,)), "1f1b", microbatches)
        found.append(chosen.step_time_s / best_step_s(space, workers, bandwidth, microbatches) - 1)
    assert min(found) >= -1e-9
    assert np.mean(found) <= behind


def best_step_s(space: StateSpace, workers: int, bandwidth: float, microbatches: int) -> float:
    """Seconds of the fastest `1f1b` step over all cuts of a chain, depths and copies on one level."""
    best = math.inf
    for depth, copies in itertools.product(range(1, space.count + 1), range(1, workers + 1)):
        if depth * copies > workers:
            continue
        share = copies * microbatches
        for cuts in itertools.combinations(range(1, space.count), depth - 1):
            bounds = [0, *cuts, space.count]
            forward, compute, parameters = (
                np.diff(column[bounds])
                for column in (space.forward_s, space.compute_s, space.parameter_bytes)
            )
            sent_s = [*(space.output_bytes[bounds[1:-1]] / share / bandwidth).tolist(), 0.0]
            backward = (compute - forward) / share
            times = [
                StageTimes(float(f) / share, float(b), 0.0, s)
                for f, b, s in zip(forward, backward, sent_s, strict=True)
            ]
            step_s = simulate(worker_orders("1f1b", depth, microbatches), times).total_s
            best = min(best, step_s + 2 * (copies - 1) / copies * float(parameters.max()) / bandwidth)
    return best


def test_a_slow_link_is_named_as_the_bottleneck() -> None:
    space = space_of(3, 8, 0.0)
    slow, fast = (plan(space, PipelineCluster((2,), (b,)), "1f1b", 4, depth=2) for b in (1e6, 1e12))
    assert slow.bottleneck.startswith("activations from stage 1 to 2 take")
    assert fast.bottleneck.startswith("stage")


def test_interleaved_with_one_chunk_tries_the_depths_that_divide_the_microbatches() -> None:
    space = space_of(5, 8, 0.0)
    chosen = plan(space, PipelineCluster((3,), (1e9,)), "interleaved", 8, chunks=1)
    assert len(chosen.stages) in (1, 2)
    with pytest.raises(InfeasibleError, match="multiples of the depth"):
        plan(space, PipelineCluster((3,), (1e9,)), "interleaved", 8, chunks=1, depth=3)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), schedule=st.sampled_from(FLUSHED), recompute=st.booleans())
def test_a_plan_under_a_limit_keeps_to_it(seed: int, schedule: str, recompute: bool) -> None:
    space = space_of(seed, 9, 0.0)
    space = replace(space, fixed_bytes=2 * space.parameter_bytes)
    free = plan(space, PipelineCluster((4,), (1e9,)), schedule, 4, recompute=recompute)
    limit = 0.8 * max(stage.memory_bytes for stage in free.stages)
    try:
        held = plan(space, PipelineCluster((4,), (1e9,)), schedule, 4, limit, recompute)
    except InfeasibleError:
        return
    assert max(stage.memory_bytes for stage in held.stages) <= limit
