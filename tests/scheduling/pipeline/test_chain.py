"""The search for chains of layers compared with the matrix search, and at 5,000 layers."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.capture.pipedream_profile import PipeDreamProfile
from scheduling.pipeline.chain import ChainSearch
from scheduling.pipeline.chain_cut import ChainCut, part_bytes
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.optimal import Search, solve_optimal
from scheduling.pipeline.plan import plan
from scheduling.pipeline.states import StateSpace, antichain_states
from scheduling.pipeline.straight import cut
from tests.scheduling.pipeline.literal import drawn_nodes


def chain_profile(seed: int, layers: int, skips: int = 0) -> PipeDreamProfile:
    """A chain of layers with a connection around every `skips` of them; round numbers, so that ties occur."""
    draw = np.random.default_rng(seed)
    nodes = drawn_nodes(draw, layers)
    edges = [(f"n{i}", f"n{i + 1}") for i in range(layers - 1)]
    if skips:
        edges += [(f"n{i}", f"n{i + skips}") for i in range(0, layers - skips, skips)]
    return PipeDreamProfile(f"chain-{seed}", nodes, tuple(edges))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    layers=st.integers(1, 14),
    workers=st.sampled_from([(1,), (5,), (2, 2), (3, 2), (2, 3), (2, 2, 2), (2, 1, 2)]),
    ratio=st.sampled_from([None, 1.0, 0.2]),
    limit=st.sampled_from([None, 6e7, 3e7, 1.2e7, 6e6]),
    straight=st.booleans(),
    recompute=st.booleans(),
)
def test_chain_search_equals_the_matrix_search(
    seed: int,
    layers: int,
    workers: tuple[int, ...],
    ratio: float | None,
    limit: float | None,
    straight: bool,
    recompute: bool,
) -> None:
    space = replace(antichain_states(chain_profile(seed, layers)), inputs_only=recompute)
    space = replace(space, fixed_bytes=0.5 * space.parameter_bytes)
    cluster = PipelineCluster(workers, (2e9, 5e8, 3e8)[: len(workers)], limit)
    options = PartitionOptions(ratio, straight)
    expected, _ = Search(space, cluster, options).solve()
    bottleneck_s, spans = ChainSearch(space, cluster, options).solve()
    assert bottleneck_s == pytest.approx(expected, rel=1e-11)
    if math.isinf(expected):
        least, _ = Search(space, cluster, options, memory_only=True).solve()
        least_bytes, spans = ChainSearch(space, cluster, options).solve_memory()
        assert least_bytes == pytest.approx(least, rel=1e-11)
        assert max(span.memory_bytes for span in spans) == pytest.approx(least, rel=1e-11)
    assert [spans[0].start, spans[-1].end] == [0, space.count]
    assert all(left.end == right.start for left, right in itertools.pairwise(spans))
    assert all(len(span.replicas) == len(span.place) == len(workers) for span in spans)
    assert sum(math.prod(span.replicas) for span in spans) <= cluster.total


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    layers=st.integers(1, 14),
    in_flight=st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1, max_size=6),
    limit=st.sampled_from([math.inf, 3e7, 1.5e7]),
    recompute=st.booleans(),
    s_per_byte=st.sampled_from([0.0, 3e-8]),
)
def test_partial_chains_equal_the_matrix_search(
    seed: int, layers: int, in_flight: list[float], limit: float, recompute: bool, s_per_byte: float
) -> None:
    space = replace(antichain_states(chain_profile(seed, layers)), inputs_only=recompute)
    every, parts = np.arange(space.count + 1), len(in_flight)
    send_s = s_per_byte * space.output_bytes
    send_s[[0, -1]] = 0.0

    def memory(part: int) -> np.ndarray:
        held = part_bytes(space, every[:, None], every[None, :], in_flight[part], 4.0)
        return np.where(space.subset, held, np.inf)

    def time(part: int) -> np.ndarray:
        spent = np.maximum(space.compute_s[None, :] - space.compute_s[:, None], send_s[None, :])
        return np.where(space.subset & (memory(part) <= limit), spent, np.inf)

    chain = ChainCut(space, in_flight, 4.0, send_s=send_s)
    for cost, found in ((time, chain.by_time(limit)), (memory, chain.by_memory())):
        expected = cut(cost, parts)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            worst = [
                max(cost(p)[bounds[p], bounds[p + 1]] for p in range(parts)) for bounds in (found, expected)
            ]
            assert worst[0] == pytest.approx(worst[1], rel=1e-11)


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_a_thousand_workers(ratio: float | None) -> None:
    """Without trying every number of members of a stage with every number behind it (minutes)."""
    space = antichain_states(chain_profile(2, 14))
    began_s = time.process_time()
    bottleneck_s, spans = ChainSearch(
        space, PipelineCluster((1000,), (1e12,)), PartitionOptions(ratio)
    ).solve()
    assert time.process_time() - began_s < 15.0
    assert sum(math.prod(span.replicas) for span in spans) <= 1000
    assert bottleneck_s == pytest.approx(float(space.compute_s[-1]) / 1000, rel=0.02)


@pytest.fixture(scope="module", params=[0, 4], ids=["chain", "residual"])
def deep(request: pytest.FixtureRequest) -> StateSpace:
    return antichain_states(chain_profile(1, 5000, request.param))


@pytest.mark.parametrize("workers", [(16,), (4, 4)])
def test_five_thousand_layers(
    deep: StateSpace, workers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matrices over the states (200 MB each); moving a boundary by one layer gains nothing."""
    monkeypatch.setattr(StateSpace, "subset", property(lambda self: pytest.fail("a matrix over all states")))
    assert deep.count == 5000
    bandwidths = (1e12,) * len(workers)
    bottleneck_s, spans = solve_optimal(deep, PipelineCluster(workers, bandwidths), PartitionOptions())
    ideal_s = float(deep.compute_s[-1]) / 16
    slowest_layer_s = float(np.diff(deep.compute_s).max())
    assert ideal_s <= bottleneck_s <= ideal_s + slowest_layer_s
    assert sum(math.prod(span.replicas) for span in spans) == 16
    whole = plan(deep, PipelineCluster(workers, bandwidths, 60e9), "1f1b", 16)
    assert sum(len(stage.modules) for stage in whole.stages) == 5000
