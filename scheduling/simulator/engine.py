"""The discrete-event simulator."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from predictor.types import SetPredictor
from profiling.errors import InfeasibleError
from scheduling.core.job import Allocation, JobState, TraceJob, check_ids
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import GroundTruth
from scheduling.simulator.realism import NodeOutages, Realism
from scheduling.simulator.result import Interval, SimulationResult

_MOST_IDLE_ROUNDS = 1000  # before a policy that runs no jobs is stopped
_MOST_LOST_STARTS = 1000  # consecutive, for a job that never reaches its next checkpoint


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """Configuration of a simulation.

    Attributes:
        free_moves: a job that keeps the type and number of its GPUs per node does not restart when only their
            location changes (as assumed by Sia's public simulator).
        record: record GPU assignments over time, for plots.
        reevaluate_each_round: query the ground truth again in every round (jobs that tune themselves).
        realism: uncertain lengths, early ends, node failures and lost progress; None for an ideal cluster.
        seed: seed for `realism`.
    """

    free_moves: bool = False
    record: bool = False
    reevaluate_each_round: bool = False
    realism: Realism | None = None
    seed: int = 0


def simulate(
    jobs: Sequence[TraceJob],
    cluster: ClusterSnapshot,
    policy: Policy,
    truth: GroundTruth,
    belief: SetPredictor | SetCache,
    config: SimulationConfig = SimulationConfig(),
    on_progress: Callable[[int, int], None] | None = None,
    agent: Callable[[TraceJob], object] | None = None,
) -> SimulationResult:
    """Run `jobs` on the initially empty `cluster` under `policy` until every job is done.

    Args:
        truth: actual speeds and memory of jobs.
        belief: predictor used by the policy.
        on_progress: called periodically with (jobs done, jobs).
        agent: creates the agent of a job that tunes itself.

    Raises:
        InputError: two jobs share an id.
        InfeasibleError: a job can never run here (too many GPUs, or its memory fits on no type), or the policy leaves
            jobs waiting forever, or never lets one reach its next checkpoint.
    """
    return _Simulation(jobs, cluster, policy, truth, belief, config, agent).run(on_progress)


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[TraceJob],
        cluster: ClusterSnapshot,
        policy: Policy,
        truth: GroundTruth,
        belief: SetPredictor | SetCache,
        config: SimulationConfig,
        agent: Callable[[TraceJob], object] | None,
    ) -> None:
        check_ids(jobs)
        self.policy, self.truth, self.config = policy, truth, config
        self.belief = SetCache.of(belief)
        self.snapshot = SchedulingSnapshot(cluster.without_tenants())
        ordered = sorted(jobs, key=lambda j: j.submit_s)
        self.jobs = [
            JobState(j, n, j.iterations, frozen_prefix=j.workload.frozen_prefix)
            for n, j in enumerate(ordered)
        ]
        self.realism = config.realism or Realism()
        self.checkpoint_s = self.realism.checkpoint_s
        self.lost_starts: dict[int, int] = {}  # by job number, since its last checkpoint
        self.outages: NodeOutages | None = None
        if config.realism is not None:
            rng = np.random.default_rng([config.seed, 19])
            config.realism.draw_lengths(self.jobs, rng)
            self.outages = NodeOutages(config.realism, self.snapshot, rng)
        if agent is not None:
            for state in self.jobs:
                state.agent = agent(state.job)
        self.events: list[tuple[float, int, JobState, int]] = []
        self.sequence = 0
        self.result = SimulationResult(policy.name, self.jobs, 0.0, len(self.snapshot), [])
        self.result.gpu_names = [
            f"{device} {node}/{gpu}"
            for device, (node, gpu) in zip(self.snapshot.devices, self.snapshot.names, strict=True)
        ]
        self.busy_since = [0.0] * len(self.snapshot)
        self.since: dict[tuple[int, int], float] = {}
        self.done = 0

    def run(self, on_progress: Callable[[int, int], None] | None) -> SimulationResult:
        arrivals, total, snapshot = 0, len(self.jobs), self.snapshot
        round_s = self.policy.round_s
        next_round, idle_rounds = math.inf, 0
        while self.done < total:
            now = self.events[0][0] if self.events else math.inf
            if arrivals < total:
                now = min(now, self.jobs[arrivals].job.submit_s)
            now = min(now, next_round)
            if self.outages is not None:
                if math.isinf(now) and not self.snapshot.down:
                    raise self._stuck()
                now = min(now, self.outages.next_s)
            if math.isinf(now):
                raise self._stuck()
            snapshot.now_s = now
            changed = False
            while self.outages is not None and self.outages.next_s <= now:
                self._fail(self.outages)
                changed = True
            while self.events and self.events[0][0] <= now:
                _, _, job, version = heapq.heappop(self.events)
                if job.version == version:
                    changed |= self._reached(job)
            while arrivals < total and self.jobs[arrivals].job.submit_s <= now:
                state = self.jobs[arrivals]
                state.updated_s = state.waiting_since_s = now
                snapshot.waiting[state.number] = state
                arrivals += 1
                changed = True
            if round_s is None:
                if changed and (snapshot.waiting or self.policy.preemptive):
                    # A placed job may accept another beside it, so ask again while anything changes.
                    before = -1
                    while self._decide() and snapshot.waiting and len(snapshot.waiting) != before:
                        before = len(snapshot.waiting)
            else:
                next_round = self._round(next_round, round_s, arrivals < total)
                # Rounds never stop, so starvation is detected by rounds without events.
                idle_rounds = 0 if self.events or arrivals < total else idle_rounds + 1
                if idle_rounds > _MOST_IDLE_ROUNDS:
                    raise self._stuck()
            if self.config.record:
                self.result.queue.append((now, len(snapshot.waiting)))
                down = len(self.snapshot.down)
                self.result.busy.append((now, len(snapshot) - int(snapshot.free.sum()) - down))
            if on_progress is not None and self.done % 64 == 0:
                on_progress(self.done, total)
        if on_progress is not None:
            on_progress(self.done, total)
        self.result.node_failures = self.outages.failures if self.outages is not None else 0
        return self.result

    def _round(self, next_round: float, round_s: float, more: bool) -> float:
        """Decide if a round begins now; returns the time of the next one. `more`: jobs will still arrive."""
        snapshot, now = self.snapshot, self.snapshot.now_s
        if not self.policy.aligned and snapshot.waiting and not snapshot.running:
            next_round = now
        decided = now >= next_round
        if decided:
            if self.config.reevaluate_each_round:
                for state in list(snapshot.running.values()):
                    self._proceed(state)
            if snapshot.waiting or snapshot.running:
                self._decide()
            next_round = math.inf
        if next_round < math.inf or not (snapshot.waiting or snapshot.running):
            return next_round
        if self.policy.rests and not snapshot.running:
            return math.inf if more else now
        if not self.policy.aligned:
            return now + round_s
        passed = math.floor(now / round_s + 1e-9) if decided else math.ceil(now / round_s - 1e-9) - 1
        return max((passed + 1) * round_s, now)

    def _stuck(self) -> InfeasibleError:
        waiting, running = self.snapshot.waiting, self.snapshot.running
        first = next(iter((running or waiting).values())).job
        what = f"{len(waiting)} jobs waiting with nothing running, the first is"
        if running:
            what = f"{len(running)} jobs on GPUs on which they make no progress, the first is"
        return InfeasibleError(
            f"{self.policy.name} leaves {what} {first.id} ({first.workload}, GPUs: {first.gpus})",
            hint="a policy must eventually place every job that an empty cluster could run",
        )

    def _decide(self) -> bool:
        """Query the policy and apply its decisions; returns whether there were any."""
        start = perf_counter()
        decisions = self.policy.decide(self.snapshot, self.belief)
        self.result.decisions_s.append(perf_counter() - start)
        if not decisions:
            return False
        stops = [d for d in decisions if d.job.gpus and d.gpus != d.job.gpus]
        touched: dict[int, None] = {}
        before = {d.job.number: (self._shape(d.job.gpus), d.job.started_s) for d in decisions}
        for decision in stops:
            touched.update(dict.fromkeys(decision.job.gpus))
            self._off(decision.job, bool(decision.gpus), saved=self.realism.saved_stops or self.policy.saves)
        for decision in decisions:
            self._put(decision, before[decision.job.number], touched)
        self._refresh(touched)
        return True

    def _put(
        self, decision: Allocation, before: tuple[object, float | None], touched: dict[int, None]
    ) -> None:
        job, snapshot = decision.job, self.snapshot
        if job.finished_s is not None or (job.gpus == decision.gpus and job.frozen_prefix == decision.prefix):
            return
        if not decision.gpus:
            if job.number not in snapshot.waiting and job.number not in snapshot.running:
                self._wait(job)
            return
        job.frozen_prefix = decision.prefix
        if job.gpus:  # the same ones
            touched.update(dict.fromkeys(job.gpus))
            return
        if self.snapshot.down.intersection(decision.gpus):
            self._wait(job)
            return
        for gpu in decision.gpus:
            if not self.truth.fits([*snapshot.tenants[gpu], job], gpu, snapshot):
                self._refuse(job, gpu)
                return
        snapshot.waiting.pop(job.number, None)
        first = job.started_s is None
        if first:
            job.started_s = snapshot.now_s
        job.waited_s += snapshot.now_s - job.waiting_since_s
        job.gpus = decision.gpus
        moved = not (self.config.free_moves and before[0] == self._shape(decision.gpus))
        if moved:
            job.resume_s = snapshot.now_s + self.truth.restart_s(job, first, snapshot)
            if not first:
                job.restarts += 1
        snapshot.running[job.number] = job
        for gpu in decision.gpus:
            if not snapshot.tenants[gpu]:
                self.busy_since[gpu] = snapshot.now_s
            self.since[job.number, gpu] = snapshot.now_s
        snapshot.occupy(job)
        job.updated_s = snapshot.now_s
        job.checkpoint_left, job.checkpoint_s = job.left, max(snapshot.now_s, job.resume_s)
        touched.update(dict.fromkeys(decision.gpus))

    def _refuse(self, job: JobState, gpu: int) -> None:
        """`job` runs out of memory on `gpu` and restarts: alone, or if it was alone, on another type."""
        start = (job.job.workload, int(self.snapshot.type_of[gpu]))
        if self.snapshot.tenants[gpu]:
            job.exclusive = True
        elif self.snapshot.refused.setdefault(start, self.snapshot.now_s) < self.snapshot.now_s:
            where = f"{self.snapshot.devices[gpu]} even alone"
            raise InfeasibleError(f"job {job.id} ({job.job.workload}) does not fit on {where}")
        self.result.out_of_memory += 1
        self._wait(job)

    def _fail(self, outages: NodeOutages) -> None:
        """The next node fails or recovers; jobs on a failed node go back to the queue."""
        gpus = outages.due()
        jobs = {t.number: t for gpu in gpus for t in self.snapshot.tenants[gpu]}
        touched = dict.fromkeys(gpu for job in jobs.values() for gpu in job.gpus)
        for job in jobs.values():
            self._off(job, False)
        outages.close(gpus, self.jobs[0])
        self._refresh(touched)

    def _wait(self, job: JobState) -> None:
        self.snapshot.running.pop(job.number, None)
        if job.number not in self.snapshot.waiting:
            job.waiting_since_s = self.snapshot.now_s
            self.snapshot.waiting[job.number] = job

    def _off(self, job: JobState, moves: bool, saved: bool = False) -> None:
        """Stop `job`; it goes back to its last checkpoint unless it is `saved` now."""
        snapshot = self.snapshot
        self._sync(job)
        if saved:
            self.lost_starts.pop(job.number, None)
        elif self.checkpoint_s > 0 and job.left > 0:
            self._lose(job)
        for gpu in job.gpus:
            start = self.since.pop((job.number, gpu))
            if self.config.record:
                self.result.intervals.append(Interval(job.number, gpu, start, snapshot.now_s))
        snapshot.vacate(job)
        for gpu in job.gpus:
            if not snapshot.tenants[gpu]:
                self.result.add_busy(snapshot.devices[gpu], snapshot.now_s - self.busy_since[gpu])
        job.gpus, job.rate = (), 0.0
        job.version += 1
        snapshot.running.pop(job.number, None)
        job.waiting_since_s = snapshot.now_s
        if not moves and job.finished_s is None:
            self._wait(job)

    def _sync(self, job: JobState) -> None:
        """Update iterations left and GPU-seconds to now."""
        elapsed = self.snapshot.now_s - job.updated_s
        job.left = max(job.left - job.rate * elapsed, 0.0)
        if self.checkpoint_s > 0 and job.gpus:
            taken = math.floor((self.snapshot.now_s - job.checkpoint_s) / self.checkpoint_s)
            if taken > 0:
                self.lost_starts.pop(job.number, None)
                job.checkpoint_s += taken * self.checkpoint_s
                since = min(self.snapshot.now_s - job.checkpoint_s, elapsed)
                job.checkpoint_left = job.left + job.rate * since
        if job.gpus and elapsed > 0:
            job.attained_gpu_s += elapsed * len(job.gpus)
            device = self.snapshot.devices[job.gpus[0]]
            job.served_s[device] = job.served_s.get(device, 0.0) + elapsed
        job.updated_s = self.snapshot.now_s

    def _lose(self, job: JobState) -> None:
        """Roll back to the last checkpoint."""
        lost_s = max(self.snapshot.now_s - max(job.checkpoint_s, job.resume_s), 0.0)
        self.result.lost_gpu_s += lost_s * len(job.gpus)
        job.left = job.checkpoint_left
        self.lost_starts[job.number] = lost = self.lost_starts.get(job.number, 0) + 1
        if lost > _MOST_LOST_STARTS:
            raise InfeasibleError(
                f"{self.policy.name} keeps stopping job {job.id} before its next checkpoint",
                expected=f"{self.checkpoint_s:g} s on its GPUs after a restart",
                got=f"{lost} starts that lost all their work",
                hint="use a policy with longer rounds, or simulate without realism",
            )

    def _proceed(self, job: JobState) -> None:
        """Query the ground truth for the next segment of `job`, and schedule its end."""
        self._sync(job)
        job.version += 1
        now = self.snapshot.now_s
        if job.resume_s > now:
            job.rate, when = 0.0, job.resume_s
        else:
            job.rate, job.until = self.truth.segment(job, self.snapshot)
            when = now + max(job.left - job.until, 0.0) / job.rate if job.rate > 0 else math.inf
        for gpu in job.gpus:
            self.snapshot.stamp[gpu] += 1
        if when < math.inf:
            self.sequence += 1
            heapq.heappush(self.events, (when, self.sequence, job, job.version))

    def _refresh(self, gpus: dict[int, None]) -> None:
        """Update the pace of all jobs on these GPUs."""
        seen: dict[int, JobState] = {}
        for gpu in gpus:
            for tenant in self.snapshot.tenants[gpu]:
                if tenant.number in self.snapshot.running:  # not an outage
                    seen[tenant.number] = tenant
        seen.update((job.number, job) for job in self.truth.affected(self.snapshot))
        for tenant in seen.values():
            self._proceed(tenant)

    def _reached(self, job: JobState) -> bool:
        """The end of a restart, a segment or the job. True if a policy may want to act."""
        if job.rate == 0.0:
            self._proceed(job)
            return False
        self._sync(job)
        job.left = job.until
        if job.until > 0:
            self.truth.segment_done(job)
            self._proceed(job)
            return False
        job.left = 0.0
        job.finished_s = self.snapshot.now_s
        gpus = dict.fromkeys(job.gpus)
        self._off(job, False)
        self.done += 1
        self._refresh(gpus)
        return True

    def _shape(self, gpus: Sequence[int]) -> tuple[object, ...]:
        """Type and GPUs per node, biggest first: what a checkpoint depends on."""
        if not gpus:
            return ()
        counts: dict[int, int] = {}
        for gpu in gpus:
            node = int(self.snapshot.node_of[gpu])
            counts[node] = counts.get(node, 0) + 1
        return (self.snapshot.devices[gpus[0]], *sorted(counts.values(), reverse=True))
