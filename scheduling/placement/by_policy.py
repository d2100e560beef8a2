"""Single placement decisions by any policy, for the service.

The policy chooses the GPUs, the ranking predicts the outcome.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from predictor.types import SetPredictor
from profiling.workload import Workload
from scheduling.core.job import Allocation, JobState, TraceJob
from scheduling.core.limits import unknown_steps
from scheduling.core.policy import Policy, PolicyError
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.decision import PlacementDecision, RankedGpu
from scheduling.placement.gangs import solo_step_s
from scheduling.placement.place import Placer
from scheduling.placement.ranking import PlacementConfig

_JOB_ID = "job"


class PolicyPlacer(Placer):
    """A `Placer` whose choice is a policy's.

    `ranked` begins with the GPU chosen by the policy, which sees the cluster with its tenants running and the job as the
    only waiting one. No job may be stopped or moved, because the service does neither. A stateful policy starts afresh
    each time.
    """

    def __init__(self, predictor: SetPredictor | SetCache, policy: Policy) -> None:
        super().__init__(predictor)
        self.policy = policy

    def _decide(
        self, job: Workload, iterations: float | None, snapshot: ClusterSnapshot, config: PlacementConfig
    ) -> PlacementDecision:
        ranking = super()._decide(job, iterations, snapshot, replace(config, wait=False))
        steps = ranking.iterations
        assert steps is not None  # `Placer` always says
        allocation, state = self._allocation(job, steps, snapshot, config)
        if allocation is None:
            why = f"policy {self.policy.name} lets the job wait"
            return replace(ranking, decision="wait", reasons=(*ranking.reasons, why))
        chosen = self._chosen(allocation, state, steps, ranking, config)
        others = tuple(r for r in ranking.ranked if (r.node, r.gpu) != (chosen.node, chosen.gpu))
        return replace(ranking, decision="place", ranked=(chosen, *others)[: config.limit])

    def choose(
        self,
        job: Workload,
        iterations: float | None,
        snapshot: ClusterSnapshot,
        config: PlacementConfig = PlacementConfig(),
    ) -> tuple[str, str] | None:
        """Node and id of the GPU that the policy chooses, the first of a gang; None if it lets the job wait."""
        steps = iterations
        if steps is None:
            fastest = min(solo_step_s(SchedulingSnapshot(snapshot), self.cache, job))
            if not isfinite(fastest):
                return None
            steps = unknown_steps(fastest, config.default_duration_s)
        allocation, state = self._allocation(job, steps, snapshot, config)
        return None if allocation is None else state.names[allocation.gpus[0]]

    def _allocation(
        self, job: Workload, steps: float, snapshot: ClusterSnapshot, config: PlacementConfig
    ) -> tuple[Allocation | None, SchedulingSnapshot]:
        """The policy's decision about the job, None to wait, and what it saw."""
        state = SchedulingSnapshot(snapshot)
        waiting = JobState(
            TraceJob(_JOB_ID, job, steps, gpus=config.gpus, preemptible=False),
            0,
            steps,
            frozen_prefix=job.frozen_prefix,
        )
        state.waiting[0] = waiting
        # Policies that divide the GPUs among the jobs would count a shared one once for each of its tenants.
        for tenant in (t for tenants in state.tenants for t in tenants[1:]):
            del state.running[tenant.number]
        decisions = self.policy.decide(state, self.cache)
        return next((a for a in decisions if a.job is waiting and a.gpus), None), state

    def _chosen(
        self,
        allocation: Allocation,
        state: SchedulingSnapshot,
        steps: float,
        ranking: PlacementDecision,
        config: PlacementConfig,
    ) -> RankedGpu:
        """The policy's choice with its times.

        Raises:
            PolicyError: the job does not fit there, or the GPU has as many jobs as it may.
        """
        by = f"chosen by policy {self.policy.name}"
        gang = tuple(state.names[gpu] for gpu in allocation.gpus)
        for candidate in ranking.ranked:
            if (candidate.gang or ((candidate.node, candidate.gpu),)) == gang:
                return replace(candidate, reasons=(*candidate.reasons, by))
        # A GPU refused by the ranking (slowdown budget), or beyond its limit.
        first = allocation.gpus[0]
        together = [*(tenant.job.workload for tenant in state.tenants[first]), allocation.job.job.workload]
        if len(together) > config.max_members:
            raise PolicyError(
                f"policy {self.policy.name} chose a full GPU, {'/'.join(gang[0])}", expected=f"at most {config.max_members} jobs",
                got=len(together),
            )  # fmt: skip
        answer = self.cache.answer(state.devices[first], together, state.sharing[first])
        if not answer.fits:
            raise PolicyError(
                f"policy {self.policy.name} chose {'/'.join(gang[0])}, where the job does not fit", expected="a GPU with enough memory and "
                "the job's precision (`belief.answer(...).fits`)",
            )  # fmt: skip
        finish_s = steps * answer.step_time_s[-1]
        reasons = (
            f"done in {finish_s:.0f} s at the pace beside {len(together) - 1} on {state.devices[first]}",
            by,
        )
        return RankedGpu(*gang[0], finish_s, finish_s, {}, reasons, gang if len(gang) > 1 else ())
