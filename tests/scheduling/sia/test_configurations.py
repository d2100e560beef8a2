from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.batches import BatchRange
from scheduling.core.job import JobState, TraceJob
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.sia.configurations import Configuration, place_configurations
from scheduling.simulator.engine import SimulationConfig, simulate
from tests.scheduling.tables import JOBS, table

TABLE = table()


@pytest.mark.parametrize("policy", ["sia", "sia-packed"])
@pytest.mark.parametrize("nodes", [(4, 2, 2), (3, 3, 2), (8,), (2, 2, 2, 2), (4, 1, 1, 1, 1)])
@pytest.mark.parametrize("size", [3, 5, 7, 8])
def test_a_gang_runs_on_nodes_of_any_sizes(policy: str, nodes: tuple[int, ...], size: int) -> None:
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": f"n{k}", "gpus": [{"device": "v100", "count": n}]} for k, n in enumerate(nodes)]}
    )
    jobs = [
        TraceJob("rigid", JOBS[0], 1000.0, gpus=size),
        TraceJob("range", JOBS[1], 1000.0, gpus=size, min_gpus=size, max_gpus=size),
        TraceJob("small", JOBS[2], 1000.0),
    ]
    result = simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE), TABLE)
    assert all(job.finished_s is not None for job in result.jobs)
    # Each keeps its GPUs from one round to the next.
    assert np.sum([job.restarts for job in result.jobs]) <= 3


@pytest.mark.parametrize("policy", ["sia", "sia-packed"])
@pytest.mark.parametrize(
    ("nodes", "size"), [((4, 4, 4, 4), 8), ((4, 4, 4, 4), 6), ((3, 3, 3, 3), 6), ((2, 3, 3, 2), 5)]
)
def test_a_gang_stays_under_one_switch(policy: str, nodes: tuple[int, ...], size: int) -> None:
    """The first and last node are under one switch, the two between them under the other."""
    body = {
        "nodes": [{"name": f"n{k}", "gpus": [{"device": "v100", "count": n}]} for k, n in enumerate(nodes)],
        "links": [
            {"source": f"n{k}", "target": "outer" if k in (0, 3) else "inner", "bandwidth_bytes_per_s": 1e9}
            for k in range(4)
        ],
    }
    cluster = ClusterSnapshot.from_mapping(body)
    jobs = [TraceJob(f"j{k}", JOBS[k], 1000.0, gpus=size) for k in range(2)]
    config = SimulationConfig(record=True)
    result = simulate(jobs, cluster, get_policy(policy), SetTruth(TABLE), TABLE, config)
    names = [node.name for node, _ in cluster.gpus()]
    for number in range(2):
        where = {names[i.gpu] for i in result.intervals if i.job == number}
        assert where <= {"n0", "n3"} or where <= {"n1", "n2"}


def test_the_rest_of_a_gang_decides_its_switch_too() -> None:
    """Alone under its switch, the first node would hold the whole node of a gang of seven, but not the rest."""
    names = [f"n{k}" for k in range(4)]
    body = {
        "nodes": [{"name": name, "gpus": [{"device": "v100", "count": 4}]} for name in names],
        "links": [
            {"source": name, "target": "one" if name == "n0" else "three", "bandwidth_bytes_per_s": 1e9}
            for name in names
        ],
    }
    snapshot = SchedulingSnapshot(ClusterSnapshot.from_mapping(body))
    gang = JobState(TraceJob("gang", JOBS[0], 100.0, gpus=7), 0, 100.0)
    gpus = place_configurations(snapshot, {0: (gang, Configuration(2, 7, 0))})[0]
    assert len(gpus) == 7
    assert {snapshot.names[gpu][0] for gpu in gpus} <= set(names[1:])


@pytest.mark.parametrize("policy", ["sia", "sia-packed"])
def test_a_range_of_which_only_the_request_is_possible(policy: str) -> None:
    def run(job: TraceJob, predictor: TablePredictor, nodes: dict[str, int]) -> None:
        body = {
            "nodes": [{"name": d, "count": 2, "gpus": [{"device": d, "count": n}]} for d, n in nodes.items()]
        }
        cluster = ClusterSnapshot.from_mapping(body)
        result = simulate([job], cluster, get_policy(policy), SetTruth(predictor), predictor)
        assert result.jobs[0].finished_s is not None

    # On nodes of three, the range holds only six GPUs, for which the largest batch is too small.
    tuned = Workload("m", batch_size=8)
    batches = BatchRange((8, 16), 32, 1.0)
    solo = TablePredictor({("v100", replace(tuned, batch_size=b)): Solo(1.0) for b in (8, 16)}, {})
    run(TraceJob("tunes", tuned, 100.0, gpus=4, max_gpus=8, batches=batches), solo, {"v100": 3})
    # Nodes of four are of a type on which the job does not fit.
    large = TablePredictor(
        {(d, JOBS[0]): Solo(1.0, 10e9) for d in ("v100", "k80")}, {}, {"v100": 16e9, "k80": 8e9}
    )
    run(TraceJob("large", JOBS[0], 100.0, gpus=4, max_gpus=5), large, {"v100": 3, "k80": 4})


def test_packing_anew_moves_no_job_that_may_not_be_stopped() -> None:
    node = {"name": "n", "count": 2, "gpus": [{"device": "v100", "count": 2}]}
    snapshot = SchedulingSnapshot(ClusterSnapshot.from_mapping({"nodes": [node]}))

    def place(preemptible: bool) -> dict[int, tuple[int, ...]]:
        held = [
            JobState(TraceJob(f"j{k}", JOBS[0], 1.0, preemptible=preemptible), k, 1.0, gpus=(2 * k,))
            for k in range(2)
        ]
        wide = JobState(TraceJob("wide", JOBS[0], 1.0, gpus=2), 2, 1.0)
        one, two = Configuration(1, 1, 0), Configuration(1, 2, 0)
        return place_configurations(snapshot, {0: (held[0], one), 1: (held[1], one), 2: (wide, two)})

    assert place(preemptible=False) == {0: (0,), 1: (2,)}
    assert len(place(preemptible=True)) == 3
