"""Input of Sia's program: one row per job, one column per configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.types import Floats
from scheduling.core.job import JobState
from scheduling.core.set_cache import Ints, SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import solo_step_s
from scheduling.placement.progress import progress_per_s
from scheduling.sia.agent import Agent
from scheduling.sia.configurations import Configuration, configurations
from scheduling.sia.objective import SiaConfig, restart_factor, utilities

_RESTART_S = 30.0


def configuration_table(
    snapshot: SchedulingSnapshot, config: SiaConfig, jobs: list[JobState]
) -> list[Configuration]:
    """The paper's configurations, those of jobs that cannot have any of these sizes, and those that must be kept."""
    sizes = list(snapshot.gpus_per_node.values())
    node_sizes = [np.sort(snapshot.node_size[nodes])[::-1] for nodes in snapshot.nodes_of_type]
    full = [int((own == size).sum()) for own, size in zip(node_sizes, sizes, strict=True)]
    table = configurations(full, sizes, config.largest)
    known = {(c.gpus, c.kind) for c in table}
    of_kind = [{c.gpus for c in table if c.kind == kind} for kind in range(len(node_sizes))]
    # What a job requests is possible for it on any type with room, whatever it may be resized to.
    others = {
        (j.job.gpus, kind)
        for j in jobs
        for kind, counts in enumerate(of_kind)
        if _is_rigid(j) or j.job.batches is not None or counts.isdisjoint(_sizes(j))
    }
    for count, kind in sorted(others - known):
        own = node_sizes[kind]
        if count <= int(own.sum()):
            # The smallest number of nodes that hold this many.
            table.append(Configuration(int(np.searchsorted(own.cumsum(), count)) + 1, count, kind))
    held = (_held(snapshot, job) for job in jobs if job.gpus and not snapshot.movable(job))
    table.extend(dict.fromkeys(c for c in held if c not in table))
    return table


def _held(snapshot: SchedulingSnapshot, job: JobState) -> Configuration:
    """The configuration of a running job."""
    nodes = len({int(snapshot.node_of[g]) for g in job.gpus})
    return Configuration(nodes, len(job.gpus), int(snapshot.type_of[job.gpus[0]]))


@dataclass(frozen=True, slots=True, eq=False)
class JobRows:
    """J jobs that may each have one of C configurations.

    Attributes:
        goodput: [J, C] predicted, NaN where a configuration is not possible.
        least: [J] smallest numbers of GPUs.
        factor: [J] restart factors.
        current: [J] current configurations, or -1.
        forced: row to configuration of the jobs that keep theirs.
    """

    jobs: list[JobState]
    table: list[Configuration]
    goodput: Floats
    least: Floats
    factor: Floats
    current: Ints
    forced: dict[int, int]

    @classmethod
    def of(
        cls,
        snapshot: SchedulingSnapshot,
        belief: SetCache,
        jobs: list[JobState],
        table: list[Configuration],
    ) -> JobRows:
        goodput = np.full((len(jobs), len(table)), np.nan)
        least, factor = np.ones(len(jobs)), np.ones(len(jobs))
        current = np.full(len(jobs), -1, np.int64)
        index = {c: k for k, c in enumerate(table)}
        forced: dict[int, int] = {}
        for row, job in enumerate(jobs):
            goodput[row], least[row] = _goodput(snapshot, belief, job, table)
            cost = job.agent.application.penalty_s if isinstance(job.agent, Agent) else _RESTART_S
            factor[row] = restart_factor(snapshot.now_s - job.job.submit_s, job.restarts, cost)
            if job.gpus:
                current[row] = index.get(_held(snapshot, job), -1)
                # A job in the middle of a checkpoint-restart, or a non-preemptible one, keeps what it has.
                if not snapshot.movable(job):
                    forced[row] = int(current[row])
        return cls(jobs, table, goodput, least, factor, current, forced)

    def worth(self, goodput: Floats, config: SiaConfig) -> Floats:
        """[J, N] utilities of configurations with these goodputs [J, N], those of `table` first."""
        return utilities(goodput, self.least, self.factor, self.current, config)


def _goodput(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    job: JobState,
    table: list[Configuration],
) -> tuple[Floats, float]:
    """[C] predicted goodput of each configuration, and the smallest number of GPUs.

    Goodput is NaN where a configuration is not possible.
    """
    row = np.full(len(table), np.nan)
    agent = job.agent if isinstance(job.agent, Agent) else None
    rigid = _is_rigid(job)
    least = float(job.job.gpus) if rigid else 1.0
    if agent is None:
        low, top = job.job.gpu_range
        for kind, step_s in enumerate(solo_step_s(snapshot, belief, job.job.workload)):
            columns = [k for k, c in enumerate(table) if c.kind == kind and low <= c.gpus <= top]
            if columns and np.isfinite(step_s):
                value = progress_per_s(snapshot, belief, job, kind, [table[k].gpus for k in columns])
                row[columns] = np.where(value > 0, value, np.nan)
        return row, float(low)
    most = job.job.gpus if rigid else agent.most_gpus()
    for kind, device in enumerate(snapshot.types):
        if device not in agent.application.on:
            continue
        unit = agent.application.on[device].stages
        columns = [
            k
            for k, c in enumerate(table)
            if c.kind == kind
            and c.gpus % unit == 0
            and (
                c.gpus == most
                if rigid
                else (c.gpus // unit <= most and (agent.gradient is not None or c.gpus == unit))
            )
        ]
        if not columns:
            continue
        nodes = np.array([table[k].nodes for k in columns], float)
        replicas = np.array([table[k].gpus // unit for k in columns], float)
        goodput = agent.goodput(device, nodes, replicas, snapshot.gpus_per_node)
        if goodput is not None:
            row[columns] = goodput
        elif rigid:
            row[columns] = agent.application.on[device].single_samples_per_s
        else:
            row[columns] = 1.0
    return row, least


def _is_rigid(job: JobState) -> bool:
    """Whether it has a fixed number of GPUs.

    Jobs with an agent state it, those of other traces have a range or none.
    """
    return job.job.kind == "rigid" if isinstance(job.agent, Agent) else len(_sizes(job)) == 1


def _sizes(job: JobState) -> range:
    """Possible numbers of GPUs."""
    if isinstance(job.agent, Agent) and job.job.kind != "rigid":
        return range(1, job.agent.most_gpus() + 1)
    least, most = job.job.gpu_range
    return range(least, most + 1)
