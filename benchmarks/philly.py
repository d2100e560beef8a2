"""Speed of the simulator: the whole Philly trace, or any other at a given load, on 2,000 GPUs.

    python -m benchmarks.philly --data DIR --trace philly.csv [--policies fifo,isacpp] [--limit N]
    python -m benchmarks.philly --data DIR --trace synthetic:rate=1000,jobs=100000,gangs=0.2 --load 0.9 \\
        --name busy_cluster

`--data` is a folder with Gavel's imported tables: its measured pairs on K80, P100 and V100 are the ground
truth.
"""

from __future__ import annotations

import resource
from time import perf_counter, process_time
from typing import Any

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.scenario_spec import ScenarioSpec


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", required=True, help="folder of Gavel's imported tables")
    parser.add_argument("--trace", required=True, help="as in `cotenant simulate`")
    parser.add_argument(
        "--cluster", default="philly-2000", help="as in `cotenant simulate` (default: %(default)s)"
    )
    parser.add_argument("--policies", default="fifo,isacpp", help="comma-separated (default: %(default)s)")
    parser.add_argument("--belief", default="truth", help="`truth`, or `predictor` for the default predictor")
    parser.add_argument("--limit", type=int, help="only this many jobs, earliest first")
    parser.add_argument("--load", type=float, help="scale arrivals so that jobs request this share")
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "philly", "cluster", "policies", "belief", "limit", "load")
    start = perf_counter()
    scenario = build_scenario(
        ScenarioSpec(
            arguments.trace if ":" in arguments.trace else f"philly:{arguments.trace}",
            arguments.cluster,
            data=arguments.data,
            belief=arguments.belief,
            limit=arguments.limit,
            load=arguments.load,
        )
    )
    figures: dict[str, Any] = {
        "read_s": perf_counter() - start,
        "belief": arguments.belief,
        "trace": arguments.trace,
        "load": arguments.load,
    }
    for name in arguments.policies.split(","):
        start, cpu = perf_counter(), process_time()
        body = scenario.run(name).to_json()
        took = perf_counter() - start
        body.pop("users", None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures[name] = body | {"run_s": took, "cpu_s": process_time() - cpu, "peak_memory_bytes": peak}
        print(
            f"{name:10s} {body['jobs']} jobs in {took:.1f} s ({figures[name]['cpu_s']:.1f} s of CPU), peak {peak / 2**30:.2f} GiB; mean JCT "
            f"{body['mean_jct_s']:.0f} s, queue {body['mean_queue_s']:.1f} s, decision mean "
            f"{1e3 * body['mean_decision_s']:.2f} ms, p99 {1e3 * body['p99_decision_s']:.2f} ms",
            flush=True,
        )
        record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
