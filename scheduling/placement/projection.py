"""Projects the jobs of a snapshot after a decision, under a plain rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.placement.gangs import solo_step_s
from scheduling.placement.plain_schedule import PlainJob, PlainRule, PlainSchedule, Steps


class Projection:
    """The jobs of a snapshot, to be projected after different decisions.

    Args:
        snapshot: the cluster.
        belief: predictions.
        steps: predicted step times.
        restart_s: cost of stopping or moving a job; a restart under way counts as work.
    """

    def __init__(
        self, snapshot: SchedulingSnapshot, belief: SetCache, steps: Steps, restart_s: float
    ) -> None:
        self._snapshot, self._steps, self._restart_s = snapshot, steps, restart_s
        self._kinds = snapshot.type_of.tolist()
        self.jobs: dict[int, PlainJob] = {}
        self.left: dict[int, float] = {}
        for job in snapshot.active():
            self.jobs[job.number] = plain_job(snapshot, belief, job)
            self.left[job.number] = snapshot.left(job)
            if job.gpus and job.resume_s > snapshot.now_s:
                step = self.jobs[job.number].solo[self._kinds[job.gpus[0]]]
                self.left[job.number] += (job.resume_s - snapshot.now_s) / step
        for tenant in (t for members in snapshot.tenants for t in members if t.number not in self.jobs):
            solo = solo_step_s(snapshot, belief, tenant.job.workload)
            self.jobs[tenant.number] = PlainJob(
                belief.workload_id(tenant.job.workload), 0.0, 1, False, solo, 0.0, counts=False
            )
            step = solo[self._kinds[tenant.gpus[0]]]
            self.left[tenant.number] = snapshot.left(tenant) / (step if step < np.inf else 1.0)

    def schedule(
        self, decisions: Sequence[Allocation], rule: PlainRule, waits: bool = False
    ) -> tuple[PlainSchedule, dict[int, tuple[int, ...]]]:
        """Apply `decisions`, then continue with `rule`.

        Args:
            waits: whether the other jobs wait until the next departure; otherwise `rule` may start them at once.

        Returns:
            The schedule, and the GPUs by number of the jobs that the rule starts first.
        """
        snapshot, left = self._snapshot, self.left.copy()
        tenants = [[t.number for t in members] for members in snapshot.tenants]
        waiting = set(snapshot.waiting)
        for decision in decisions:
            for gpu in decision.job.gpus:
                tenants[gpu].remove(decision.job.number)
        for decision in decisions:
            number = decision.job.number
            for gpu in decision.gpus:
                tenants[gpu].append(number)
            if decision.job.started_s is not None:
                solo = self.jobs[number].solo
                left[number] += self._restart_s / (
                    solo[self._kinds[decision.gpus[0]]] if decision.gpus else min(solo)
                )
            if decision.gpus:
                waiting.discard(number)
            else:
                waiting.add(number)
        now_s = snapshot.now_s
        schedule = PlainSchedule(self._steps, self._kinds, self.jobs.copy(), left, tenants, now_s, rule)
        queued_s = schedule.next_s if waits and schedule.next_s < np.inf else now_s
        started = schedule.submit([(n, self.jobs[n], left[n]) for n in waiting], queued_s)
        return schedule, started


def plain_job(snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> PlainJob:
    """`job` as numbers."""
    solo = solo_step_s(snapshot, belief, job.job.workload)
    gpus = len(job.gpus) or job.job.gpus
    return PlainJob(
        belief.workload_id(current_workload(job)),
        job.job.submit_s,
        gpus,
        gpus == 1 and not job.exclusive,
        solo,
        snapshot.left(job) * min(solo) / job.job.priority,
    )
