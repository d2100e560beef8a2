"""Tables of the store (SQLAlchemy 2). A change here needs a migration under `migrations/versions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, ScalarResult, String, Table, Text, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    """Times are seconds since 1970 (UTC), as everywhere in the project."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


class WorkloadRow(Base):
    """A registered computation graph, identified by its content."""

    __tablename__ = "workloads"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(16))
    summary: Mapped[dict[str, Any]]
    graph: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[float]


class ClusterRow(Base):
    """A single row: the version, advanced by every change of nodes or tenants, and the links.

    `changes` counts all changes, including iterations left, so that readers can fetch only newer rows. From
    `valid_until` on, jobs may have started and ended unnoticed: the scheduler that stored the cluster has not done so
    again. None if none promised to.
    """

    __tablename__ = "cluster"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]
    changes: Mapped[int] = mapped_column(default=0)
    links: Mapped[list[Any]]
    valid_until: Mapped[float | None]


class NodeRow(Base):
    """A node and its GPUs (id, device, sharing), without tenants.

    `revision` is the number of its last change, tenants included; `reported_at` is the time of its last
    report. A deleted node keeps its row for a day, marked `removed`, so that readers of changes notice; then
    `reported_at` is the time of the deletion.
    """

    __tablename__ = "nodes"
    name: Mapped[str] = mapped_column(String(220), primary_key=True)
    position: Mapped[int]
    gpus: Mapped[list[Any]]
    revision: Mapped[int] = mapped_column(index=True, default=0)
    reported_at: Mapped[float] = mapped_column(default=0.0)
    removed: Mapped[bool] = mapped_column(default=False)


class TenantRow(Base):
    """A job on a GPU; `placement_id` if the service placed it.

    `gpu_uuid` is what the job itself says about the GPU that it runs on, empty if nothing.
    """

    __tablename__ = "tenants"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    node: Mapped[str] = mapped_column(String(220), index=True)
    gpu: Mapped[str] = mapped_column(String(200))
    job: Mapped[str] = mapped_column(Text)
    job_id: Mapped[str] = mapped_column(String(200), index=True, default="")
    iterations_left: Mapped[float]
    max_slowdown: Mapped[float | None]
    model: Mapped[str] = mapped_column(String(200), index=True, default="")
    placement_id: Mapped[str | None] = mapped_column(String(32), index=True)
    gpu_uuid: Mapped[str] = mapped_column(String(100), default="", server_default="")


class PlacementRow(Base):
    """A decision and its state: waiting, decided, confirmed, ended or expired."""

    __tablename__ = "placements"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    sequence: Mapped[int] = mapped_column(index=True)
    job: Mapped[str] = mapped_column(Text)
    job_id: Mapped[str] = mapped_column(String(200), default="")
    iterations: Mapped[float | None]
    max_slowdown: Mapped[float | None]
    state: Mapped[str] = mapped_column(String(16), index=True)
    node: Mapped[str | None] = mapped_column(String(220))
    gpu: Mapped[str | None] = mapped_column(String(200))
    decision: Mapped[dict[str, Any]]
    model_version: Mapped[str] = mapped_column(String(200))
    cluster_version: Mapped[int]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    expires_at: Mapped[float | None]


class ObservationRow(Base):
    """A measured step time and its prediction; memory and utilisation of jobs alone only.

    `step_time_s` is None if the set ran out of memory. `corrected_step_time_s` is the prediction with the earlier
    observations; None for rows of earlier versions.
    """

    __tablename__ = "observations"
    __table_args__ = ({"sqlite_autoincrement": True},)  # no number is given twice
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    device: Mapped[str] = mapped_column(String(200))
    sharing: Mapped[str] = mapped_column(String(16))
    jobs: Mapped[list[Any]]
    member: Mapped[int]
    step_time_s: Mapped[float | None]
    memory_bytes: Mapped[float | None]
    utilization_ratio: Mapped[float | None]
    predicted_step_time_s: Mapped[float]
    predicted_lower_s: Mapped[float]
    predicted_upper_s: Mapped[float]
    corrected_step_time_s: Mapped[float | None]
    error_ratio: Mapped[float | None]
    model_version: Mapped[str] = mapped_column(String(200))
    observed_at: Mapped[float] = mapped_column(index=True)
    placement_id: Mapped[str | None] = mapped_column(
        ForeignKey("placements.id", ondelete="SET NULL"), index=True
    )


class CounterRow(Base):
    """A number by which processes notice what a change in the middle of a table does not show them."""

    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    value: Mapped[int]


class ModelEventRow(Base):
    """Events of the served model: loaded, refused, failed."""

    __tablename__ = "model_events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    version: Mapped[str] = mapped_column(String(200))
    event: Mapped[str] = mapped_column(String(16))
    detail: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[float]


class TokenRow(Base):
    """A bearer token by its SHA-256; the token itself is never stored."""

    __tablename__ = "tokens"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class SessionRow(Base):
    """A signed-in browser: the SHA-256 of its cookie, and the name of the token used.

    The name is `bootstrap:DIGEST` for the token from the environment.
    """

    __tablename__ = "sessions"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[str] = mapped_column(String(200), index=True)
    created_at: Mapped[float]
    expires_at: Mapped[float] = mapped_column(index=True)


class AuditRow(Base):
    """A change by an admin: who, what, when, and the response status."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    caller: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(300))
    status: Mapped[int]
    request_id: Mapped[str] = mapped_column(String(64))


class IdempotencyRow(Base):
    """The response to a request with an `Idempotency-Key`, stored in the transaction that did the work."""

    __tablename__ = "idempotency"
    key: Mapped[str] = mapped_column(String(300), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    answer: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    __table_args__ = (Index("ix_idempotency_created_at", "created_at"),)


def table_of(row: type[Base]) -> Table:
    """The table of a mapped class, for statements that bypass the ORM.

    The ORM takes several times as long as SQLite.
    """
    return Base.metadata.tables[row.__tablename__]


MOST_IN_A_QUERY = 500
"""Values that one query may name: databases limit their parameters."""
T = TypeVar("T")


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts, each small enough for one query."""
    for first in range(0, len(values), MOST_IN_A_QUERY):
        yield values[first : first + MOST_IN_A_QUERY]


Listed = TypeVar("Listed", ModelEventRow, ObservationRow, AuditRow)


def newest(session: Session, row: type[Listed], after: int, limit: int) -> ScalarResult[Listed]:
    """A page of rows, newest first; `after` is the last id of the previous page, 0 for the first."""
    query = select(row).order_by(row.id.desc()).limit(limit)
    return session.scalars(query.where(row.id < after) if after else query)
