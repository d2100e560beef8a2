"""Schedules compared with the bubbles stated in their papers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import InputError, UnknownNameError
from scheduling.pipeline.gantt import draw
from scheduling.pipeline.schedules import SCHEDULES, Action, warm_up, worker_orders
from scheduling.pipeline.timeline import StageTimes, simulate

SIZES = {"stages": st.integers(1, 6), "rounds": st.integers(2, 4)}


@settings(max_examples=40, deadline=None)
@given(**SIZES, forward=st.integers(1, 5), input_gradient=st.integers(1, 5), weight=st.integers(1, 5))
def test_bubble_of_flushed_schedules(
    stages: int, rounds: int, forward: int, input_gradient: int, weight: int
) -> None:
    microbatches = stages * rounds
    times = [StageTimes(forward, input_gradient, weight)] * stages
    whole = forward + input_gradient + weight
    for schedule in ("gpipe", "1f1b"):
        timeline = simulate(worker_orders(schedule, stages, microbatches), times)
        assert timeline.total_s == pytest.approx((microbatches + stages - 1) * whole)
        assert timeline.bubble_s == pytest.approx([(stages - 1) * whole] * stages)


@settings(max_examples=30, deadline=None)
@given(**SIZES, chunks=st.integers(1, 3))
def test_bubble_of_interleaved(stages: int, rounds: int, chunks: int) -> None:
    timeline = simulate(
        worker_orders("interleaved", stages, stages * rounds, chunks=chunks),
        [StageTimes(1.0 / chunks, 1.0 / chunks, 1.0 / chunks)] * (stages * chunks),
    )
    assert max(timeline.bubble_s) == pytest.approx((stages - 1) * 3 / chunks)


@settings(max_examples=30, deadline=None)
@given(**SIZES, forward=st.integers(1, 4), extra=st.integers(0, 3), weight=st.integers(1, 4))
def test_bubble_of_zero_bubble_h1(stages: int, rounds: int, forward: int, extra: int, weight: int) -> None:
    """(p - 1)(tF + tB - tW), if no input gradient takes less time than a weight gradient."""
    forward, input_gradient = max(forward, weight), weight + extra
    microbatches = stages * rounds
    timeline = simulate(
        worker_orders("zb-h1", stages, microbatches),
        [StageTimes(forward, input_gradient, weight)] * stages,
    )
    assert timeline.bubble_s[0] == pytest.approx((stages - 1) * (forward + input_gradient - weight))
    assert max(timeline.peak_in_flight) <= stages


@settings(max_examples=40, deadline=None)
@given(replicas=st.lists(st.integers(1, 4), min_size=1, max_size=4), minibatches=st.integers(1, 24))
def test_pipedream_holds_at_most_its_limit(replicas: list[int], minibatches: int) -> None:
    orders = worker_orders("pipedream", len(replicas), minibatches, replicas=replicas)
    timeline = simulate(orders, [StageTimes(r, r, r) for r in replicas])
    assert max(timeline.peak_in_flight[: replicas[0]]) <= -(-sum(replicas) // replicas[0])
    worker = 0
    for stage, count in enumerate(replicas):
        behind = sum(replicas[stage:])
        for _ in range(count):
            assert timeline.peak_in_flight[worker] <= warm_up(replicas, stage) + 1 == -(-behind // count)
            worker += 1


@settings(max_examples=40, deadline=None)
@given(
    schedule=st.sampled_from(SCHEDULES),
    stages=st.integers(1, 5),
    rounds=st.integers(1, 4),
    chunks=st.integers(1, 3),
    send=st.sampled_from([0.0, 0.3]),
)
def test_every_schedule_runs_everything_once(
    schedule: str, stages: int, rounds: int, chunks: int, send: float
) -> None:
    parts = stages * chunks if schedule == "interleaved" else stages
    microbatches = rounds * stages
    orders = worker_orders(schedule, stages, microbatches, chunks=chunks)
    done = [action for order in orders for action in order]
    kinds = "FBW" if schedule == "zb-h1" else "FB"
    assert len(done) == len(set(done))
    assert set(done) == {Action(k, m, s) for k in kinds for m in range(microbatches) for s in range(parts)}
    timeline = simulate(orders, [StageTimes(1, 1, 1, send)] * parts)
    assert len(timeline.slots) == len(done)


def test_infeasible_schedules_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="gpipe"):
        worker_orders("2f2b", 2, 4)
    with pytest.raises(InputError, match="multiples of the 3"):
        worker_orders("interleaved", 3, 4)
    with pytest.raises(InputError, match="deadlock"):
        simulate([[Action("B", 0, 0), Action("F", 0, 0)]], [StageTimes(1, 1, 1)])


def test_transfers_over_one_link_follow_one_another() -> None:
    """A second of compute, ten on the link: eight activations take 80 s to pass it, eight gradients as long."""
    times = [StageTimes(1.0, 1.0, 1.0, 10.0), StageTimes(1.0, 1.0, 1.0)]
    # The last forward ends at 82 s; the first gradient is on the link from 84 s on, and the last is used for 2 s.
    assert simulate(worker_orders("gpipe", 2, 8), times).total_s == 84 + 80 + 2
    # Two at a time: the backward passes of microbatches 0, 2, 4 and 6 start every 26 s from 24 s on.
    assert simulate(worker_orders("1f1b", 2, 8), times).total_s == 24 + 3 * 26 + 12


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plot(tmp_path: Path, kind: str) -> None:
    timeline = simulate(worker_orders("interleaved", 2, 4, chunks=2), [StageTimes(1, 1, 1)] * 4)
    path = draw(timeline, tmp_path / f"plan.{kind}", title="interleaved")
    assert path.stat().st_size > 2000
    with pytest.raises(InputError, match="svg"):
        draw(timeline, tmp_path / "plan.bmp")
