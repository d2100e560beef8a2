"""A scenario assembled from its description, for `simulate` and `compare`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from predictor.types import SetPredictor
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.constant import ConstantPredictor
from scheduling.beliefs.own import load_belief
from scheduling.beliefs.table import NoisyPredictor, TablePredictor
from scheduling.clusters import load_cluster
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SCALING, SetTruth
from scheduling.simulator.engine import SimulationConfig
from scheduling.simulator.feasibility import infeasible_jobs, without_infeasible
from scheduling.simulator.measured import measured_truth
from scheduling.simulator.realism import Realism
from scheduling.simulator.scenario import Scenario
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.traces.columns import parse_mapping
from scheduling.traces.elastic import with_batches, with_ranges
from scheduling.traces.load import at_load
from scheduling.traces.logged import trace_jobs, usable
from scheduling.traces.logs import read_rows
from scheduling.traces.mix import Mix
from scheduling.traces.remarks import RowCount
from scheduling.traces.sia import read_sia
from scheduling.traces.synthetic import parse_synthetic, synthetic

# Sigma of the truth's deviation from the predictor if there are no tables.
NOISE = 0.2


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
        truth = NoisyPredictor(predictor, NOISE, spec.seed)
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
            scatter=_scatter(realism),
            scaling=realism.scaling or SCALING,
            restart_bytes_per_s=realism.restart_bytes_per_s,
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
    applications = load_applications(path.resolve().parent.parent.parent / "traces", devices)
    jobs = read_sia(path, applications, spec.kind)[: spec.limit]
    # Under policies that resize, the others adapt to what there is; all policies run the same jobs.
    asked = jobs if spec.skip_infeasible else [job for job in jobs if job.kind == "rigid"]
    reasons = infeasible_jobs(asked, SchedulingSnapshot(cluster), None)
    jobs, skipped = without_infeasible(jobs, reasons, spec.skip_infeasible)
    truth = GoodputTruth(applications)
    table = {
        (device, Workload(name)): Solo(app.initial_step_s(device))
        for name, app in applications.items()
        for device, on in app.on.items()
        if on.stages == 1
    }
    config = SimulationConfig(free_moves=True, reevaluate_each_round=True)
    belief = SetCache(TablePredictor(table, {}))
    return Scenario(jobs, cluster, truth, belief, config, truth.agent, spec.upstream_rounds, skipped)
