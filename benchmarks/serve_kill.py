"""Faults in the middle of writes: no acknowledged write may be lost or partial.

python -m benchmarks.serve_kill                     SIGKILL to the service, 200 times
python -m benchmarks.serve_kill --postgres          its PostgreSQL server stopped and frozen in turn, 20 times
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record


def main() -> None:
    from tests.serving import killing, postgres

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills of the service (default: %(default)s)")
    parser.add_argument(
        "--faults", type=int, default=20, help="faults of PostgreSQL, with --postgres (default: %(default)s)"
    )
    parser.add_argument("--postgres", action="store_true", help="start and use a PostgreSQL server")
    options = parser.parse_args()
    started = time.monotonic()
    if options.postgres:
        name, what = "serve_kill_postgres", {"faults": options.faults}
        with postgres.server(fsync=True) as server:
            result = killing.run_database_faults(server, options.faults)
    else:
        name, what = "serve_kill", {"kills": options.kills}
        with tempfile.TemporaryDirectory(prefix="cotenant-kill-") as folder:
            result = killing.run(Path(folder), options.kills)
    print(result)
    record(name, {**what, "seconds": time.monotonic() - started, **result})
    if result["lost"] or result["half"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_benchmark(__file__, main)
