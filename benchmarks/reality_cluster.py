"""The live half of `benchmarks.reality`: jobs on pinned cores, through Slurm and the service."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from benchmarks.processes import output, start, start_service
from benchmarks.slurm_cluster import SlurmNode, start_slurm

CORES = 2
# Maximum number of jobs per core.
SHARED = 2
ROOT = Path(__file__).parents[1]
_DEADLINE_S = 900.0
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
_WARM_S = 6.0
# The speed probe: width of square matrices, number of their products, number of copies (which take about as
# long), bytes
# per copy, and seconds between two readings.
_PROBE_WIDTH, _PROBE_PRODUCTS, _PROBE_COPIES, _PROBE_BYTES, _PROBE_EVERY_S = 128, 200, 2, 2**25, 2.0


class CoreSpeed:
    """Context manager that measures the speed of cores and memory, core by core.

    A reading is the processor seconds of fixed products of matrices and copies of arrays larger than the
    caches. The host's clock and the load on the sibling threads of its cores change speed by half from one
    minute to the next, which processor time does not show. A reading takes one or two per cent of a core.
    """

    def __init__(self) -> None:
        self._readings: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> CoreSpeed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def probe_s(self) -> float:
        """Mean processor seconds of a reading."""
        return float(np.mean(self._readings))

    def _read(self) -> None:
        square = np.full((_PROBE_WIDTH, _PROBE_WIDTH), 0.5, dtype=np.float32)
        result, core = np.empty_like(square), 0
        large, other = np.ones(_PROBE_BYTES, np.uint8), np.ones(_PROBE_BYTES, np.uint8)
        with threadpool_limits(1):
            while True:
                os.sched_setaffinity(threading.get_native_id(), {core})
                began_s = time.thread_time()
                for _ in range(_PROBE_PRODUCTS):
                    np.matmul(square, square, out=result)
                for _ in range(_PROBE_COPIES):
                    np.copyto(large, other)
                self._readings.append(time.thread_time() - began_s)
                core = (core + 1) % CORES
                if self._over.wait(_PROBE_EVERY_S / CORES):
                    return


class CoreTime:
    """Account for the machine's processor time from now on; needs root and cgroup v1.

    This process and everything it starts from now on (including daemons and their children) go into a
    separate accounting group.
    """

    def __init__(self) -> None:
        self._usage = _ACCOUNTS / str(os.getpid()) / "cpuacct.usage"
        if not self._usage.parent.exists():
            self._usage.parent.mkdir()
            (self._usage.parent / "cgroup.procs").write_text(str(os.getpid()))
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Seconds used by the group, seconds used by all processes, and seconds taken by the host."""
        all_s = psutil.cpu_times()
        busy_s = sum(getattr(all_s, name) for name in ("user", "nice", "system", "irq", "softirq"))
        return int(self._usage.read_text()) / 1e9, busy_s, all_s.steal

    def ratios(self) -> dict[str, float]:
        """Of the time in which something needed a core: the shares used by the group and taken by the
        host."""
        own_s, busy_s, stolen_s = (now - then for now, then in zip(self._now(), self._before, strict=True))
        wanted_s = busy_s + stolen_s
        return {"given_ratio": min(own_s / wanted_s, 1.0), "stolen_ratio": stolen_s / wanted_s}


