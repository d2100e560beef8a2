"""Plans of captured graphs, synthetic and from the zoo."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from profiling.errors import InfeasibleError, InputError, UnknownNameError
from profiling.graph import ComputationGraph, Operator, TensorEdge
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.computation import block_states, blocks_of
from scheduling.pipeline.inputs import read_input
from scheduling.pipeline.partition import partition
from scheduling.pipeline.plan import Plan, plan
from scheduling.pipeline.schedules import SCHEDULES
from scheduling.pipeline.states import antichain_states
from scheduling.pipeline.straight import cut
from tests.scheduling.pipeline.literal import random_profile

# A stem, three blocks of which the second is residual, a head; `shared` is called twice.
PATHS = [
    "stem",
    "body.0.a",
    "body.0.b",
    "body.1.a",
    "body.1.b",
    "body.1",
    "body.2.a",
    "shared",
    "body.3.a",
    "shared",
    "head",
]


def graph(batch_size: int = 64) -> ComputationGraph:
    operators = tuple(
        Operator(
            f"op{i}",
            "linear",
            parameter_bytes=1e6,
            saved_activation_bytes=2e6,
            output_shape=(batch_size, 8),
            module_path=path,
        )
        for i, path in enumerate(PATHS)
    )
    edges = [TensorEdge(i, i + 1, 1e5) for i in range(len(PATHS) - 1)] + [TensorEdge(2, 5, 1e5)]
    return ComputationGraph(
        "hand",
        operators,
        tuple(edges),
        batch_size=batch_size,
        parameter_bytes=11e6,
        gradient_bytes=11e6,
        optimizer_state_bytes=22e6,
    )


TIMES = [(0.01, 0.02)] * len(PATHS)


def test_cuts_are_before_modules_called_once() -> None:
    blocks = blocks_of(graph(), TIMES, "module")
    assert [b.split_point for b in blocks] == [
        "", "body.0", "body.0.b", "body.1", "body.1.b", "body.2", "body.3", "head",
    ]  # fmt: skip
    by_name = {b.split_point: b for b in blocks}
    # Behind `body.0.b` only its own output crosses; behind `body.1.a` the residual branch crosses too.
    assert by_name["body.0.b"].output_bytes == 1e5
    assert by_name["body.1"].output_bytes == 2e5
    assert blocks[-1].output_bytes == 0
    with pytest.raises(InputError, match="one pair of times"):
        blocks_of(graph(), TIMES[:3])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", [False, True])
def test_every_schedule_gives_a_complete_plan(schedule: str, recompute: bool) -> None:
    cluster = PipelineCluster((2, 2), (1e9, 1e8))
    whole = plan(graph(), cluster, schedule, 8, recompute=recompute, times=TIMES)
    blocks = [name for stage in whole.stages for name in stage.modules]
    assert len(blocks) == len(set(blocks)) == len(blocks_of(graph(), TIMES))
    assert whole.step_time_s > 0
    assert 0 <= whole.bubble_ratio < 1
    assert whole.workers_used <= 4
    assert whole.split_points == [stage.modules[0] for stage in whole.stages[1:]]
    assert whole.to_json()["stages"][0]["split_point"] == ""


def test_a_single_chain_is_cut_at_the_least_bottleneck() -> None:
    space = block_states("hand", blocks_of(graph(), TIMES))
    time = space.compute_s[None, :] - space.compute_s[:, None]
    time[~space.subset] = float("inf")
    bounds = cut(lambda _: time, 3)
    assert bounds is not None
    bottleneck_s = max(time[a, b] for a, b in itertools.pairwise(bounds))
    inner = range(1, space.count)
    best = min(max(time[0, a], time[a, b], time[b, -1]) for a in inner for b in inner if a < b)
    assert bottleneck_s == best


def test_memory_limits_the_plan_and_is_reported() -> None:
    cluster = PipelineCluster((4,), (1e9,))

    def peak(whole: Plan) -> float:
        return max(stage.memory_bytes for stage in whole.stages)

    for schedule in SCHEDULES:
        free = plan(graph(), cluster, schedule, 8, times=TIMES, allow_idle=True)
        with pytest.raises(InfeasibleError, match=r"than there are|too many"):
            plan(graph(), cluster, schedule, 8, memory_cap=peak(free) / 100, times=TIMES)
        assert peak(plan(graph(), cluster, schedule, 8, memory_cap=peak(free), times=TIMES)) <= peak(free)
    deep = [plan(graph(), cluster, s, 8, depth=4, times=TIMES) for s in ("gpipe", "1f1b")]
    assert peak(deep[1]) < peak(deep[0])
    again = plan(graph(), cluster, "gpipe", 8, depth=4, recompute=True, times=TIMES)
    assert peak(again) < peak(deep[0])
    assert again.step_time_s > deep[0].step_time_s


def test_zero_bubble_is_no_slower_than_1f1b() -> None:
    space = antichain_states(random_profile(11, 12))
    cluster = PipelineCluster((4,), (1e12,))
    steps = {s: plan(space, cluster, s, 8, depth=4).step_time_s for s in ("gpipe", "1f1b", "zb-h1")}
    assert steps["zb-h1"] <= steps["1f1b"] <= steps["gpipe"] * (1 + 1e-9)


def test_invalid_requests() -> None:
    cluster = PipelineCluster((4,), (1e9,))
    with pytest.raises(UnknownNameError, match="zb-h1"):
        plan(graph(), cluster, "2f2b", times=TIMES)
    with pytest.raises(InputError, match="device="):
        plan(graph(), cluster)
    with pytest.raises(InputError, match="microbatches"):
        plan(graph(), cluster, microbatches=0, times=TIMES)
    with pytest.raises(InfeasibleError, match="a sample for each microbatch"):
        plan(graph(batch_size=4), cluster, microbatches=8, times=TIMES)
    with pytest.raises(InputError, match="different lengths"):
        PipelineCluster((4, 4), (1e9,))
    with pytest.raises(InputError, match="memory limit"):
        PipelineCluster((4,), (1e9,), -1.0)


@pytest.mark.parametrize("workers", [(4, 3), (2, 2, 2), (3, 2), (4, 2, 1)])
def test_devices_match_the_replicas_of_the_search(workers: tuple[int, ...]) -> None:
    """A stage on three machines with one worker each is not on three workers of one machine."""
    levels = len(workers)
    for seed in range(12):
        space = antichain_states(random_profile(seed, 6, density=0.0))
        cluster = PipelineCluster(workers, (1e8, 1e9, 1e7)[:levels])
        stages = partition(space, cluster, PartitionOptions(1.0)).stages
        planned = plan(space, cluster, "pipedream").stages
        devices = [device for stage in planned for device in stage.devices]
        assert len(devices) == len(set(devices))
        assert set(devices) <= set(range(cluster.total))
        for stage, placed in zip(stages, planned, strict=True):
            for level in range(levels):
                groups = {device // cluster.inside(level) for device in placed.devices}
                assert len(groups) == math.prod(stage.level_replicas[level:])


def test_both_entry_points_give_the_same_pipedream_plan(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    graph().save(path)
    cluster = PipelineCluster((3,), (1e9,))
    stages = partition(read_input(str(path), "v100").states(), cluster, PartitionOptions(1.0)).stages
    planned = plan(graph(), cluster, "pipedream", device="v100").stages
    assert [stage.memory_bytes for stage in stages] == [stage.memory_bytes for stage in planned]


def test_more_microbatches_than_can_be_simulated_are_refused() -> None:
    for schedule in SCHEDULES:
        with pytest.raises(InputError, match="1 to 1024"):
            plan(graph(), PipelineCluster((2,), (1e9,)), schedule, 10**9, times=TIMES)


@pytest.mark.parametrize("bandwidth", [0.0, 1e-300, 1e300, float("nan")])
def test_a_bandwidth_that_gives_no_finite_time_is_refused(bandwidth: float) -> None:
    with pytest.raises(InputError, match="bandwidth is out of range"):
        PipelineCluster((4,), (bandwidth,))
