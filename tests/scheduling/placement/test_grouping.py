"""Incrementally updated groups of GPUs give the same decisions as new ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from profiling.errors import UnknownNameError
from profiling.workload import Workload
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant, changed_nodes
from scheduling.placement.grouping import GroupedGpus
from scheduling.placement.place import Placer
from scheduling.placement.ranking import PlacementConfig
from tests.serving.table import TablePredictor

SPECS = ("resnet18-cifar", "lstm-wikitext2", "vgg11-cifar", "resnet18-cifar:batch_size=9")
JOBS = [Workload.parse(spec) for spec in SPECS]
DEVICES = ("v100", "p100")


def cluster(nodes: int) -> ClusterSnapshot:
    gpus = tuple(Gpu(str(g), DEVICES[g % 2]) for g in range(4))
    return ClusterSnapshot(tuple(Node(f"n{k}", gpus) for k in range(nodes)))


def with_gpu(snapshot: ClusterSnapshot, node: int, gpu: int, changed: Gpu) -> ClusterSnapshot:
    nodes = list(snapshot.nodes)
    gpus = list(nodes[node].gpus)
    gpus[gpu] = changed
    nodes[node] = replace(nodes[node], gpus=tuple(gpus))
    return ClusterSnapshot(tuple(nodes))


@pytest.mark.parametrize("objective", ["jct", "makespan", "interference"])
def test_incremental_groups_equal_new_ones(objective: str) -> None:
    chance = random.Random(3)
    snapshot, placer = cluster(5), Placer(TablePredictor())
    config = PlacementConfig(objective=objective, max_slowdown=3.0)
    for number in range(150):
        node, gpu = chance.randrange(5), chance.randrange(4)
        old = snapshot.nodes[node].gpus[gpu]
        kind = chance.randrange(8)
        if kind < 5:  # mostly they come, so that GPUs get full
            tenant = Tenant(chance.choice(JOBS), float(chance.randint(1, 50)), f"t{number}")
            new = replace(old, tenants=(*old.tenants[:5], tenant))
        elif kind < 7:
            new = replace(old, tenants=old.tenants[1:])
        else:
            new = replace(old, device=chance.choice(DEVICES))
        snapshot = with_gpu(snapshot, node, gpu, new)
        if chance.random() < 0.3:
            continue  # several changes between two decisions
        job, steps = chance.choice(JOBS), float(chance.randint(1, 100))
        expected = Placer(placer.cache).place(job, steps, snapshot, config)
        assert placer.place(job, steps, snapshot, config) == expected


def test_only_changed_gpus_are_examined() -> None:
    cache = SetCache(TablePredictor())
    before = cluster(50)
    grouped = GroupedGpus(before, cache)
    changed = replace(before.nodes[7].gpus[2], tenants=(Tenant(JOBS[0], 5.0),))
    after = with_gpu(before, 7, 2, changed)
    assert changed_nodes(before, after) == [7]
    assert grouped.follow(after)
    assert grouped.candidates.present.sum() == 1
    assert len(grouped.candidates.devices) == 3
    assert grouped.follow(before)
    assert not grouped.candidates.present.any(), "a state that no GPU is in is not waited for"


def test_another_cluster_is_grouped_from_scratch() -> None:
    cache = SetCache(TablePredictor())
    before = cluster(8)
    more, less = ClusterSnapshot((*before.nodes, Node("new"))), ClusterSnapshot(before.nodes[1:])
    moved = ClusterSnapshot(before.nodes[::-1])
    fewer = ClusterSnapshot((replace(before.nodes[0], gpus=before.nodes[0].gpus[1:]), *before.nodes[1:]))
    for other in (more, less, moved, fewer):
        assert not GroupedGpus(before, cache).follow(other)
    assert GroupedGpus(before, cache).follow(cluster(8)), "the same cluster, read again"


def test_a_failed_prediction_leaves_a_consistent_state() -> None:
    class Failing(TablePredictor):
        fails = False

        def predict_arrays(self, sets):  # type: ignore[no-untyped-def]
            if self.fails:
                raise UnknownNameError("unknown model")
            return super().predict_arrays(sets)

    predictor = Failing()
    placer, snapshot = Placer(predictor), cluster(8)
    placer.place(JOBS[0], 5.0, snapshot)
    tenants = (Tenant(JOBS[1], 5.0), Tenant(JOBS[2], 5.0))
    changed = with_gpu(snapshot, 0, 0, replace(snapshot.nodes[0].gpus[0], tenants=tenants))
    predictor.fails = True
    with pytest.raises(UnknownNameError):
        placer.place(JOBS[0], 5.0, changed)
    predictor.fails = False
    assert placer.place(JOBS[0], 5.0, changed) == Placer(predictor).place(JOBS[0], 5.0, changed)
