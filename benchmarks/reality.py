"""A real cluster against its simulation: 40 zoo jobs, Slurm with synthetic GPUs, three policies.

    python -m benchmarks.reality pairs           # jobs of every two kinds together on one core; about ten minutes
    python -m benchmarks.reality run exclusive   # then blind, then isacpp; each takes six to ten minutes
    python -m benchmarks.reality compare         # simulates the same jobs; writes benchmarks/results/reality.json

A "GPU" is a core of this machine: a separate Slurm node that runs at most two jobs, pinned to it, with one
thread each. Jobs arrive over time; `job_submit.lua` holds them, `cotenant controller slurm` asks the service
(`cotenant serve --policy ...`; for isacpp its own ranking), and they train. The simulator then runs the same
jobs under the same policy, with separately measured truth: processor time of a step next to each other kind,
relative to that alone (`pairs`; two jobs train on the other core meanwhile, as in a run); from the exclusive
run, which goes first, processor time of a step alone, the time to start, and the share of the cores that jobs
got; the share that the host and other load left to each run; how fast the cores were during each measurement
and run, from a probe independent of the jobs (`CoreSpeed`); and the seconds from submission to start next to
jobs that share the core. Needs root, cgroup v1, Slurm (Debian's slurmctld, slurmd, slurm-client, munge) and
two otherwise idle cores. Steps are stored in out/reality/.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.reality_cluster import CORES, SHARED, CoreSpeed, neighbours, run_live
from benchmarks.record import record
from benchmarks.slurm_cluster import missing
from predictor import load_predictor
from profiling.files import read_json, write_json
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, Tenant
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SetTruth
from scheduling.placement.place import Placer
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate

OUT = Path("out/reality")
KINDS = (
    "lstm-wikitext2:batch_size=2",
    "vgg11-cifar:batch_size=2",
    "mobilenetv2-cifar:batch_size=2",
    "neumf-ml1m:batch_size=256",
)
# Steps per measurement: a few seconds of processor time.
STEPS = dict(zip(KINDS, (60, 75, 70, 800), strict=True))
JOBS, MEAN_GAP_S, ALONE_S, SEED = 40, 4.0, (4.0, 12.0), 0
POLICIES = ("exclusive", "blind", "isacpp")


def pairs() -> dict[str, Any]:
    """Processor time of a step of each kind, alone and beside every other kind on its core, with the other
    core busy.

    Processor time hardly depends on other load; it is scaled to the median speed of the cores over all
    measurements. The time beside another job is compared with the time alone just before. Two jobs that are
    always ready get half of the core each, so the throughput of one beside another, relative to alone, is
    half of its time per step alone over its time per step beside the other.
    """
    probes_s: list[float] = []
    alone: dict[str, list[float]] = {spec: [] for spec in KINDS}
    ratios = {}
    for number, pair in enumerate(combinations_with_replacement(KINDS, 2)):
        ratio = {}
        for spec, partner in (pair, pair[::-1]) if pair[0] != pair[1] else (pair,):
            by_itself = _probes_per_step(spec, [], number, probes_s)
            beside = _probes_per_step(spec, [partner], number, probes_s)
            alone[spec].append(by_itself)
            ratio[spec] = by_itself / beside / 2
        ratios[" + ".join(pair)] = [ratio[spec] for spec in pair]
        print(*pair, ratios[" + ".join(pair)], flush=True)
    probe_s = float(np.median(probes_s))
    step_time_s = {spec: float(np.median(steps)) * probe_s for spec, steps in alone.items()}
    return {
        "ratios": ratios,
        "step_time_s": step_time_s,
        "probe_s": probe_s,
        "probes_s": probes_s,
        "alone_probes": alone,
    }


def _probes_per_step(spec: str, beside: list[str], number: int, probes_s: list[float]) -> float:
    """Processor time per step of `spec` on core 0 beside others, in units of the speed probe's reading.

    The reading is appended to `probes_s`; `number` selects the jobs on the other core.
    """
    elsewhere = [KINDS[(number + k) % len(KINDS)] for k in range(SHARED)]
    with neighbours({0: beside, 1: elsewhere}), tempfile.TemporaryDirectory() as folder:
        result, steps = Path(folder) / "result.json", STEPS[spec]
        command = [sys.executable, "-m", "benchmarks.reality_job", spec, str(steps), "0", str(result)]
        with CoreSpeed() as speed:
            subprocess.run(command, check=True)
        probes_s.append(speed.probe_s)
        body = read_json(result)
    return float((body["cpu_s"] - body["ready_cpu_s"]) / steps / speed.probe_s)


def trace(step_time_s: dict[str, float]) -> list[dict[str, Any]]:
    """The jobs, with kinds, lengths and arrivals drawn once."""
    rng = np.random.default_rng(SEED)
    submit_s = np.cumsum(rng.exponential(MEAN_GAP_S, JOBS))
    kinds = rng.choice(KINDS, JOBS)
    lengths = rng.uniform(*ALONE_S, JOBS)
    return [
        {
            "spec": str(spec),
            "steps": max(1, round(length / step_time_s[spec])),
            "submit_s": float(at - submit_s[0]),
        }
        for spec, length, at in zip(kinds, lengths, submit_s, strict=True)
    ]


def alone() -> dict[str, dict[str, float]]:
    """For each kind: seconds per step alone, and seconds before the first step.

    These are medians over the jobs of the exclusive run if it exists, with steps scaled to the core speed of
    `pairs`; otherwise the separately measured time, and 0.
    """
    measured = _read("pairs")
    if not (OUT / "exclusive.json").exists():
        return {spec: {"step_time_s": step, "start_s": 0.0} for spec, step in measured["step_time_s"].items()}
    live = _read("exclusive")
    steps_s: dict[str, list[float]] = {spec: [] for spec in KINDS}
    start_s: dict[str, list[float]] = {spec: [] for spec in KINDS}
    for job, row in zip(trace(measured["step_time_s"]), live["jobs"], strict=True):
        start_s[job["spec"]].append(row["ready_s"] - row["started_s"])
        steps_s[job["spec"]].append((row["cpu_s"] - row["ready_cpu_s"]) / job["steps"])
    faster = measured["probe_s"] / live["probe_s"]
    return {
        spec: {
            "step_time_s": faster * float(np.median(steps_s[spec])),
            "start_s": float(np.median(start_s[spec])),
        }
        for spec in KINDS
    }


def run(policy: str) -> dict[str, Any]:
    """Run one policy on the cluster."""
    jobs = trace(_read("pairs")["step_time_s"])
    return run_live(jobs, None if policy == "isacpp" else policy, alone())


class Truth(SetTruth):
    """Measured step times; a placed job starts `dispatch_s` later."""

    def __init__(self, predictor: TablePredictor, dispatch_s: float) -> None:
        super().__init__(predictor)
        self.dispatch_s = dispatch_s

    def restart_s(self, job: JobState, first: bool, snapshot: SchedulingSnapshot) -> float:
        return self.dispatch_s if first else super().restart_s(job, first, snapshot)


def one_by_one(snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
    """The service's ranking for each waiting job in queue order, as queried by the Slurm controller."""
    tenants = [[Tenant(j.job.workload, snapshot.left(j)) for j in here] for here in snapshot.tenants]
    started = []
    for job in snapshot.waiting.values():
        nodes = tuple(
            Node(node, (Gpu(gpu, snapshot.devices[k], snapshot.sharing[k], tuple(tenants[k])),))
            for k, (node, gpu) in enumerate(snapshot.names)
            if len(tenants[k]) < SHARED
        )
        if not nodes:
            break
        decision = Placer(belief).place(job.job.workload, snapshot.left(job), ClusterSnapshot(nodes))
        if decision.decision == "place":
            best = decision.ranked[0]
            gpu = snapshot.names.index((best.node, best.gpu))
            tenants[gpu].append(Tenant(job.job.workload, snapshot.left(job)))
            started.append(Allocation(job, (gpu,)))
    return started


