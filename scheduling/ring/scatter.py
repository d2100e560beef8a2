"""What it costs a gang to span nodes: its ring-all-reduce over the network against one inside a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from predictor.freezing.throughput import NETWORK_BYTES_PER_S
from profiling.devices import get_device
from profiling.errors import InputError, UnknownNameError
from profiling.workload import Workload
from scheduling.core.job import JobState
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.ring.model import RingCluster, RingJob, ring_timing

# Reading two gradients and writing their sum.
_ACCESSES = 3


class RingScatter:
    """Factor on the step time of a gang that spans nodes, by equation 8 of the ring model.

    The measured step is the gang's on one node, of which the exchange over the GPU type's own links is assumed to
    come on top, on one node as on several, so only the difference counts. Rings of other jobs on the same links
    are not counted.

    Args:
        unknown: the factor if the gradients or the links of a job are unknown; squared if its nodes are not under
            one switch.
        gradient_bytes: bytes that a step of a workload exchanges; None if unknown.
    """

    def __init__(
        self, unknown: float, gradient_bytes: Callable[[Workload], float | None] | None = None
    ) -> None:
        if not unknown >= 1:
            raise InputError("unknown is out of range", expected="a factor from 1", got=unknown)
        self.unknown = unknown
        self._gradient_bytes = cache(gradient_bytes or gradient_bytes_of)

    def slowdown(self, job: JobState, snapshot: SchedulingSnapshot, step_time_s: float) -> float:
        """Factor from 1; exactly 1 on one node.

        Args:
            step_time_s: seconds per step on the gang's GPUs, without any exchange.
        """
        gpus = job.gpus
        nodes = sorted({int(snapshot.node_of[gpu]) for gpu in gpus})
        if len(nodes) < 2:
            return 1.0
        gradient_bytes = self._gradient_bytes(current_workload(job))
        try:
            device = get_device(snapshot.devices[gpus[0]])
        except UnknownNameError:
            gradient_bytes = None
        if gradient_bytes is None:
            switches = {int(snapshot.switch_of[node]) for node in nodes}
            return float(self.unknown ** (1 + (len(switches) > 1)))
        names = tuple(dict.fromkeys(snapshot.names[snapshot.node_gpus[node][0]][0] for node in nodes))
        inside = max(device.nvlink_bytes_per_s, device.pcie_bytes_per_s)
        rates: dict[tuple[str, ...], float] = snapshot.derived("ring-scatter", dict)
        if names not in rates:
            rates[names] = network_bytes_per_s(snapshot, names)
        cluster = RingCluster(
            min(inside, rates[names]), inside, device.memory_bandwidth_bytes_per_s / _ACCESSES,
            alpha=0.0, xi1=1.0, xi2=0.0, servers=(len(gpus),) * 2,
        )  # fmt: skip
        ring = RingJob(job.id, len(gpus), gradient_bytes, step_time_s, 1, 0.0, 1)
        here, scattered = (
            ring_timing(cluster, ring, placement, 1.0).iteration_time_s
            for placement in ({0: len(gpus)}, {0: 1, 1: len(gpus) - 1})
        )
        return scattered / here


def network_bytes_per_s(snapshot: SchedulingSnapshot, nodes: tuple[str, ...]) -> float:
    """Rate of a ring over these nodes: that of the slowest node's fastest link, or of a switch's on the way.

    A ring both sends and receives, so a link that is slower in one direction is as fast as that one. A node without
    links has 10 Gbit/s. The links between switches count if the nodes are under several.
    """
    names = {node.name for node in snapshot.cluster.nodes}
    fastest: dict[str, dict[str, float]] = {}
    above: dict[str, dict[str, float]] = {}
    switch: dict[str, str] = {}
    for link in snapshot.cluster.links:
        for end, other, way in ((link.source, link.target, "out"), (link.target, link.source, "in")):
            links = above if end not in names and other not in names else fastest
            rates = links.setdefault(end, {})
            rates[way] = max(rates.get(way, 0.0), link.bandwidth_bytes_per_s)
            if end in names and other not in names:
                switch.setdefault(end, other)
    under = {switch[node] for node in nodes if node in switch}
    uplinks = [above[name] for name in under if name in above] if len(under) > 1 else []
    ends = [*(fastest.get(node, {"": NETWORK_BYTES_PER_S}) for node in nodes), *uplinks]
    return float(np.min([rate for rates in ends for rate in rates.values()]))


def gradient_bytes_of(workload: Workload) -> float | None:
    """Bytes of the gradients of a workload's unfrozen layers, from its graph; None if it has none."""
    from predictor.examples.featurizer import shared_featurizer

    try:
        graph = shared_featurizer().graph(workload.without_solo())
    except (InputError, UnknownNameError):
        return None
    parameters = np.array([op.parameter_bytes * op.repeat for op in graph.operators])
    layer = np.array([op.layer_index for op in graph.operators])
    if not workload.frozen_prefix or not parameters.any():
        return graph.gradient_bytes
    kept = parameters[(layer < 0) | (layer >= workload.frozen_prefix)].sum() / parameters.sum()
    return float(graph.gradient_bytes * kept)
