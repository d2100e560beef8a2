"""A trace, a cluster, a ground truth and a belief, assembled by name for `simulate` and `compare`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from predictor.types import SetPredictor
from profiling.errors import InputError, UnknownNameError
from profiling.names import one_of
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.constant import ConstantPredictor
from scheduling.beliefs.own import load_belief
from scheduling.beliefs.slice_table import KnownFits
from scheduling.beliefs.table import NoisyPredictor, TablePredictor
from scheduling.clusters import load_cluster
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SCALING, GroundTruth, SetTruth
from scheduling.policies import POLICIES, get_policy
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.feasibility import infeasible_jobs, without_infeasible
from scheduling.simulator.measured import measured_truth
from scheduling.simulator.realism import Realism
from scheduling.simulator.result import SimulationResult
from scheduling.slices.best_static import BEST, best_static
from scheduling.slices.cluster import SlicePolicy
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import SLICE_POLICIES, get_slice_policy, is_slice_policy
from scheduling.slices.simulate import SliceResult, simulate_slices
from scheduling.traces.columns import parse_mapping
from scheduling.traces.elastic import with_batches, with_ranges
from scheduling.traces.load import at_load
from scheduling.traces.logged import trace_jobs, usable
from scheduling.traces.logs import read_rows
from scheduling.traces.mix import Mix
from scheduling.traces.remarks import RowCount
from scheduling.traces.sia import KINDS, read_sia
from scheduling.traces.synthetic import parse_synthetic, synthetic

BELIEFS = ("predictor", "truth", "constant")


@dataclass(frozen=True, slots=True)
class ScenarioSpec:
    """Description of a scenario, in values that fit on a command line and can be sent to another process.

    Attributes:
        trace: a CSV, `philly[:FILE]`, `sia:FILE`, or `synthetic:rate=...,jobs=...`.
        cluster: a cluster.yaml or the name of a built-in cluster.
        seed: seed of the mix, of the synthetic trace, and of the truth's deviation from the belief.
        data: folder of imported tables; its co-location table is then the ground truth, and its workloads the
            mix.
        source: use only rows from this source; if None, from the only one that covers the cluster's types.
        belief: `predictor`, `truth` (an oracle), or `constant[:RATIO]` (solo times of the truth, and one
            throughput ratio, .65, for every job that shares: the baseline for predictions of interference).
        model: the predictor: `default`, a folder, `models:/NAME@ALIAS`, or a user's `module:PREDICTOR`.
        noise: sigma of the truth's deviation from the predictor if there are no tables.
        columns: column names of the trace, if not recognised.
        limit: only the first jobs.
        applications: folder of Sia's measured applications; None: beside the workload's folder.
        calibration: whether Sia's calibration applies.
        kind: kind of Sia's jobs if the file does not state it.
        restart_s: seconds to stop and resume a job.
        upstream_rounds: Gavel's policies with the artefacts of its public simulator's rounds.
        load: arrivals are scaled so that the jobs need this share of the cluster's GPU-seconds; None: as in
            the trace.
        elastic: share of jobs that get a range of GPUs (`scheduling.traces.elastic`).
        tunable: share of jobs that may tune their batch size; 0: only those that may in the trace.
        realism: parts of `scheduling.simulator.realism.PARTS`, or `all`, and of its `OPTIONS`; none: an ideal
            cluster.
        skip_infeasible: skip jobs that can never run on the cluster; otherwise they are an error.
    """

    trace: str
    cluster: str
    seed: int = 0
    data: str | None = None
    source: str | None = None
    belief: str = "predictor"
    model: str = "default"
    noise: float = 0.2
    columns: dict[str, Any] | None = None
    limit: int | None = None
    applications: str | None = None
    calibration: bool = True
    kind: str = "adaptive"
    restart_s: float = 30.0
    upstream_rounds: bool = False
    load: float | None = None
    skip_infeasible: bool = False
    elastic: float = 0.0
    tunable: float = 0.0
    realism: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind, _, ratio = self.belief.partition(":")
        if kind not in BELIEFS or (ratio and (kind != "constant" or not _is_ratio(ratio))):
            raise InputError(
                "unknown belief",
                expected="one of "
                + ", ".join(BELIEFS)
                + ", or constant:RATIO with a ratio above 0 and at most 1",
                got=self.belief,
            )
        if self.kind not in KINDS.values():
            raise InputError(
                "unknown kind of jobs", expected="one of " + ", ".join(KINDS.values()), got=self.kind
            )
        for name, least in (("seed", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is out of range", expected=f"an integer from {least}", got=value)
        if self.load is not None and not 0 < self.load < float("inf"):
            raise InputError("load is out of range", expected="a number above 0", got=self.load)
        for name, share in (("elastic", self.elastic), ("tunable", self.tunable)):
            if not 0 <= share <= 1:
                raise InputError(f"{name} share is out of range", expected="0 to 1", got=share)
            if share and self.trace.startswith("sia:"):
                raise InputError(
                    "jobs of sia: have their own ranges",
                    expected=f"another trace with {name}",
                    got=self.trace,
                )
        if self.load is not None and self.trace.startswith("sia:"):
            raise InputError(
                "load needs jobs of known length", expected="another trace than sia:", got=self.trace
            )
        if self.realism:
            Realism.of(self.realism)
            if self.trace.startswith("sia:"):
                raise InputError(
                    "realism needs jobs of known length, and those of sia: decide by their own batches how long "
                    "they take",
                    expected="another trace than sia:",
                    got=self.trace,
                )
        if self.source is not None and self.data is None:
            raise InputError(
                "--source needs tables", expected="a folder of imported tables, too", got=self.source
            )
        if self.columns is not None and self.trace.startswith(("synthetic:", "sia:")):
            raise InputError("--columns needs a CSV trace", expected="a CSV as trace", got=self.trace)


@dataclass(slots=True)
class Scenario:
    """Ready to run.

    Attributes:
        skipped: a line about each job that was skipped because it can never run here.
        remarks: problems in rows of the log, with counts.
        step_time_s: solo step time on the reference type; None if jobs have no fixed step time.
    """

    jobs: list[TraceJob]
    cluster: ClusterSnapshot
    truth: GroundTruth
    belief: SetPredictor | SetCache
    config: SimulationConfig = field(default_factory=SimulationConfig)
    agent: Callable[[TraceJob], object] | None = None
    upstream_rounds: bool = False
    skipped: list[str] = field(default_factory=list)
    remarks: list[RowCount] = field(default_factory=list)
    step_time_s: Callable[[Workload], float] | None = None

    def run(
        self,
        policy: str,
        on_progress: Callable[[int, int], None] | None = None,
        record: bool = False,
    ) -> SimulationResult:
        """Run one policy by name; slice policies partition the cluster's cards."""
        if is_slice_policy(policy):
            result = self._run_slices(policy, on_progress)
        else:
            result = self._run_gpus(policy, on_progress, record)
        if self.step_time_s is not None:
            result.alone_s = np.array(
                [
                    (j.real_iterations or j.job.iterations) * self.step_time_s(j.job.workload)
                    for j in result.jobs
                ],
                float,
            )
        return result

    def _run_gpus(
        self, policy: str, on_progress: Callable[[int, int], None] | None, record: bool
    ) -> SimulationResult:
        chosen, truth, agent = get_policy(policy, self.upstream_rounds), self.truth, self.agent
        belief, anew = SetCache.of(self.belief), self.config.reevaluate_each_round
        if chosen.freezes:
            if not isinstance(truth, SetTruth):
                raise InputError(
                    f"policy {policy} cannot run this trace", expected="jobs with their own step times"
                )
            self._check_batches(policy)
            frozen = next((job for job in self.jobs if job.workload.frozen_prefix), None)
            if frozen is not None:
                raise InputError(
                    f"policy {policy} chooses the frozen layers itself",
                    expected="jobs that freeze none of their own", got=f"{frozen.id} ({frozen.workload})",
                )  # fmt: skip
            from scheduling.elastic.agent import ElasticTruth
            from scheduling.elastic.curves import freezing_agents

            agent, anew = freezing_agents(self.cluster, truth, belief), True
            truth = ElasticTruth(
                truth.resume_s, round_s=chosen.round_s or 60.0, alone=truth.cache, plain=truth
            )
        config = replace(self.config, record=record, reevaluate_each_round=anew)
        return simulate(self.jobs, self.cluster, chosen, truth, belief, config, on_progress, agent)

    def _check_batches(self, policy: str) -> None:
        if any(job.batches is not None for job in self.jobs):
            raise InputError(
                f"policy {policy} does not tune batch sizes", expected="jobs without tunable batches"
            )

    def _run_slices(self, policy: str, on_progress: Callable[[int, int], None] | None) -> SimulationResult:
        if not isinstance(self.truth, SetTruth):
            raise InputError(
                f"policy {policy} cannot run this trace", expected="jobs with their own step times"
            )
        if self.config.realism is not None:
            raise InputError(
                f"policy {policy} cannot run with realism: slices have no failing nodes and no checkpoints to lose",
                expected="a policy of whole GPUs, or no --realism",
            )
        self._check_batches(policy)
        cards = [gpu.device for _, gpu in self.cluster.gpus()]
        truth = self.truth.cache.predictor
        belief = truth if policy == "oracle" else KnownFits(SetCache.of(self.belief).predictor, truth)
        # As everywhere in the simulator, a first start is free, and a restart costs what the scenario states.
        costs = SliceCosts(first_start_s=0.0, resume_s=self.truth.resume_s, checkpoint_s=0.0, report_s=0.0)
        options = {"move_s": costs.move_s} if policy == "isacpp-slices" else {}

        def simulated(chosen: SlicePolicy) -> SliceResult:
            return simulate_slices(self.jobs, cards, chosen, truth, belief, costs, on_progress)

        if policy == BEST:
            run = best_static(cards, simulated)
        else:
            run = simulated(get_slice_policy(policy, **options))
        result = run.summary()
        result.gpu_names = [f"{gpu.device} {node.name}/{gpu.id}" for node, gpu in self.cluster.gpus()]
        return result


