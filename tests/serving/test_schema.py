"""Schemathesis over the whole OpenAPI: whatever comes in, no 500, and every answer is as the document says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving.app import create_app
from serving.auth import create_token
from serving.config import ServiceConfig
from serving.store import Store
from tests.serving.live import serve
from tests.serving.table import TableSource

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("caller", ["no tokens asked for", "admin", "without its token"])
def test_every_operation(tmp_path: Path, caller: str) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    config = ServiceConfig(
        database_url=url,
        auth="off" if caller == "no tokens asked for" else "on",
        parse_seconds=1,
        parse_memory_bytes=2**28,
        log_level="error",
    )
    token = create_token(Store(url), "admin", ["admin"])
    with serve(create_app(config, TableSource())) as port, requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {token}"
        base = f"http://127.0.0.1:{port}"
        node = {"gpus": [{"device": "v100", "tenants": [{"job": "resnet18-cifar", "iterations_left": 5}]}]}
        assert session.put(f"{base}/v1/cluster/nodes/a", json=node).status_code == 201
        assert session.post(f"{base}/v1/placements", json={"job": "resnet18-cifar"}).status_code == 201
        before = session.get(f"{base}/v1/cluster").content
        schema = schemathesis.openapi.from_dict(session.get(f"{base}/openapi.json").json())
        if caller == "without its token":
            del session.headers["Authorization"]
        statuses = attack_all(session, base, schema)
        if caller == "without its token":
            assert statuses[401] > 30
            session.headers["Authorization"] = f"Bearer {token}"
            assert session.get(f"{base}/v1/cluster").content == before, "nothing was changed"
        else:
            assert statuses[200] > 10


def attack_all(session: requests.Session, base: str, schema: Any) -> Counter[int]:
    """Every operation with requests that follow the document, and with such that do not; how often each status came."""
    statuses: Counter[int] = Counter()
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 30
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            attack(session, base, operation, mode, statuses)
    return statuses


def attack(
    session: requests.Session,
    base: str,
    operation: Any,
    mode: GenerationMode,
    statuses: Counter[int],
    examples: int = 2,
) -> None:
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
        response = case.call(session=session, base_url=base)
        statuses[response.status_code] += 1
        # 503 and 504 are documented answers (a reload that fails, a deadline of nanoseconds); 500 never is.
        assert response.status_code not in (500, 501, 502), response.text
        case.validate_response(response, checks=CHECKS)

    try:
        one()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):
            raise AssertionError(f"{operation.label} ({mode}): {error}") from error
