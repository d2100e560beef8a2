"""From workloads and devices to the numbers that the network reads; each graph is read once and each result kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from models.features import (
    Demand,
    Floats,
    OperatorTimes,
    demand_of,
    device_features,
    operator_columns,
    operator_times,
    workload_features,
)
from models.graph_tensors import GraphTensors, tensors_of
from profiling.devices import DeviceSpec, get_device
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

GraphSource = Callable[[Workload], ComputationGraph]


# Compared by identity, so that what is derived from one can be kept in caches; the featurizer makes each once.
@dataclass(frozen=True, slots=True, eq=False)
class JobOnDevice:
    """One workload on one device, without regard to solo measurements.

    Attributes:
        workload: options resolved to the graph's (batch size filled in), solo measurements dropped.
        graph: captured without freezing.
        columns, times: operator columns [8, N] and roofline times.
        demand: roofline demand of a step, with the frozen prefix masked.
        features: [len(WORKLOAD_FEATURES)].
    """

    workload: Workload
    device: DeviceSpec
    graph: ComputationGraph
    columns: Floats
    times: OperatorTimes
    demand: Demand
    features: Floats

    def tensors(self) -> GraphTensors:
        """The operator graph as the encoder reads it."""
        return tensors_of(self.graph, self.device, self.workload, self.columns, self.times)


class Featurizer:
    """Caches graphs and what is derived from them.

    Args:
        graph_source: gives the graph of a workload; the default captures zoo models.
    """

    def __init__(self, graph_source: GraphSource | None = None) -> None:
        self.graph_source = graph_source
        self._graphs: dict[Workload, tuple[ComputationGraph, Floats]] = {}
        self._jobs: dict[tuple[Workload, str], JobOnDevice] = {}
        self._devices: dict[str, Floats] = {}

    def graph(self, workload: Workload) -> tuple[ComputationGraph, Floats]:
        """Graph without freezing, and its operator columns."""
        key = workload.captured()
        if key not in self._graphs:
            source = self.graph_source
            if source is None:
                from profiling.capture import graph_for

                source = graph_for
            graph = source(key)
            self._graphs[key] = graph, operator_columns(graph)
        return self._graphs[key]

    def job(self, workload: Workload, device_name: str) -> JobOnDevice:
        """Demand and features of `workload` on a device.

        Raises:
            UnknownNameError: the model or the device is not known.
            InputError: more layers are frozen than the model has.
        """
        plain = workload.without_solo()
        key = (plain, device_name)
        if key not in self._jobs:
            device = get_device(device_name)
            graph, columns = self.graph(plain)
            if graph.layers and plain.frozen_prefix > len(graph.layers):
                raise InputError(
                    f"{plain.model} cannot freeze so many layers",
                    expected=f"a frozen_prefix from 0 to {len(graph.layers)}",
                    got=plain.frozen_prefix,
                )
            resolved = replace(plain, batch_size=plain.batch_size or graph.batch_size)
            times = operator_times(columns, device, plain.precision)
            demand = demand_of(graph, columns, times, device, resolved)
            features = workload_features(graph, device, resolved, demand)
            self._jobs[key] = JobOnDevice(resolved, device, graph, columns, times, demand, features)
        return self._jobs[key]

    def device(self, name: str) -> Floats:
        """[len(DEVICE_FEATURES)]."""
        if name not in self._devices:
            self._devices[name] = device_features(get_device(name))
        return self._devices[name]


@cache
def shared_featurizer() -> Featurizer:
    """One cache of graphs for all folds of a process."""
    return Featurizer()