def check_policy(name: str) -> None:
    """Raise `UnknownNameError` if no policy has that name, `InputError` if a user's policy cannot be
    imported."""
    if is_slice_policy(name):
        return
    if ":" in name:
        get_policy(name)
    elif name not in POLICIES:
        raise UnknownNameError(
            "unknown policy",
            expected="module:POLICY, or " + one_of(name, [*POLICIES, *SLICE_POLICIES]),
            got=name,
            hint="docs/scheduling.md and docs/slices.md list all",
        )


def build_scenario(spec: ScenarioSpec) -> Scenario:
    """Load the scenario described by `spec`.

    Current tenants are ignored, because a simulation starts with empty GPUs.

    Raises:
        InputError: a part of it is invalid.
        UnknownNameError: unknown device, model or workload.
    """
    cluster = load_cluster(spec.cluster).without_tenants()
    devices = list(dict.fromkeys(gpu.device for _, gpu in cluster.gpus()))
    if not devices:
        raise InputError(
            "the cluster has no GPU", expected="at least one node with one GPU", got=spec.cluster
        )
    if spec.trace.startswith("sia:"):
        return _sia(spec, cluster, devices)
    read, remarks = _trace(spec)  # before loading a predictor, which takes seconds
    predictor: Any = None
    if spec.data is not None:
        truth: Any = measured_truth(Path(spec.data), devices, spec.source)
        if spec.belief == "predictor":
            predictor = load_belief(spec.model)
        shared = set(truth.workloads(devices[0])).intersection(*(truth.workloads(d) for d in devices[1:]))
        if not shared:
            raise InputError(
                "no workload was measured on every GPU type of the cluster", got=", ".join(devices)
            )
        mix = Mix.even(sorted(shared, key=str), _reference(truth, devices))
    else:
        predictor = load_belief(spec.model)
        truth = NoisyPredictor(predictor, spec.noise, spec.seed)
        mix = Mix.zoo(_reference(predictor, devices))
    cache, snapshot = SetCache(truth), SchedulingSnapshot(cluster)
    jobs = with_ranges(read(mix), spec.elastic, int(snapshot.type_size.max()), spec.seed)
    jobs = with_batches(jobs, spec.tunable, mix.batch_sizes, spec.seed)
    jobs, skipped = without_infeasible(jobs, infeasible_jobs(jobs, snapshot, cache), spec.skip_infeasible)
    if spec.load is not None:
        jobs = at_load(jobs, spec.load, len(snapshot), mix.step_time_s)
    belief = _belief(spec.belief, truth, predictor)
    realism = Realism.of(spec.realism)
    return Scenario(
        jobs,
        cluster,
        SetTruth(
            cache,
            spec.restart_s,
            _scatter(realism),
            realism.scaling or SCALING,
            realism.restart_bytes_per_s,
        ),
        SetCache(belief),
        SimulationConfig(realism=realism, seed=spec.seed) if spec.realism else SimulationConfig(),
        upstream_rounds=spec.upstream_rounds,
        skipped=skipped,
        remarks=remarks,
        step_time_s=mix.step_time_s,
    )


