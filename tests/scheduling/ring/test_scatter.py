from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.elastic.agent import ElasticAgent, ElasticTruth
from scheduling.elastic.jobs import SIZES
from scheduling.ring.scatter import RingScatter, gradient_bytes_of, network_bytes_per_s

GANG, SMALL = Workload("gang"), Workload("small")
BYTES = {GANG: 4e8, SMALL: 4e6}


def cluster(between_s: float = 1e9, racks_s: float | None = None) -> SchedulingSnapshot:
    """Four nodes of two V100, two under each of two switches."""
    links = [(f"n-{k}", "xxyy"[k], between_s) for k in range(4)]
    links += [("x", "spine", racks_s), ("y", "spine", racks_s)] if racks_s else []
    body = {
        "nodes": [{"name": "n", "count": 4, "gpus": [{"device": "v100", "count": 2}]}],
        "links": [{"source": a, "target": b, "bandwidth_bytes_per_s": rate} for a, b, rate in links],
    }
    return SchedulingSnapshot(ClusterSnapshot.from_mapping(body))


def factor(
    gpus: tuple[int, ...], state: SchedulingSnapshot, step_s: float = 0.5, workload: Workload = GANG
) -> float:
    job = JobState(TraceJob("gang", workload, 50.0, gpus=len(gpus)), 0, 50.0, gpus=gpus)
    return RingScatter(1.25, BYTES.get).slowdown(job, state, step_s)


def test_the_exchange_over_the_network_by_hand() -> None:
    # Each of two GPUs sends 400 MB per step, over 1 GB/s: 0.4 s.
    v100 = get_device("v100")
    reduce_s = 2e8 * 3 / v100.memory_bandwidth_bytes_per_s
    inside_s = 4e8 / max(v100.nvlink_bytes_per_s, v100.pcie_bytes_per_s)
    expected = (0.5 + 0.4 + reduce_s) / (0.5 + inside_s + reduce_s)
    assert factor((0, 2), cluster()) == pytest.approx(expected)
    assert factor((0, 1), cluster()) == 1.0


def test_larger_gradients_shorter_steps_and_slower_links_cost_more() -> None:
    usual = factor((0, 2), cluster())
    assert factor((0, 2), cluster(), workload=SMALL) < usual
    assert factor((0, 2), cluster(), step_s=0.1) > usual
    assert factor((0, 2), cluster(5e8)) > usual > factor((0, 2), cluster(1e10))
    # No network is faster than the GPUs' own links.
    assert factor((0, 2), cluster(1e15)) == pytest.approx(1.0)


def test_a_ring_over_two_switches_is_as_fast_as_the_link_between_them() -> None:
    slow = cluster(1e9, racks_s=1e8)
    assert network_bytes_per_s(slow, ("n-0", "n-1")) == 1e9
    assert network_bytes_per_s(slow, ("n-0", "n-2")) == 1e8
    assert network_bytes_per_s(cluster(1e9), ("n-0", "n-2")) == 1e9
    assert factor((0, 4), slow) > factor((0, 2), slow)


def test_a_ring_is_as_fast_as_the_slower_direction_of_a_link() -> None:
    state = cluster(1e9, racks_s=1e9)
    slower = [replace(link, source=link.target, target=link.source) for link in state.cluster.links]
    for name, slow_s in (("n-0", 2e8), ("x", 1e8)):
        back = [
            replace(link, bandwidth_bytes_per_s=slow_s) if link.target == name else link for link in slower
        ]
        both = SchedulingSnapshot(replace(state.cluster, links=(*state.cluster.links, *back)))
        assert network_bytes_per_s(both, ("n-0", "n-2")) == slow_s


def test_a_node_without_links_has_ten_gigabits() -> None:
    bare = SchedulingSnapshot(replace(cluster().cluster, links=()))
    assert network_bytes_per_s(bare, ("n-0", "n-1")) == 1.25e9


def test_the_constant_serves_jobs_of_unknown_gradients() -> None:
    unknown = Workload("unknown")
    assert factor((0, 2), cluster(), workload=unknown) == 1.25
    assert factor((0, 4), cluster(), workload=unknown) == 1.25**2
    with pytest.raises(InputError, match="unknown"):
        RingScatter(0.9)


def test_the_truth_runs_at_the_scattered_pace() -> None:
    state = cluster()
    truth = SetTruth(
        TablePredictor({("v100", GANG): Solo(0.5)}, {}), scatter=RingScatter(1.0, BYTES.get).slowdown
    )
    job = JobState(TraceJob("gang", GANG, 50.0, gpus=2), 0, 50.0, gpus=(0, 2))
    state.occupy(job)
    assert truth.segment(job, state).rate == pytest.approx(2.0 / factor((0, 2), state))


def test_what_freezing_costs_in_progress_makes_no_step_longer() -> None:
    state = cluster()
    plain = SetTruth(
        TablePredictor({("v100", GANG): Solo(0.5)}, {}), scatter=RingScatter(1.0, BYTES.get).slowdown
    )
    rate = np.zeros((len(SIZES), 1))
    rate[SIZES.index(2)] = 2.0
    agent = ElasticAgent((0,), rate, np.array([0.0, 1.0]), np.full((2, 1), 0.5), 1.0)
    job = JobState(
        TraceJob("gang", GANG, 50.0, gpus=2), 0, 50.0, gpus=(0, 2), checkpoint_left=50.0, agent=agent
    )
    state.occupy(job)
    half = 0.5 * plain.segment(job, state).rate
    assert ElasticTruth(plain=plain).segment(job, state).rate == pytest.approx(half)


def test_gradients_are_those_of_the_unfrozen_layers() -> None:
    resnet = Workload.parse("resnet18-cifar:batch_size=64")
    whole = gradient_bytes_of(resnet)
    assert whole == pytest.approx(11.2e6 * 4, rel=0.01)  # 11.2 million parameters
    frozen = gradient_bytes_of(replace(resnet, frozen_prefix=20))
    assert frozen is not None
    assert 0 < frozen < whole
    assert gradient_bytes_of(GANG) is None
