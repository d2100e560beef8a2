"""Turns workloads and devices into network inputs; each graph is read once and every result cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from models.cost import CostModel, JobCost, default_cost_model
from models.features import (
    Demand,
    Floats,
    demand_of,
    device_features,
    workload_features,
)
from models.graph_tensors import GraphTensors, tensors_of
from profiling.capture.options import as_captured
from profiling.devices import DeviceSpec, get_device
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

GraphSource = Callable[[Workload], ComputationGraph]


# Compared by identity, so that derived values can be cached; the featurizer creates each once.
@dataclass(frozen=True, slots=True, eq=False)
class JobOnDevice:
    """One workload on one device, ignoring solo measurements.

    Attributes:
        workload: options resolved to the graph's (`as_captured`), solo measurements dropped.
        graph: as captured; the workload states the frozen prefix.
        cost: of a step, with the frozen prefix masked.
        demand: demand of the step on the device.
        features: [len(WORKLOAD_FEATURES)].
    """

    workload: Workload
    device: DeviceSpec
    graph: ComputationGraph
    cost: JobCost
    demand: Demand
    features: Floats

    def tensors(self) -> GraphTensors:
        """The operator graph as input of the encoder."""
        return tensors_of(self.graph, self.cost.operators, self.device.memory_bandwidth_bytes_per_s)


class Featurizer:
    """Caches graphs and everything derived from them.

    Args:
        graph_source: provides the graph of a workload; by default, zoo models are captured.
        cost_model: predicts a job's demand on a device; the shipped one by default.
    """

    def __init__(self, graph_source: GraphSource | None = None, cost_model: CostModel | None = None) -> None:
        self.graph_source = graph_source
        self._cost_model = cost_model
        self._graphs: dict[Workload, ComputationGraph] = {}
        self._jobs: dict[tuple[Workload, str], JobOnDevice] = {}
        self._devices: dict[str, Floats] = {}

    @property
    def cost_model(self) -> CostModel:
        """Loaded on first use if it is the shipped one."""
        if self._cost_model is None:
            self._cost_model = default_cost_model()
        return self._cost_model

    def graph(self, workload: Workload) -> ComputationGraph:
        """Graph without freezing."""
        key = workload.captured()
        if key not in self._graphs:
            source = self.graph_source
            if source is None:
                from profiling.capture import graph_for

                source = graph_for
            self._graphs[key] = source(key)
        return self._graphs[key]

    def job(self, workload: Workload, device_name: str) -> JobOnDevice:
        """Demand and features of `workload` on a device.

        Raises:
            UnknownNameError: unknown model or device.
            InputError: more layers are frozen than the model has, or the device lacks the precision.
        """
        plain = workload.without_solo()
        key = (plain, device_name)
        if key not in self._jobs:
            device = get_device(device_name)
            graph = self.graph(plain)
            resolved = as_captured(plain, graph)
            if resolved.precision != plain.precision and not device.supports(resolved.precision):
                raise InputError(
                    f"{plain.model[:18]} was captured in {resolved.precision.upper()}, which {device.name} lacks",
                    expected="a GPU type that has it",
                    hint=f"with precision={resolved.precision} in the SPEC, placement leaves out types without it",
                )
            cost = self.cost_model.cost(graph, device, resolved)
            demand = demand_of(graph, cost, device, resolved)
            features = workload_features(graph, device, resolved, demand)
            self._jobs[key] = JobOnDevice(resolved, device, graph, cost, demand, features)
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
