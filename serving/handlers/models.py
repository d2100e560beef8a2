"""The model in service, and its history."""

from __future__ import annotations

from typing import Any

from serving.service import Service
from serving.store.tables import ModelEventRow, newest


def state(service: Service) -> dict[str, Any]:
    """The version in service (null if none), its source, and the last failure to replace it."""
    serving = service.life.serving
    return {
        "serving": None
        if serving is None
        else {"version": serving.version, "tag": serving.tag, "since": serving.since},
        "source": service.config.model,
        "last_error": service.life.last_error,
    }


async def reload(service: Service) -> dict[str, Any]:
    """Check the source now. Raises `UnavailableError` if the model there was rejected; the old one stays."""
    await service.life.reload(force=True)
    return state(service)


def events(service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    """Model loads, rejections and failures, newest first."""
    with service.store.read() as session:
        return [
            {"id": row.id, "version": row.version, "event": row.event, "detail": row.detail, "at": row.at}
            for row in newest(session, ModelEventRow, after, limit)
        ]
