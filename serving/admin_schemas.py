"""Response schemas for served models and the audit log, shown in OpenAPI."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ServingModel(Struct):
    version: str
    tag: str
    since: float


class ModelState(Struct):
    """The version in service; null if there is none."""

    serving: ServingModel | None
    source: str
    last_error: str | None


class ModelEvent(Struct):
    id: int
    version: str
    event: Literal["loaded", "refused", "failed"]
    detail: str
    at: float


class ModelEventPage(Struct):
    items: list[ModelEvent]
    next: str | None


class AuditEntry(Struct):
    """A request to a route with scope `admin`."""

    id: int
    at: float
    caller: str
    action: str
    status: int
    request_id: str


class AuditPage(Struct):
    items: list[AuditEntry]
    next: str | None