@contextmanager
def neighbours(by_core: Mapping[int, Sequence[str]]) -> Iterator[None]:
    """Train jobs of these kinds on each core endlessly, as load from other cores during a run."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.reality_job", spec, str(10**9), str(core), os.devnull],
            cwd=ROOT,
        )
        for core, specs in by_core.items()
        for spec in specs
    ]
    try:
        time.sleep(_WARM_S if processes else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run_live(
    jobs: Sequence[dict[str, Any]], policy: str | None, alone: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Submit `jobs` (`spec`, `steps`, `submit_s`) at their times to a separate Slurm, and return the outcome
    of each.

    Args:
        policy: of the service; None: its ranking.
        alone: `step_time_s` and `start_s` of each kind, from which the job comments state what a job needs.
    """
    CoreTime()  # daemons and jobs count as ours
    with tempfile.TemporaryDirectory(prefix="cotenant-reality-") as name, ExitStack() as stack:
        folder = Path(name)
        start_slurm(folder, stack, [SlurmNode(f"core-{k}", ("cpu",), SHARED) for k in range(CORES)])
        chosen = ["--policy", policy] if policy else []
        url, _ = start_service(folder, stack, *chosen)
        start(stack, sys.executable, "-m", "serving.cli.main", "controller", "slurm", "--service", url)
        time.sleep(8)
        # A place becomes free beside the jobs that share its core.
        beside = [] if policy == "exclusive" else list(alone)[: SHARED - 1]
        with neighbours(dict.fromkeys(range(CORES), beside)):
            probe = [_dispatch_s(folder, alone, k) for k in range(3)]
        begin_s, core_time = time.time(), CoreTime()
        speed = stack.enter_context(CoreSpeed())
        rows: list[dict[str, Any]] = []
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, begin_s + job["submit_s"] - time.time()))
            rows.append({"submitted_s": time.time(), "slurm_id": _submit(folder, number, job, alone)})
        results = [folder / f"result-{number}.json" for number in range(len(jobs))]
        while not all(result.exists() for result in results):
            if time.time() - begin_s > _DEADLINE_S:
                raise RuntimeError(f"only {sum(r.exists() for r in results)} of {len(jobs)} jobs are done")
            time.sleep(0.5)
        shares = core_time.ratios()
        for row, result in zip(rows, results, strict=True):
            row |= json.loads(result.read_text(encoding="utf-8"))
        told = {
            str(j["job_id"]): j["admin_comment"]
            for j in json.loads(output("squeue", "--states=all", "--json"))["jobs"]
        }
        for row in rows:
            row["told"] = told.get(row["slurm_id"], "")
        return {
            "begin_s": begin_s,
            "dispatch_s": sorted(probe)[1],
            "probe_s": speed.probe_s,
            **shares,
            "jobs": rows,
        }


def _dispatch_s(folder: Path, alone: dict[str, dict[str, float]], number: int) -> float:
    """Seconds from the submission of a job to its start."""
    spec = next(iter(alone))
    mark = folder / f"probe-{number}"
    began_s = time.time()
    _sbatch(folder, _comment(spec, 1, alone), f"date +%s.%N > {mark}.part; mv {mark}.part {mark}")
    while not mark.exists():
        time.sleep(0.05)
    return float(mark.read_text()) - began_s


def _submit(folder: Path, number: int, job: dict[str, Any], alone: dict[str, dict[str, float]]) -> str:
    result = folder / f"result-{number}.json"
    command = [sys.executable, "-m", "benchmarks.reality_job", job["spec"], str(job["steps"])]
    script = f"exec {shlex.join(command)} ${{SLURMD_NODENAME#core-}} {shlex.quote(str(result))}"
    return _sbatch(folder, _comment(job["spec"], job["steps"], alone), script)


def _comment(spec: str, steps: int, alone: dict[str, dict[str, float]]) -> str:
    """The job comment as a user would write it: step time, and number of steps including the start-up
    time."""
    told = alone[spec]
    whole = steps + told["start_s"] / told["step_time_s"]
    return f"cotenant:{spec},step_time_s={told['step_time_s']:.6f},iterations={whole:.0f}"


def _sbatch(folder: Path, comment: str, script: str) -> str:
    return subprocess.run(
        ["sbatch", "--parsable", "-n1", "--mem=1", "--gres=shard:1", f"--comment={comment}", "-D", str(ROOT),
         "-o", str(folder / "log-%j"), "--wrap", script],
        check=True, capture_output=True, text=True, env=os.environ,
    ).stdout.strip()  # fmt: skip
