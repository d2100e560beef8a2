from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from serving.logs import configure


@pytest.fixture
def restored() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_go_to_the_stderr_of_their_time(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service in a thread outlives the stderr that it was started with."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    logging.getLogger("any").info("still there", extra={"api_token": "ct_1"})
    line = json.loads(second.getvalue())
    assert (line["event"], line["api_token"], line["level"]) == ("still there", "***", "info")
