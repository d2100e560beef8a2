"""Which jobs a caller may name: zoo models and registered graphs; never paths or code."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from functools import lru_cache

from sqlalchemy import select

from profiling.devices import get_device
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import ColocationSet, Workload
from serving.service import Service
from serving.store.tables import WorkloadRow

GRAPH_PREFIX = "graph:"


@lru_cache(maxsize=1)
def zoo() -> frozenset[str]:
    """Names of the zoo."""
    from profiling.zoo import zoo_names

    return frozenset(zoo_names())


def unknown_graphs(service: Service, workloads: Iterable[Workload]) -> set[str]:
    """Hashes of the graphs that this process has not loaded yet.

    Raises:
        UnknownNameError: a model is neither in the zoo nor a registered graph's name.
    """
    missing = set()
    for workload in workloads:
        model = workload.model
        if model in zoo() or model in service.graphs:
            continue
        if not model.startswith(GRAPH_PREFIX):
            raise UnknownNameError(
                "unknown model",
                expected="a zoo name, or graph:HASH of a workload registered with POST /v1/workloads",
                got=repr(model[:200]),
            )
        missing.add(model.removeprefix(GRAPH_PREFIX))
    return missing


async def admit(service: Service, workloads: Iterable[Workload], devices: Iterable[str] = ()) -> None:
    """Check that devices and models are known, and load registered graphs that this process needs.

    Raises:
        UnknownNameError: unknown device or model.
    """
    for device in devices:
        get_device(device)
    missing = unknown_graphs(service, workloads)
    if missing:
        await service.stored(load_graphs, service, missing)


async def admit_sets(service: Service, sets: list[ColocationSet]) -> None:
    """`admit` for whole sets."""
    await admit(service, {w for s in sets for w in s.workloads}, {s.device for s in sets})


def load_graphs(service: Service, hashes: set[str]) -> None:
    """Make stored graphs known to this process. Raises `UnknownNameError` for one that is not registered."""
    with service.store.read() as session:
        rows = {r.hash: r for r in session.scalars(select(WorkloadRow).where(WorkloadRow.hash.in_(hashes)))}
    for key in hashes:
        if key not in rows:
            raise UnknownNameError(
                "graph is not registered",
                expected="graph:HASH of /v1/workloads",
                got=repr(GRAPH_PREFIX + key[:80]),
            )
        make_known(service, ComputationGraph.from_dict(json.loads(zlib.decompress(rows[key].graph))))


def make_known(service: Service, graph: ComputationGraph) -> None:
    """Let this process know a stored graph."""
    service.graphs[GRAPH_PREFIX + graph.content_hash] = graph
