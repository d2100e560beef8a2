"""The required form of every error."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from httpx import Response


def problem(response: Response, status: int) -> dict[str, Any]:
    """The problem details of `response`, checked against RFC 9457."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["type"]
    assert body["title"]
    assert body["detail"]
    assert "\n" not in body["detail"]
    assert unquote(body["instance"]) == response.request.url.path
    assert re.fullmatch(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})+", body["instance"])
    assert response.headers["x-request-id"]
    return body
