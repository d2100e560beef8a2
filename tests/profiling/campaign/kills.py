"""Kill a running campaign at random moments and count lost runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from profiling.campaign.slices import read_results
from tests.profiling.campaign.support import small_plan

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class KillCount:
    """Outcome of `kill_at_random`.

    Attributes:
        kills: SIGKILLs that hit a running campaign.
        lost: finished runs that were missing after a kill.
        torn_lines: lines that were cut short and skipped.
        done, total: runs at the end.
    """

    kills: int
    lost: int
    torn_lines: int
    done: int
    total: int


def kill_at_random(folder: Path, kills: int, seed: int = 0, run_s: float = 0.002) -> KillCount:
    """Start a campaign again and again and kill it at random moments; then let it finish.

    A run is finished when the campaign has gone on to the next one, or has ended.
    """
    generator = random.Random(seed)
    plan_file, results = folder / "plan.json", folder / "results"
    plan = small_plan(runs=kills * 8)
    plan.save(plan_file)
    done = lost = killed = 0
    while killed < kills:
        process = _start(plan_file, results, run_s)
        assert process.stdout is not None
        process.stdout.readline()  # its first run has started
        time.sleep(generator.uniform(0.0, 0.03))
        alive = process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        begun = 1 + process.stdout.read().count(b"begun")
        process.wait()
        killed += alive
        before, done = done, len(read_results([results]).records)
        # all started runs but the last were finished
        lost += max(0, before + begun - 1 - done)
        if not alive:
            break
    _start(plan_file, results, 0.0).communicate()
    final = read_results([results])
    return KillCount(killed, lost, final.torn_lines, len(final.records), len(plan.runs))


def _start(plan: Path, results: Path, run_s: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.profiling.campaign.support", str(plan), str(results), str(run_s)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
