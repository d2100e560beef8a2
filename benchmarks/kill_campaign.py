"""200 SIGKILLs at random moments of a running campaign: finished runs lost, and time to resume.

python -m benchmarks.kill_campaign [KILLS]
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from tests.profiling.campaign.kills import kill_at_random


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "kills", nargs="?", type=int, default=200, help="number of kills (default: %(default)s)"
    )
    kills = parser.parse_args().kills
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        count = kill_at_random(Path(folder), kills)
    seconds = time.monotonic() - began
    print(
        f"{count.kills} kills, {count.lost} finished runs lost, {count.torn_lines} torn lines, {seconds:.0f} s"
    )
    record("kill_campaign", {**asdict(count), "seconds": round(seconds, 1)})
    if count.lost or count.done < count.total:
        raise SystemExit(1)


if __name__ == "__main__":
    run_benchmark(__file__, main)
