"""Cost of refusing a request on the service's core: a listener that admits none, loaded with wrk (Debian).

    python -m benchmarks.refusals [--connections 600 1200] [--seconds 6]

Every client retries as soon as it is answered; refusals are delayed by half a second.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from benchmarks.serve import start_wrk, wrk_result


def main() -> None:
    from serving.app import create_app
    from serving.config import ServiceConfig
    from tests.serving.live import serve
    from tests.serving.table import TableSource

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--connections",
        type=int,
        nargs="+",
        default=[600, 1200],
        help="numbers of clients (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=int, default=6, help="seconds per number of clients (default: %(default)s)"
    )
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "refusals", "connections")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cotenant-refusals-") as folder:
        config = ServiceConfig(
            database_url=f"sqlite:///{folder}/s.db", log_level="error", queue_delay_s=1e6,
            connections=10_000, connections_per_address=10_000,
        )  # fmt: skip
        app = create_app(config, TableSource())
        with serve(app) as port:
            delay = app.state.service.delay
            delay.limit = delay.STEP = 0.0
            url = f"http://127.0.0.1:{port}/v1/predict"
            bodies = [{"device": "v100", "jobs": ["resnet18-cifar:batch_size=64"]}]
            for connections in options.connections:
                me = psutil.Process()
                before = me.cpu_times()
                told = wrk_result(start_wrk(Path(folder), url, bodies, options.seconds, connections))
                after = me.cpu_times()
                figures[str(connections)] = one = {
                    "refused": told["requests"],
                    "user_us": 1e6 * (after.user - before.user) / told["requests"],
                    "system_us": 1e6 * (after.system - before.system) / told["requests"],
                }
                print(connections, one, flush=True)
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
