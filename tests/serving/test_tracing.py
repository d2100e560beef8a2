"""OpenTelemetry spans of requests."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.serving.conftest import Start


def test_spans_continue_the_callers_trace(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("serving.service.tracer", lambda: provider.get_tracer("cotenant"))
    client = start()
    exporter.clear()
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    client.get("/v1/devices/v100", headers={"traceparent": parent, "X-Request-Id": "r-1"})
    (span,) = exporter.get_finished_spans()
    assert span.name == "GET /v1/devices/{name}"
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["cotenant.request_id"] == "r-1"
    assert format(span.context.trace_id, "032x") == "a" * 32


def test_no_spans_unless_configured(start: Start) -> None:
    assert start().app.state.service.tracer is None  # type: ignore[attr-defined]