def simulated(policy: str, live: dict[str, Any]) -> Any:
    """The simulator's result for the jobs of a live run."""
    kinds, measured = alone(), _read("pairs")
    # Slurm, its controller and the service use part of the cores, as do the host and other work.
    exclusive = _read("exclusive")
    left_alone = _core_ratio(exclusive["jobs"])
    slowness = live["probe_s"] / measured["probe_s"]
    left = left_alone * live["given_ratio"] / exclusive["given_ratio"] / slowness
    solo = {("cpu", Workload.parse(spec)): Solo(told["step_time_s"] / left) for spec, told in kinds.items()}
    ratios = {
        ("cpu", tuple(Workload.parse(spec) for spec in pair.split(" + "))): values
        for pair, values in measured["ratios"].items()
    }
    jobs = []
    for number, (job, row) in enumerate(zip(trace(measured["step_time_s"]), live["jobs"], strict=True)):
        told = kinds[job["spec"]]
        spec = f"{job['spec']},step_time_s={told['step_time_s']:.6f}"
        # The start-up time is from the exclusive run, and longer if the cores are slower.
        start_s = told["start_s"] * measured["probe_s"] / exclusive["probe_s"]
        steps = job["steps"] + start_s * left_alone / told["step_time_s"]
        jobs.append(TraceJob(str(number), Workload.parse(spec), steps, row["submitted_s"] - live["begin_s"]))
    cluster = ClusterSnapshot(tuple(Node(f"core-{k}", (Gpu("0", "cpu"),)) for k in range(CORES)))
    chosen = Policy("isacpp, job by job", one_by_one) if policy == "isacpp" else get_policy(policy)
    truth = Truth(TablePredictor(solo, ratios), live["dispatch_s"])
    return simulate(jobs, cluster, chosen, truth, load_predictor())


