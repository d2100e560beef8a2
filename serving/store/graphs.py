"""Graphs of registered workloads, read back."""

from __future__ import annotations

import json
import zlib

from sqlalchemy import select

from profiling.graph import ComputationGraph
from serving.store.engine import Store
from serving.store.tables import WorkloadRow

_AT_ONCE = 500


def read_graphs(store: Store, hashes: set[str]) -> dict[str, ComputationGraph]:
    """The stored graphs by hash, without those that are not registered.

    Raises:
        UnavailableError: the store does not answer.
    """
    asked, packed = sorted(hashes), dict[str, bytes]()
    with store.read() as session:
        for first in range(0, len(asked), _AT_ONCE):
            part = WorkloadRow.hash.in_(asked[first : first + _AT_ONCE])
            for key, graph in session.execute(select(WorkloadRow.hash, WorkloadRow.graph).where(part)):
                packed[key] = graph
    return {
        key: ComputationGraph.from_dict(json.loads(zlib.decompress(graph))) for key, graph in packed.items()
    }
