"""Structured logs: one JSON object per line on stderr, without secrets."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_SECRET = ("authorization", "token", "password", "secret", "database_url", "cookie")
# Without local variables, because they contain request headers, including tokens, and the store's address.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def _without_secrets(_: Any, __: str, event: Any) -> Any:
    event.pop("color_message", None)  # uvicorn's message again, with terminal codes
    for key in event:
        if any(word in key.lower() for word in _SECRET):
            event[key] = "***"
    return event


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _without_secrets,
]
# One list for all calls of `configure`: cached loggers keep the one that they were first used with, and
# structlog's `capture_logs` changes the configured one in place.
_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.stdlib.add_logger_name,
    *_SHARED,
    _TRACEBACKS,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current `sys.stderr`, because a program that embeds the service may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(level: str = "info") -> None:
    """Send structlog and the standard library's logs to stderr as JSON."""
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Stderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *_SHARED],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True
    for name in ("alembic", "sqlalchemy", "mlflow"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
