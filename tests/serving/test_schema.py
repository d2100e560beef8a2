"""Schemathesis over the whole OpenAPI: whatever comes in, no 500, and every answer is as the document says."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.conftest import Start

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_every_operation(start: Start) -> None:
    client = start(parse_seconds=1, parse_memory_bytes=2**28, request_timeout_s=20.0)
    node = {"gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 5}]}]}
    client.put("/v1/cluster/nodes/a", json=node)
    client.post("/v1/placements", json={"job": "resnet18-cifar"})
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 30
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            attack(client, operation, mode)


def attack(client: Any, operation: Any, mode: GenerationMode, examples: int = 6) -> None:
    """Send generated requests to one operation and check the answers."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        case.validate_response(case.call(session=client, base_url="http://testserver"), checks=CHECKS)

    try:
        one()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):
            raise AssertionError(f"{operation.label} ({mode}): {error}") from error
