"""The published optimizer: its results, and its recurrence on random graphs."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.capture.pipedream_profile import read_profile
from profiling.errors import InfeasibleError
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.compat import solve_compat
from scheduling.pipeline.partition import partition
from scheduling.pipeline.states import StateSpace, antichain_states
from tests.scheduling.pipeline.literal import published, random_profile
from tests.shared import shared_data

COUNTED = PartitionOptions(activation_compression_ratio=1.0)


def states(model: str) -> StateSpace:
    return antichain_states(read_profile(shared_data("pipedream", f"{model}.graph.txt")), as_published=True)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("alexnet", 22),
        ("vgg16", 40),
        ("squeezenet1_0", 99),
        ("gnmt", 99),
        ("resnet18", 100),
        ("resnet50", 240),
        ("resnet101", 410),
        ("densenet121", 430),
    ],
)
def test_state_counts(model: str, count: int) -> None:
    assert states(model).count == count


@pytest.mark.parametrize(
    ("model", "workers", "bottleneck_s", "speedup"),
    [
        ("vgg16", 4, 0.205521, 2.838),
        ("vgg16", 8, 0.103833, 3.142),
        ("vgg16", 16, 0.056530, 3.038),
        ("resnet50", 4, 0.162881, 1.151),
        ("resnet50", 8, 0.092012, 1.088),
        ("resnet50", 16, 0.047801, 1.081),
        ("gnmt", 4, 0.025868, 23.336),
        ("gnmt", 8, 0.019285, 18.163),
        ("gnmt", 16, 0.019285, 9.709),
    ],
)
def test_published_rows(model: str, workers: int, bottleneck_s: float, speedup: float) -> None:
    plan = partition(states(model), PipelineCluster((workers,), (1e9,)), COUNTED, compat=True)
    assert plan.bottleneck_s == pytest.approx(bottleneck_s, abs=6e-7)
    assert plan.speedup == pytest.approx(speedup, abs=6e-4)
    assert sum(stage.replicas for stage in plan.stages) == workers


def test_published_row_of_two_levels() -> None:
    plan = partition(states("vgg16"), PipelineCluster((4, 4), (12e9, 1.25e9)), COUNTED, compat=True)
    assert plan.bottleneck_s == pytest.approx(0.066889, abs=6e-7)
    assert plan.speedup == pytest.approx(1.999, abs=6e-4)
    assert [stage.level_replicas[1] for stage in plan.stages] == [3, 1, 1, 1]
    assert [stage.place for stage in plan.stages] == [(0, 0), (1, 0), (1, 1), (1, 2)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(2, 8),
    workers=st.sampled_from([(2,), (3,), (5,), (2, 2), (3, 2), (2, 2, 2)]),
    ratio=st.sampled_from([None, 1.0, 2.0]),
    limit=st.sampled_from([None, 4e7, 1.5e7, 6e6]),
    straight=st.booleans(),
    fewer=st.booleans(),
)
def test_equals_the_recurrence_cell_by_cell(
    seed: int,
    nodes: int,
    workers: tuple[int, ...],
    ratio: float | None,
    limit: float | None,
    straight: bool,
    fewer: bool,
) -> None:
    space = antichain_states(random_profile(seed, nodes, sources=1 + seed % 2), as_published=True)
    cluster = PipelineCluster(workers, (2e9, 3e8, 1e8)[: len(workers)], limit)
    options = PartitionOptions(ratio, straight, fewer)
    expected = published(space, cluster, options)
    if math.isinf(expected):
        with pytest.raises(InfeasibleError):
            solve_compat(space, cluster, options)
    else:
        bottleneck_s, spans = solve_compat(space, cluster, options)
        assert bottleneck_s == pytest.approx(expected, rel=1e-12)
        assert spans[0].start == 0
        assert spans[-1].end == space.count
        assert all(a.end == b.start for a, b in itertools.pairwise(spans))
