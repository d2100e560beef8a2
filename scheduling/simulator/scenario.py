"""A scenario, ready to run under any policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from predictor.types import SetPredictor
from profiling.errors import InputError, UnknownNameError
from profiling.names import one_of
from profiling.workload import Workload
from scheduling.beliefs.slice_table import KnownFits
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import GroundTruth, SetTruth
from scheduling.policies import POLICIES, SIZING, get_policy
from scheduling.simulator.engine import SimulationConfig, simulate
from scheduling.simulator.feasibility import check_requests
from scheduling.simulator.result import SimulationResult
from scheduling.slices.best_static import BEST, best_static
from scheduling.slices.cluster import SlicePolicy
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import SLICE_POLICIES, get_slice_policy, is_slice_policy
from scheduling.slices.simulate import SliceResult, simulate_slices
from scheduling.traces.remarks import RowCount


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
        if agent is not None and policy in POLICIES and policy not in SIZING:
            check_requests(policy, self.jobs, SchedulingSnapshot(self.cluster))
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
