"""The default search compared with every partition of small random graphs."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.capture.pipedream_profile import read_profile
from profiling.errors import InfeasibleError
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.optimal import solve_optimal
from scheduling.pipeline.partition import partition
from scheduling.pipeline.states import antichain_states
from tests.scheduling.pipeline.literal import exhaustive, exhaustive_nested, ideals, price, random_profile
from tests.shared import shared_data


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 7), sources=st.integers(1, 2))
def test_states_are_all_possible_cuts(seed: int, nodes: int, sources: int) -> None:
    profile = random_profile(seed, nodes, sources=min(sources, nodes))
    space = antichain_states(profile)
    states = {frozenset(space.members(0, b)) for b in range(1, space.count + 1)} - {frozenset()}
    assert states == ideals(profile)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 7))
def test_what_later_layers_read_crosses_a_cut(seed: int, nodes: int) -> None:
    profile = random_profile(seed, nodes)
    space = antichain_states(profile)
    readers = {n.id: {t for s, t in profile.edges if s == n.id} for n in profile.nodes}
    for boundary in range(1, space.count):
        done = set(space.members(0, boundary))
        sent = sum(
            n.activation_bytes
            for n in profile.nodes
            if n.id in done and (not readers[n.id] or readers[n.id] - done)
        )
        assert space.output_bytes[boundary] == pytest.approx(sent)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 6),
    workers=st.integers(1, 4),
    ratio=st.sampled_from([None, 1.0, 4.0]),
    limit=st.sampled_from([None, 6e7, 3e7, 1.2e7]),
    straight=st.booleans(),
)
def test_optimal_among_all_partitions(
    seed: int, nodes: int, workers: int, ratio: float | None, limit: float | None, straight: bool
) -> None:
    space = antichain_states(random_profile(seed, nodes, density=0.4))
    cluster = PipelineCluster((workers,), (3e8,), limit)
    options = PartitionOptions(ratio, straight)
    expected = exhaustive(space, cluster, options)
    if math.isinf(expected):
        with pytest.raises(InfeasibleError, match="more than there are"):
            solve_optimal(space, cluster, options)
        return
    bottleneck_s, spans = solve_optimal(space, cluster, options)
    assert bottleneck_s == pytest.approx(expected, rel=1e-12)
    stages = [(span.start, span.end) for span in spans]
    replicas = tuple(math.prod(span.replicas) for span in spans)
    assert price(space, stages, replicas, 3e8, options, limit) == pytest.approx(bottleneck_s, rel=1e-12)
    assert all(limit is None or span.memory_bytes <= limit for span in spans)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    limit=st.sampled_from([None, 1.5e8, 6e7, 2e7]),
    ratio=st.sampled_from([None, 1.0]),
)
def test_two_equal_levels_equal_one(seed: int, limit: float | None, ratio: float | None) -> None:
    """Equal bandwidths, no transfers, members of one worker."""
    space = antichain_states(random_profile(seed, 8))
    nested = PipelineCluster((1, 4), (3e8, 3e8), limit)
    flat = PipelineCluster((4,), (3e8,), limit)
    options = PartitionOptions(ratio)
    try:
        expected, _ = solve_optimal(space, flat, options)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve_optimal(space, nested, options)
        return
    assert solve_optimal(space, nested, options)[0] == pytest.approx(expected, rel=1e-12)
    wide = PipelineCluster((2, 2), (3e9, 3e8), limit)
    try:
        _, spans = solve_optimal(space, wide, options)
    except InfeasibleError:
        return
    assert sum(math.prod(span.replicas) for span in spans) <= 4
    for span in spans:
        assert limit is None or span.memory_bytes <= limit
    for left, right in itertools.pairwise(spans):
        assert left.end == right.start
        assert space.subset[left.start, left.end]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 4),
    workers=st.sampled_from([(2, 2), (3, 2), (2, 3), (2, 1, 2)]),
    ratio=st.sampled_from([None, 1.0]),
    limit=st.sampled_from([None, 4e7, 1.5e7]),
)
def test_optimal_among_all_nested_partitions(
    seed: int, nodes: int, workers: tuple[int, ...], ratio: float | None, limit: float | None
) -> None:
    space = antichain_states(random_profile(seed, nodes))
    cluster = PipelineCluster(workers, (2e9, 5e8, 3e8)[: len(workers)], limit)
    options = PartitionOptions(ratio)
    expected = exhaustive_nested(space, cluster, options)
    if math.isinf(expected):
        with pytest.raises(InfeasibleError):
            solve_optimal(space, cluster, options)
    else:
        assert solve_optimal(space, cluster, options)[0] == pytest.approx(expected, rel=1e-12)


def test_workers_that_do_not_help_stay_idle() -> None:
    space = antichain_states(random_profile(3, 3))
    plan = partition(space, PipelineCluster((64,), (1.0,)))
    assert plan.workers_used < 64
    assert partition(space, PipelineCluster((2,), (1e12,))).speedup >= 1 - 1e-12


def test_memory_of_the_first_stage_counts_everything_in_flight() -> None:
    space = antichain_states(random_profile(5, 8))
    plan = partition(space, PipelineCluster((4,), (1e9,)), PartitionOptions(straight=True))
    assert [stage.in_flight for stage in plan.stages] == [4, 3, 2, 1]


def test_infeasible_error_names_the_stage_and_the_missing_memory() -> None:
    space = antichain_states(read_profile(shared_data("pipedream", "vgg16.graph.txt")))
    with pytest.raises(InfeasibleError, match=r"stage 4 of 4 .* 7\.248e\+09 bytes more") as caught:
        partition(space, PipelineCluster((4,), (1e9,), 1e9))
    assert caught.value.exit_code == 1


def test_a_model_with_very_many_cuts_is_cut_in_execution_order() -> None:
    space = antichain_states(read_profile(shared_data("pipedream", "nasnetamobile.graph.txt")))
    assert space.search == "execution order"
    plan = partition(space, PipelineCluster((4,), (1e9,)), PartitionOptions(1.0))
    assert sorted(node for stage in plan.stages for node in stage.nodes) == sorted(
        space.members(0, space.count)
    )