def compare() -> dict[str, Any]:
    """Compare measured and simulated figures."""
    figures: dict[str, Any] = {"pairs": _read("pairs"), "alone": alone(), "jobs": JOBS, "cores": CORES}
    for policy in [p for p in POLICIES if (OUT / f"{p}.json").exists()]:
        live = _read(policy)
        rows = live["jobs"]
        jct_s = np.array([row["ended_s"] - row["submitted_s"] for row in rows])
        makespan_s = max(r["ended_s"] for r in rows) - min(r["submitted_s"] for r in rows)
        result = simulated(policy, live)
        figures[policy] = {
            "measured": {"mean_jct_s": float(jct_s.mean()), "makespan_s": makespan_s},
            "simulated": {"mean_jct_s": float(result.completion_s.mean()), "makespan_s": result.makespan_s},
            "error_percent": {
                "mean_jct": 100 * (float(result.completion_s.mean()) / float(jct_s.mean()) - 1),
                "makespan": 100 * (result.makespan_s / makespan_s - 1),
            },
            "mean_absolute_error_of_a_job_s": float(np.abs(result.completion_s - jct_s).mean()),
            "dispatch_s": live["dispatch_s"],
            "core_seconds_of_jobs_ratio": _core_ratio(rows),
            "given_ratio": live["given_ratio"],
            "stolen_ratio": live["stolen_ratio"],
            "probe_ratio": live["probe_s"] / figures["pairs"]["probe_s"],
            "jobs": [
                [round(float(a), 2), round(float(b), 2)]
                for a, b in zip(jct_s, result.completion_s, strict=True)
            ],
        }
        print(policy, {k: v for k, v in figures[policy].items() if k != "jobs"}, flush=True)
    return figures


def _core_ratio(rows: list[dict[str, Any]]) -> float:
    """Processor time of the jobs over the time in which their cores had a job; below 1 by what other work
    used."""
    busy_s = 0.0
    for core in range(CORES):
        end = -np.inf
        for row in sorted((r for r in rows if r["core"] == core), key=lambda r: r["started_s"]):
            busy_s += max(0.0, row["ended_s"] - max(end, row["started_s"]))
            end = max(end, row["ended_s"])
    return float(sum(row["cpu_s"] for row in rows) / busy_s)


def _read(name: str) -> Any:
    return read_json(OUT / f"{name}.json")


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("step", choices=("pairs", "run", "compare"), help="what to do; in this order")
    parser.add_argument("policy", nargs="?", choices=POLICIES, help="for `run`")
    arguments = parser.parse_args()
    if arguments.step == "compare":
        record("reality", compare())
        return
    absent = missing() if arguments.step == "run" else []
    if absent or (arguments.step == "run" and arguments.policy is None):
        parser.error("needs " + ", ".join(absent or ["a policy"]))
    name, measured = arguments.policy or "pairs", run(arguments.policy) if arguments.policy else pairs()
    write_json(OUT / f"{name}.json", measured)


if __name__ == "__main__":
    run_benchmark(__file__, main)
