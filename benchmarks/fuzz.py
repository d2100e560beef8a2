"""Requests that Schemathesis generates from the OpenAPI document: none may end in a 500.

Three ways: on loopback without tokens, with tokens as admin, and with tokens required but none sent. Every
operation gets valid and invalid requests. Answers that the document does not describe are listed as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import requests

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.processes import end
from benchmarks.record import record, record_part
from benchmarks.siege import Target

WAYS = ("loopback_without_tokens", "admin_token", "no_token")
_TOKEN = "fuzz-admin-token-of-this-run"


def fuzzed(base: str, headers: dict[str, str], document: Any, examples: int) -> dict[str, Any]:
    """Query every operation; count statuses and deviations from the document."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

    statuses: Counter[int] = Counter()
    flagged: Counter[str] = Counter()
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [result.ok() for result in found if isinstance(result, Ok)]
    with requests.Session() as session:
        session.trust_env = False
        session.headers.update(headers)
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _attack(session, base, operation, mode, examples, statuses, flagged)
    return {
        "operations": len(operations),
        "cases": sum(statuses.values()),
        "server_errors": sum(count for status, count in statuses.items() if status in (500, 501, 502)),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "flagged": dict(flagged.most_common()),
    }


def _attack(
    session: requests.Session,
    base: str,
    operation: Any,
    mode: Any,
    examples: int,
    statuses: Counter[int],
    flagged: Counter[str],
) -> None:
    """Send generated requests to one operation and count the outcomes."""
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        try:
            response = case.call(session=session, base_url=base, timeout=120)
        except requests.RequestException as error:
            flagged[f"{operation.label}: {type(error).__name__}"] += 1
            return
        statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=checks)
        except* AssertionError as failures:
            for failure in failures.exceptions:
                flagged[f"{operation.label} {response.status_code}: {type(failure).__name__}"] += 1

    try:
        one()
    except Exception as error:  # no request of this kind can be generated
        if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):
            raise


def main() -> None:
    """Measure and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--examples", type=int, default=25, help="examples per operation and kind")
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes of the service (default: %(default)s)"
    )
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; repeatable")
    options = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    figures: dict[str, Any] = {}
    os.environ["COTENANT_BOOTSTRAP_TOKEN"] = _TOKEN
    admin = {"Authorization": f"Bearer {_TOKEN}"}
    for name in options.way or WAYS:
        auth = "off" if name == "loopback_without_tokens" else "on"
        headers = admin if name == "admin_token" else {}
        with tempfile.TemporaryDirectory(prefix="cotenant-fuzz-") as folder:
            target = Target(root, Path(folder), options.workers, None, "--auth", auth)
            base = f"http://127.0.0.1:{target.port}"
            try:
                document = requests.get(f"{base}/openapi.json", headers=admin, timeout=60).json()
                node = {"gpus": [{"device": "v100"}]}
                requests.put(
                    f"{base}/v1/cluster/nodes/a", json=node, headers=admin, timeout=60
                ).raise_for_status()
                figures[name] = {"examples": options.examples, "workers": options.workers}
                figures[name] |= fuzzed(base, headers, document, options.examples)
                figures[name]["serves_afterwards"] = target.seconds("GET", "/v1/health/ready")[1] == 200
            finally:
                end(target.process)
        print(name, figures[name], flush=True)
        (record_part if options.way else record)("fuzz", figures)
    if any(figures[name]["server_errors"] for name in options.way or WAYS):
        sys.exit(1)


if __name__ == "__main__":
    run_benchmark(__file__, main)
