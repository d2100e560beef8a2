"""OpenTelemetry traces, if the extra `otel` is installed and `OTEL_EXPORTER_OTLP_ENDPOINT` is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profiling.errors import UnavailableError

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def tracer() -> Any | None:
    """The service's tracer; None if tracing is not configured.

    Raises:
        UnavailableError: tracing is configured but the extra is not installed.
    """
    if not os.environ.get(ENDPOINT_VARIABLE):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"{ENDPOINT_VARIABLE} is set and OpenTelemetry is not installed",
            got=str(error),
            hint="pip install 'cotenant[otel]', or unset it",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "cotenant"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("cotenant")


@contextmanager
def span(tracer: Any | None, scope: dict[str, Any], request_id: str) -> Iterator[dict[str, Any]]:
    """A server span around a request, continuing the caller's trace.

    Yields a dictionary for its attributes.
    """
    attributes: dict[str, Any] = {}
    if tracer is None:
        yield attributes
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
    with tracer.start_as_current_span(
        scope["method"], context=extract(headers), kind=SpanKind.SERVER
    ) as current:
        current.set_attribute("http.request.method", scope["method"])
        current.set_attribute("url.path", scope["path"])
        current.set_attribute("cotenant.request_id", request_id)
        try:
            yield attributes
        finally:
            if "http.route" in attributes:
                current.update_name(f"{scope['method']} {attributes['http.route']}")
            current.set_attributes(attributes)
