from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from serving.logs import configure


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore the root logger afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_go_to_the_current_stderr(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service in a thread outlives the stderr that it was started with."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    logging.getLogger("any").info("still there", extra={"api_token": "ct_1"})
    line = json.loads(second.getvalue())
    assert (line["event"], line["api_token"], line["level"]) == ("still there", "***", "info")


def test_a_fault_is_logged_without_local_variables(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold request headers, and the store's address with its password."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure()

    def fail(headers: dict[str, str]) -> None:
        raise ZeroDivisionError("by zero")

    try:
        fail({"authorization": "Bearer ct_secret"})
    except ZeroDivisionError as error:
        structlog.get_logger("test").error("request failed", exc_info=error)
    line = json.loads(stream.getvalue())
    assert [frame["name"] for frame in line["exception"][0]["frames"]][-1] == "fail"
    assert "ct_secret" not in stream.getvalue()


def test_loggers_follow_reconfiguration(restored: None) -> None:
    """Otherwise captured logs would depend on which tests the worker ran before."""
    configure()
    log = structlog.get_logger("test")
    log.warning("first use, after which structlog keeps the logger")
    configure()
    with capture_logs() as logs:
        log.warning("still seen")
    assert [line["event"] for line in logs] == ["still seen"]