def _scatter(realism: Realism) -> Callable[[JobState, SchedulingSnapshot, float], float] | None:
    if realism.scatter_slowdown == 1.0:
        return None
    from scheduling.ring.scatter import RingScatter

    return RingScatter(realism.scatter_slowdown).slowdown


def _belief(name: str, truth: SetPredictor, predictor: SetPredictor) -> SetPredictor:
    kind, _, ratio = name.partition(":")
    if kind == "constant":
        return ConstantPredictor(truth, float(ratio) if ratio else 0.65)
    return truth if kind == "truth" else predictor


def _is_ratio(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _trace(spec: ScenarioSpec) -> tuple[Callable[[Mix], list[TraceJob]], list[RowCount]]:
    """The trace's jobs as a function of the mix from which workloads are drawn, and faults in its rows."""
    head, _, tail = spec.trace.partition(":")
    if head == "synthetic":
        parse_synthetic(tail)
        return lambda mix: synthetic(tail, mix, spec.seed)[: spec.limit], []
    path = Path(tail if head == "philly" and tail else spec.trace)
    if head == "philly" and not tail:
        path = Path(os.environ.get("COTENANT_PHILLY", "philly.csv"))
    if not path.exists():
        hint = "name the log with philly:FILE, or set COTENANT_PHILLY" if head == "philly" else None
        raise InputError(
            f"no trace {path}",
            expected="a CSV, philly[:FILE], sia:FILE or synthetic:rate=...,jobs=...",
            hint=hint,
        )
    columns = parse_mapping(spec.columns) if spec.columns else None
    log = usable(path, read_rows(path, columns))
    return lambda mix: trace_jobs(log, mix, spec.seed, spec.limit), log.remarks


def _reference(predictor: SetPredictor, devices: list[str]) -> Callable[[Workload], float]:
    """Solo step time on the median type of the cluster by speed, to which durations in a log refer."""
    known: dict[Workload, float] = {}

    def step_time_s(workload: Workload) -> float:
        if workload not in known:
            answer = predictor.predict_arrays([ColocationSet(d, (workload,)) for d in devices])
            known[workload] = sorted(answer.step_time_s[:, 0].tolist())[len(devices) // 2]
        return known[workload]

    return step_time_s


def _sia(spec: ScenarioSpec, cluster: ClusterSnapshot, devices: list[str]) -> Scenario:
    from scheduling.beliefs.table import Solo
    from scheduling.sia.application import load_applications
    from scheduling.sia.truth import GoodputTruth

    path = Path(spec.trace.partition(":")[2])
    if not path.is_file():
        raise InputError(f"no trace {path}", expected="sia:FILE with a workload file of Sia's simulator")
    # As in a clone of upstream: traces/ beside workloads/GROUP/FILE.
    folder = Path(spec.applications or path.resolve().parent.parent.parent / "traces")
    applications = load_applications(folder, devices)
    jobs = read_sia(path, applications, spec.kind)[: spec.limit]
    rigid = [job for job in jobs if job.kind == "rigid"]  # the others adapt to what there is
    reasons = infeasible_jobs(rigid, SchedulingSnapshot(cluster), None)
    jobs, skipped = without_infeasible(jobs, reasons, spec.skip_infeasible)
    truth = GoodputTruth(applications, spec.calibration)
    table = {
        (device, Workload(name)): Solo(on.times_s((1,), max(on.local_least, 1))[0])
        for name, app in applications.items()
        for device, on in app.on.items()
        if on.stages == 1
    }
    config = SimulationConfig(free_moves=True, reevaluate_each_round=True)
    belief = SetCache(TablePredictor(table, {}))
    return Scenario(jobs, cluster, truth, belief, config, truth.agent, spec.upstream_rounds, skipped)
