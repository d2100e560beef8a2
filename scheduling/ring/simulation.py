"""Ring jobs in the simulator: contention as its ground truth, and the online policies as one of its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiling.errors import InputError
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import Segment
from scheduling.ring.engine import Execution, Gpu, placement_of
from scheduling.ring.model import RingCluster, RingJob, ring_timings
from scheduling.ring.online import OnlineConfig, choose, state_of


class RingTruth:
    """Step times of equation 8 under the contention of all running rings; GPUs are not shared.

    Args:
        cluster: its servers are the snapshot's nodes, in order.
        jobs: by the trace's job id.
        execution: fabric and form of equation 7; the simulator's time is continuous.
    """

    def __init__(
        self, cluster: RingCluster, jobs: Mapping[str, RingJob], execution: Execution | None = None
    ) -> None:
        self.cluster, self.jobs = cluster, jobs
        self.execution = execution or Execution()

    def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
        running = {one.id: self._ring_job(one) for one in snapshot.running.values()}
        placements = {one.id: placement_of(gpus_of(one, snapshot)) for one in snapshot.running.values()}
        timings = ring_timings(
            self.cluster,
            running,
            placements,
            fabric=self.execution.fabric,
            clamp=self.execution.clamp,
        )
        return Segment(1.0 / timings[job.id].iteration_time_s)

    def affected(self, snapshot: SchedulingSnapshot) -> list[JobState]:
        """Jobs whose pace may change when a job comes or leaves: all that cross a link."""
        return [
            one
            for one in snapshot.running.values()
            if len({int(snapshot.node_of[gpu]) for gpu in one.gpus}) > 1
        ]

    def fits(self, members: Sequence[JobState], _gpu: int, _snapshot: SchedulingSnapshot) -> bool:
        return len(members) == 1

    def restart_s(self, _job: JobState, _first: bool) -> float:
        return 0.0

    def segment_done(self, _job: JobState) -> None:
        """A job has one segment."""

    def _ring_job(self, job: JobState) -> RingJob:
        if job.id not in self.jobs:
            raise InputError(
                f"job {job.id!r} has no ring description", expected="one for every job of the trace"
            )
        return self.jobs[job.id]


def ring_policy(
    cluster: RingCluster,
    jobs: Mapping[str, RingJob],
    config: OnlineConfig | None = None,
    execution: Execution | None = None,
) -> Policy:
    """An online policy (`scheduling.ring.online`) as the simulator calls it: no preemption, no sharing of GPUs."""
    config, execution = config or OnlineConfig(), execution or Execution()

    def decide(snapshot: SchedulingSnapshot, _belief: SetCache) -> list[Allocation]:
        waiting = {state.id: state for state in snapshot.waiting.values()}
        running = {
            one.id: (jobs[one.id], gpus_of(one, snapshot), snapshot.left(one))
            for one in snapshot.running.values()
        }
        run = state_of(cluster, running, now_s=snapshot.now_s, execution=execution)
        queue = [jobs[name] for name in waiting]
        started = []
        while (start := choose(queue, run, config)) is not None:
            job, gpus = start
            queue.remove(job)
            run.start(job, gpus)
            numbers = tuple(snapshot.node_gpus[server][gpu] for server, gpu in gpus)
            started.append(Allocation(waiting[job.name], numbers))
        return started

    return Policy(f"ring-{config.order}-{config.pick}", decide)


def gpus_of(job: JobState, snapshot: SchedulingSnapshot) -> list[Gpu]:
    """(node, GPU of the node) of each GPU that the job holds."""
    gpus = []
    for number in job.gpus:
        node = int(snapshot.node_of[number])
        gpus.append((node, number - snapshot.node_gpus[node][0]))
    return gpus
