"""Graphs of registered workloads, as they are stored."""

from __future__ import annotations

import json
import zlib
from typing import Any

from sqlalchemy import select

from profiling.errors import InputError, UnknownNameError
from profiling.graph import ComputationGraph
from serving.store.engine import Store
from serving.store.tables import WorkloadRow, parts


def packed(graph: ComputationGraph) -> bytes:
    """A graph as stored: compressed JSON."""
    return zlib.compress(json.dumps(graph.to_dict(), separators=(",", ":"), allow_nan=False).encode(), 6)


def unpacked(stored: bytes) -> Any:
    """What `ComputationGraph.to_dict` wrote. Raises `UnknownNameError` if it is damaged."""
    try:
        return json.loads(zlib.decompress(stored))
    except (zlib.error, ValueError) as error:
        raise _damaged(str(error)) from None


def read_graphs(store: Store, hashes: set[str]) -> dict[str, ComputationGraph | UnknownNameError]:
    """The stored graphs by hash, without those that are not registered.

    The value is the error if a graph is damaged: one must not keep the others from being read.

    Raises:
        UnavailableError: the store does not answer.
    """
    asked, rows = sorted(hashes), dict[str, bytes]()
    with store.read() as session:
        for part in parts(asked):
            query = select(WorkloadRow.hash, WorkloadRow.graph).where(WorkloadRow.hash.in_(part))
            for key, stored in session.execute(query):
                rows[key] = stored
    return {key: _graph(stored) for key, stored in rows.items()}


def _graph(stored: bytes) -> ComputationGraph | UnknownNameError:
    try:
        return ComputationGraph.from_dict(unpacked(stored))
    except UnknownNameError as error:
        return error
    except InputError as error:
        return _damaged(error.message)


def _damaged(got: str) -> UnknownNameError:
    return UnknownNameError(
        "the stored graph is damaged", got=got.rstrip("."), hint="register the workload again"
    )
