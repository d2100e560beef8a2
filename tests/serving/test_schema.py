"""Schemathesis over the OpenAPI document: no request causes a 500, every response matches the document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import from_regex

from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.live import serve
from tests.serving.table import TableSource
from tests.waiting import LONG_S

if TYPE_CHECKING:  # no worker that runs none of these tests takes seconds to import it
    from schemathesis import Case, GenerationMode

PARTS = 6  # each takes a few seconds, on whatever worker


class Served(NamedTuple):
    session: requests.Session
    base: str
    operations: list[Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    import schemathesis

    # Imports hypothesis' regex support before threads start: CPython 3.11 must not parse in two (gh-106905).
    from_regex("a").validate()
    config = ServiceConfig(
        database_url=f"sqlite:///{tmp_path_factory.mktemp('schema')}/s.db",
        parse_s=1,
        parse_memory_bytes=2**28,
        log_level="error",
    )
    with serve(create_app(config, TableSource())) as port, requests.Session() as session:
        session.trust_env = False
        base = f"http://127.0.0.1:{port}"
        node = {"gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 5}]}]}
        session.put(f"{base}/v1/cluster/nodes/a", json=node)
        session.post(f"{base}/v1/placements", json={"job": "resnet18-cifar"})
        schema = schemathesis.openapi.from_dict(session.get(f"{base}/openapi.json").json())
        yield Served(session, base, [result.ok() for result in schema.get_all_operations()])


@pytest.mark.parametrize("part", range(PARTS))
def test_every_operation(served: Served, part: int) -> None:
    """With requests that follow the document, and others that do not."""
    from schemathesis import GenerationMode

    assert len(served.operations) > 30
    for operation in served.operations[part::PARTS]:
        attack(served.session, served.base, operation, GenerationMode.POSITIVE, examples=2)
        if breakable(operation):
            attack(served.session, served.base, operation, GenerationMode.NEGATIVE, examples=2)


def breakable(operation: Any) -> bool:
    """Whether a request can violate the document.

    If it takes only words in the path, every word is valid, and hypothesis would search for a second in vain.
    """
    words = all(
        parameter.definition["schema"].keys() <= {"type", "title"}
        and parameter.definition["schema"]["type"] == "string"
        for parameter in operation.path_parameters
    )
    return bool(operation.body or operation.query or operation.headers or operation.cookies) or not words


def attack(session: requests.Session, base: str, operation: Any, mode: GenerationMode, examples: int) -> None:
    """Send generated requests to one operation and check the answers."""
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def attack_operation(case: Case) -> None:
        response = case.call(session=session, base_url=base, timeout=LONG_S)
        # 503 and 504 are documented answers (a reload that fails, a deadline of nanoseconds); 500 never is.
        assert response.status_code not in (500, 501, 502), response.text
        case.validate_response(response, checks=checks)

    try:
        attack_operation()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):
            raise AssertionError(f"{operation.label} ({mode}): {error}") from error
