"""Simulated jobs that can change their GPUs and frozen prefix: possible and actual progress."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.types import Floats, SetPredictor
from scheduling.core.job import JobState, TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SCALING, Segment, SetTruth, current_workload
from scheduling.elastic.jobs import SIZES, ElasticJob, sizes_of
from scheduling.elastic.pairs import pair_slowdowns
from scheduling.placement.gangs import solo_step_s

PREFIX_CHANGE_S = 5.0
"""Cost of a change of the frozen prefix."""


@dataclass(eq=False, slots=True)
class ElasticAgent:
    """Throughput and norms of one job, and the progress that freezing has cost it.

    Attributes:
        prefixes: [K] candidate frozen prefixes, the first 0.
        rate: [S, K] iterations per second (fixed total batch) by `sizes_of`, 0 where it does not fit.
        grid: [P] progress at which `norm_shares` [P, K] were measured.
        kappa: exponent of the job's actual penalty.
        rate_on, believed_on: by device type, the true rates if types differ, and those assumed by a policy
            that does not know them.
        debt: penalty integrated over effective progress; `progress`: up to which it was integrated.
        kept: progress and debt at the last checkpoint.
    """

    prefixes: tuple[int, ...]
    rate: Floats
    grid: Floats
    norm_shares: Floats
    kappa: float
    progress: float = 0.0
    debt: float = 0.0
    kept: tuple[float, float] = (0.0, 0.0)
    penalty: float = 0.0
    prefix: int = 0
    size_changes: int = 0
    prefix_changes: int = 0
    rate_on: Mapping[str, Floats] = field(default_factory=dict)
    believed_on: Mapping[str, Floats] = field(default_factory=dict)

    def rate_for(self, device: str) -> Floats:
        """[S, K] true iterations per second on a type."""
        return self.rate_on.get(device, self.rate)

    def believed_for(self, device: str) -> Floats:
        """[S, K] iterations per second on a type, as assumed by a policy."""
        return self.believed_on.get(device, self.rate_for(device))

    def shares_at(self, progress: float) -> Floats:
        """[K] S_k at this progress."""
        position = min(max(progress, 0.0), 1.0) * (len(self.grid) - 1)
        low = min(int(position), len(self.grid) - 2)
        part = position - low
        return (1.0 - part) * self.norm_shares[low] + part * self.norm_shares[low + 1]


def size_index(gpus: int, sizes: Sequence[int] = SIZES) -> int:
    """Index of the largest of `sizes` that fits on `gpus` GPUs; -1 for none."""
    return bisect_right(sizes, gpus) - 1


def size_rates(job: TraceJob, step_time_s: float, scaling: float) -> Floats:
    """[S] iterations per second on each of `sizes_of` that `job` may have.

    k times its GPUs make k ** scaling times the progress.
    """
    least, most = job.gpu_range
    sizes = np.array(sizes_of(job), dtype=np.float64)
    allowed = (sizes >= least) & (sizes <= most)
    return np.where(allowed, (sizes / job.gpus) ** scaling / step_time_s, 0.0)


def elastic_job(
    state: JobState, snapshot: SchedulingSnapshot, belief: SetCache, goes_first: bool = False
) -> ElasticJob:
    """The allocator's view of a simulated job.

    GPU types count as equal, so jobs are compared by their pace on the type where each is fastest, whatever
    they hold; otherwise two jobs that hold different types would replace each other in every round. The gain
    from freezing is that on the current type. A job without an `ElasticAgent` is never frozen.
    """
    agent = state.agent if isinstance(state.agent, ElasticAgent) else None
    left = snapshot.left(state)
    progress = max(1.0 - left / state.expected_length, 0.0)
    if agent is None or agent.believed_on or agent.rate_on:
        steps = np.array(solo_step_s(snapshot, belief, state.job.workload))
        fastest = int(np.argmin(steps))
        kind = int(snapshot.type_of[state.gpus[0]]) if state.gpus else fastest
        if not np.isfinite(steps[kind]):
            kind = fastest
        if agent is None:
            rate = size_rates(state.job, float(steps[fastest]), SCALING)[:, None]
        else:
            rate = agent.believed_for(snapshot.types[kind])
            if kind != fastest:
                rate = rate * (steps[kind] / steps[fastest])
    else:
        rate = agent.rate
    return ElasticJob(
        number=state.number,
        left=left,
        rate=rate,
        norm_share=agent.shares_at(progress) if agent else np.zeros(1),
        progress=progress,
        # Both in shares of the expected length, whatever the actual one is.
        debt=agent.debt * state.job.iterations / state.expected_length if agent else 0.0,
        size=size_index(len(state.gpus), sizes_of(state.job)),
        prefix=agent.prefixes.index(state.frozen_prefix) if agent else 0,
        goes_first=goes_first,
        sizes=sizes_of(state.job),
    )


class ElasticTruth:
    """Ground truth for jobs with an `ElasticAgent`.

    Iterations weigh 1 - penalty; prefix changes and restarts cost time. The simulator must query again each
    round (`SimulationConfig(reevaluate_each_round=True)`), because norms change with progress.

    Args:
        shared: slowdowns and memory of two jobs on one GPU with their current prefixes; None: no sharing.
        alone: decides whether a job, with nothing frozen, fits on a GPU by itself; None: every job does.
        plain: the truth about the jobs with nothing frozen, whose restarts and scattered gangs cost the same here;
            None: a restart takes `restart_s`, and scattering costs nothing.
    """

    def __init__(
        self,
        restart_s: float = 30.0,
        round_s: float = 60.0,
        shared: SetPredictor | SetCache | None = None,
        alone: SetCache | None = None,
        plain: SetTruth | None = None,
    ) -> None:
        self.plain = plain
        self._restart_s, self.round_s = restart_s, round_s
        self.shared, self.alone = shared, alone
        self._held: dict[int, int] = {}

    def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
        agent: ElasticAgent = job.agent
        # A job that is killed early does not come closer to the end of its training for that.
        whole = job.real_iterations or job.job.iterations
        progress, kept = ((whole - left) / job.job.iterations for left in (job.left, job.checkpoint_left))
        if progress < agent.progress:  # back at its last checkpoint, with the debt of then
            agent.progress, agent.debt = agent.kept
        if agent.progress <= kept:
            agent.kept = kept, agent.debt + agent.penalty * (kept - agent.progress)
        agent.debt += agent.penalty * max(progress - agent.progress, 0.0)
        agent.progress = progress
        k = agent.prefixes.index(job.frozen_prefix)
        agent.penalty = min(max(float(agent.shares_at(progress)[k]), 0.0), 1.0) ** agent.kappa
        size = size_index(len(job.gpus), sizes_of(job.job))
        rate = float(agent.rate_for(snapshot.devices[job.gpus[0]])[size, k])
        if self.plain is not None and rate > 0:  # the penalty costs progress, and makes no step slower
            per_step = (len(job.gpus) / job.job.gpus) ** self.plain.scaling
            rate /= self.plain.scattering(job, snapshot, per_step / rate)
        rate *= 1.0 - agent.penalty
        mates = [t for t in snapshot.tenants[job.gpus[0]] if t is not job]
        if mates:
            rate /= self._slowdown([job, *mates], job.gpus[0], snapshot)[0]
        if k != agent.prefix:
            agent.prefix, agent.prefix_changes = k, agent.prefix_changes + 1
            rate *= 1.0 - PREFIX_CHANGE_S / self.round_s  # spread over the round until the next query
        held = self._held.get(job.number)
        if held is not None and held != len(job.gpus):
            agent.size_changes += 1
        self._held[job.number] = len(job.gpus)
        return Segment(rate)

    def fits(self, members: Sequence[JobState], gpu: int, snapshot: SchedulingSnapshot) -> bool:
        if len(members) == 1:
            return self.alone is None or bool(
                self.alone.answer(
                    snapshot.devices[gpu], [members[0].job.workload], snapshot.sharing[gpu]
                ).fits
            )
        return self.shared is not None and len(members) == 2 and self._slowdown(members, gpu, snapshot)[1]

    def _slowdown(
        self, members: Sequence[JobState], gpu: int, snapshot: SchedulingSnapshot
    ) -> tuple[float, bool]:
        """Slowdown of the first of two members, and whether both fit."""
        assert self.shared is not None
        pair = (current_workload(members[0]), current_workload(members[1]))
        slowdown, fits = pair_slowdowns(self.shared, snapshot.devices[gpu], snapshot.sharing[gpu], [pair])
        return max(float(slowdown[0, 0]), 1.0), bool(fits[0])

    def restart_s(self, job: JobState, first: bool, snapshot: SchedulingSnapshot) -> float:
        if self.plain is not None:
            return self.plain.restart_s(job, first, snapshot)
        return 0.0 if first else self._restart_s

    def segment_done(self, _job: JobState) -> None:
        """A job has one segment."""

    def affected(self, _snapshot: SchedulingSnapshot) -> tuple[JobState, ...]:
        return ()
