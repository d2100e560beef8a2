"""Registered workloads: computation graphs by their content hash."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from sqlalchemy import select

from profiling.errors import ConflictError, InputError, LimitError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import REGISTERED, Workload
from profiling.zoo import is_model
from serving.handlers.jobs import forget, unknown_model
from serving.service import Service
from serving.store.graphs import packed, unpacked
from serving.store.tables import TenantRow, WorkloadRow

# Most edges of a graph, per operator that it may have.
_EDGES = 4


async def register_zoo(service: Service, workload: Workload) -> tuple[dict[str, Any], bool]:
    """Capture a zoo model with the job's options and store its graph.

    Returns the entry and whether it is new.

    Raises:
        UnknownNameError: the model is not in the zoo. CotenantError: the capture fails or exceeds its limits,
            too many wait, or the store does not respond.
    """
    if not is_model(workload.model):
        raise unknown_model(workload.model)
    plain = workload.captured()  # freezing is an option of jobs, not of graphs
    graph = await service.batcher.encoding.run(service.captures.graph, plain)
    return await service.stored(keep, service, graph, str(plain), "zoo")


async def register_onnx(
    service: Service,
    data: bytes,
    name: str,
    batch_size: int | None = None,
    sequence_length: int | None = None,
) -> tuple[dict[str, Any], bool]:
    """Read an uploaded ONNX file in a resource-limited process, and store its graph.

    Args:
        batch_size, sequence_length: bind the model's dynamic dimensions.

    Raises:
        InputError: the upload is empty or not a supported ONNX file. CotenantError: it exceeds a limit, too
            many wait, or the store does not respond.
    """
    if not data:
        raise InputError("the upload is empty", expected="an ONNX file")
    from profiling.capture import OnnxLimits, capture_onnx

    config = service.config
    limits = OnnxLimits(
        file_bytes=config.upload_bytes,
        nodes=config.graph_operators,
        seconds=config.parse_s,
        memory_bytes=config.parse_memory_bytes,
    )
    read = partial(
        capture_onnx, data, batch_size=batch_size, sequence_length=sequence_length, name=name, limits=limits
    )
    graph = await service.batcher.parsing.run(read)
    return await service.stored(keep, service, graph, name, "onnx")


async def register_graph(
    service: Service, body: dict[str, Any], name: str | None
) -> tuple[dict[str, Any], bool]:
    """Store a graph written by `cotenant capture -o`.

    Returns the entry and whether it is new.

    Raises:
        InputError: it is malformed, has no operators, or has several edges between two operators. LimitError:
            it is too large. CotenantError: too many wait, or the store does not respond.
    """
    graph = await service.batcher.bulk.run(ComputationGraph.from_dict, body)
    if not graph.operators:
        raise InputError("the graph has no operators", expected="at least one")
    most = service.config.graph_operators
    for what, items, limit in (
        ("operators", graph.operators, most),
        ("layers", graph.layers, most),
        ("edges", graph.edges, _EDGES * most),
    ):
        if len(items) > limit:
            raise LimitError("the graph is too large", expected=f"at most {limit} {what}", got=len(items))
    pairs = {(edge.source, edge.target) for edge in graph.edges}
    if len(pairs) < len(graph.edges):
        raise InputError(
            "the graph has several edges between the same operators",
            expected="one edge for each pair of operators",
            got=f"{len(graph.edges)} edges of {len(pairs)} pairs",
        )
    return await service.stored(keep, service, graph, name or graph.name, "graph")


def keep(service: Service, graph: ComputationGraph, name: str, kind: str) -> tuple[dict[str, Any], bool]:
    """Store `graph`; the same content is stored once. Returns the entry and whether it is new.

    A damaged graph is replaced.
    """
    key, stored = graph.content_hash, packed(graph)
    with service.store.write() as session:
        row = session.get(WorkloadRow, key)
        new = row is None
        if row is None:
            row = WorkloadRow(
                hash=key,
                name=name[:200],
                kind=kind,
                summary=graph.summary(),
                graph=stored,
                created_at=service.store.now(session),
            )
            session.add(row)
        elif row.graph != stored:
            row.graph = stored
        entry = entry_of(row)
    service.make_known(REGISTERED + key, graph)
    return entry, new


def entry_of(row: WorkloadRow) -> dict[str, Any]:
    """A registered workload as returned to callers; `workload` is the name to use in jobs."""
    return {
        "workload": REGISTERED + row.hash,
        "hash": row.hash,
        "name": row.name,
        "kind": row.kind,
        "created_at": row.created_at,
        "summary": row.summary,
    }


def list_workloads(service: Service, after: str | None, limit: int) -> list[dict[str, Any]]:
    """Entries by hash, starting after `after`."""
    query = select(WorkloadRow).order_by(WorkloadRow.hash).limit(limit)
    if after:
        query = query.where(WorkloadRow.hash > after)
    with service.store.read() as session:
        return [entry_of(row) for row in session.scalars(query)]


def get_workload(service: Service, key: str) -> dict[str, Any]:
    """One entry. Raises `UnknownNameError`."""
    with service.store.read() as session:
        return entry_of(_row(session, key))


def get_graph(service: Service, key: str) -> dict[str, Any]:
    """The stored graph. Raises `UnknownNameError`, also if it is damaged."""
    with service.store.read() as session:
        return cast(dict[str, Any], unpacked(_row(session, key).graph))


def delete_workload(service: Service, key: str) -> None:
    """Delete a graph; other processes drop it within two seconds.

    Raises:
        UnknownNameError: no such workload. ConflictError: a tenant of the stored cluster uses it.
    """
    with service.store.write() as session:
        row = _row(session, key)
        users = session.scalars(
            select(TenantRow).where(TenantRow.model == REGISTERED + row.hash).order_by(TenantRow.id).limit(6)
        ).all()
        if users:
            named = [f"{t.placement_id or t.job_id or 'a tenant'} on {t.node}/{t.gpu}" for t in users]
            raise ConflictError(
                "the workload is in use", expected="no running tenant",
                got=", ".join(named[:5]) + (", ..." if len(named) > 5 else ""), hint="end these tenants "
                "first",
            )  # fmt: skip
        session.delete(row)
        deleted = row.hash
    forget(service, deleted)


def _row(session: Any, key: str) -> WorkloadRow:
    row = session.get(WorkloadRow, key.removeprefix(REGISTERED))
    if row is None:
        raise UnknownNameError(
            "workload is not registered", expected="a hash of /v1/workloads", got=repr(key[:80])
        )
    return row
