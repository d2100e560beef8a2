"""Ground truth of measured applications: progress per second by allocation, batch and epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiling.errors import InputError
from scheduling.core.job import JobState, TraceJob
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import Segment
from scheduling.sia.agent import Agent, Observation
from scheduling.sia.application import CALIBRATION, Application
from scheduling.sia.goodput import step_gain


class GoodputTruth:
    """Step times interpolated from the traces, efficiency from the recorded gradient statistics; slowed down per
    model relative to the physical cluster.

    Iterations of such a job are progress: steps of the initial batch.

    Args:
        applications: by name.
    """

    def __init__(self, applications: Mapping[str, Application]) -> None:
        self.applications = applications

    def agent(self, job: TraceJob) -> Agent:
        """The agent of `job`.

        Raises:
            InputError: the application was not measured.
        """
        if job.application not in self.applications:
            raise InputError(
                f"the application of job {job.id} was not measured",
                expected="one of " + ", ".join(self.applications),
                got=job.application,
            )
        return Agent(job, self.applications[job.application])

    def segment(self, job: JobState, snapshot: SchedulingSnapshot) -> Segment:
        agent, device = job.agent, snapshot.devices[job.gpus[0]]
        placement = node_counts(job, snapshot)
        app = agent.application
        agent.take_in(snapshot.now_s, job.resume_s)
        agent.tune(device, placement)
        batch = agent.batch(placement, device)
        sqr, var = app.gradient(batch, agent.epoch)
        on = app.on[device]
        step, sync = on.times_s(placement, agent.local_batch)
        agent.running = Observation(snapshot.now_s, device, placement, step, sync, (sqr, var))
        gain = float(step_gain(batch / app.batches[0], sqr, var))
        total = step + (step - sync) * (agent.accumulation if on.stages == 1 else 0)
        rate = gain / total / CALIBRATION.get(app.name, 1.0)
        return Segment(rate, max(job.job.iterations - app.progress(agent.epoch + 1), 0.0))

    def segment_done(self, job: JobState) -> None:
        """Count a finished epoch."""
        job.agent.epoch += 1

    def fits(self, members: Sequence[JobState], _gpu: int, _snapshot: SchedulingSnapshot) -> bool:
        return len(members) == 1

    def restart_s(self, job: JobState, _first: bool, _snapshot: SchedulingSnapshot) -> float:
        return float(job.agent.application.restart_s)

    def affected(self, _snapshot: SchedulingSnapshot) -> tuple[JobState, ...]:
        return ()


def node_counts(job: JobState, snapshot: SchedulingSnapshot) -> tuple[int, ...]:
    """GPUs of `job` per node, in the order of its GPUs."""
    counts: dict[int, int] = {}
    for gpu in job.gpus:
        node = int(snapshot.node_of[gpu])
        counts[node] = counts.get(node, 0) + 1
    return tuple(counts.values())
