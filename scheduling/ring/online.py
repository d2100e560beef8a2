"""Online scheduling: jobs arrive, wait in a queue, start as gangs, and slow each other down on the links.

`choose` decides which waiting job starts now and where; `run_online` is the loop around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from profiling.errors import InputError
from scheduling.ring.dispatch import check_gangs
from scheduling.ring.engine import Execution, Gpu, RingRun, RingSchedule, placement_of
from scheduling.ring.model import RingCluster, RingJob, ring_timings
from scheduling.ring.pick import Pick, estimate_s, fa_ffp, whole_or_wait
from scheduling.ring.search import PRIORITIES

ORDERS = ("arrival", "narrowest", "shortest", "least-work")
BACKFILLS = ("none", "any", "reserve")
ADMISSIONS = ("always", "cheaper-than-waiting")


def _spread(job: RingJob, run: RingRun) -> tuple[Gpu, ...] | None:
    return fa_ffp(job, run, packing=False)


ONLINE_PICKS: dict[str, Pick] = {"pack": fa_ffp, "spread": _spread, "whole-or-wait": whole_or_wait}


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """An online policy.

    Args:
        order: of the queue: by arrival, gang size (then length), estimated length, or GPUs times length.
        pick: `pack`, `spread` (least used GPUs) or `whole-or-wait` (split only gangs that no server holds).
        backfill: if the first in the queue cannot start: no job may overtake it (`none`), any may (`any`), or
            only those that end before it could start or leave it enough GPUs (`reserve`, EASY backfilling).
        admission: `cheaper-than-waiting` holds a split job back while the delay it would cause to itself and
            to the running jobs is longer than the time to the next exit.
    """

    order: str = "arrival"
    pick: str = "pack"
    backfill: str = "none"
    admission: str = "always"

    def __post_init__(self) -> None:
        for name, known in (
            ("order", ORDERS),
            ("pick", tuple(ONLINE_PICKS)),
            ("backfill", BACKFILLS),
            ("admission", ADMISSIONS),
        ):
            if getattr(self, name) not in known:
                raise InputError(name, expected="one of " + ", ".join(known), got=repr(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class RingArrival:
    job: RingJob
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_s < float("inf"):
            raise InputError("arrival_s", expected="a number from 0", got=self.arrival_s)


@dataclass(frozen=True, slots=True)
class OnlineResult:
    schedule: RingSchedule
    arrivals_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first arrival to the last end."""
        return self.schedule.makespan_s - min(self.arrivals_s.values(), default=0.0)

    def summary(self) -> dict[str, float]:
        """Completion and queueing times since arrival, in the names that `cotenant simulate` prints."""
        import numpy as np

        jct = np.asarray(list(self.schedule.completion_s(self.arrivals_s).values()) or [0.0])
        queue = [
            assignment.start_s - self.arrivals_s[assignment.job] for assignment in self.schedule.assignments
        ]
        return {
            "jobs": len(self.schedule.assignments),
            "mean_jct_s": float(jct.mean()),
            "median_jct_s": float(np.median(jct)),
            "p99_jct_s": float(np.percentile(jct, 99)),
            "makespan_s": self.makespan_s,
            "mean_queue_s": float(np.mean(queue)) if queue else 0.0,
        }


def choose(
    waiting: Sequence[RingJob], run: RingRun, config: OnlineConfig
) -> tuple[RingJob, tuple[Gpu, ...]] | None:
    """The next waiting job to start now and its GPUs, or None; `run` is not modified.

    Call again after starting it, until None. If nothing is running, some job starts if any fits.

    Args:
        waiting: in order of arrival.
        run: the cluster.
        config: the policy.
    """
    line = _in_order(waiting, run.cluster, config.order)
    pick = ONLINE_PICKS[config.pick]
    idle = sum(map(len, run.idle))
    shadow_s, spare = float("inf"), 0
    for position, job in enumerate(line):
        gpus = pick(job, run) if job.gpus <= idle else None
        if gpus is not None and config.admission != "always":
            gpus = gpus if _cheaper_than_waiting(job, gpus, run) else None
        if gpus is not None:
            ends_s = run.now_s + estimate_s(run.cluster, job)
            if position == 0 or config.backfill == "any" or ends_s <= shadow_s or job.gpus <= spare:
                return job, gpus
        if position == 0:
            if config.backfill == "none":
                return None
            shadow_s, spare = _reservation(job, run)
    return None


def run_online(
    cluster: RingCluster,
    arrivals: Iterable[RingArrival],
    config: OnlineConfig = OnlineConfig(),
    execution: Execution = Execution(),
) -> OnlineResult:
    """Run a queue of arriving jobs to the end. In slot time, jobs start at slots.

    Raises:
        InfeasibleError: a gang is larger than the cluster.
        InputError: two jobs have the same name.
    """
    coming = sorted(arrivals, key=lambda arrival: arrival.arrival_s)
    arrivals_s = {arrival.job.name: arrival.arrival_s for arrival in coming}
    if len(arrivals_s) != len(coming):
        raise InputError("arrivals", expected="each job name once")
    check_gangs(cluster, [arrival.job for arrival in coming])
    run = RingRun(cluster, execution)
    slot_s = run.execution.slot_s

    def visible_s(arrival: RingArrival) -> float:
        return arrival.arrival_s if slot_s is None else -(-arrival.arrival_s // slot_s) * slot_s

    coming.reverse()
    waiting: list[RingJob] = []
    while coming or waiting:
        while coming and visible_s(coming[-1]) <= run.now_s:
            waiting.append(coming.pop().job)
        while (start := choose(waiting, run, config)) is not None:
            job, gpus = start
            waiting.remove(job)
            run.start(job, gpus, estimate_s(cluster, job))
        next_arrival_s = visible_s(coming[-1]) if coming else float("inf")
        if run.next_exit_s() <= next_arrival_s and (run.running or waiting):
            run.leave()
        elif coming:
            run.advance(next_arrival_s)
    return OnlineResult(run.finish(), arrivals_s)


def _in_order(waiting: Sequence[RingJob], cluster: RingCluster, order: str) -> Sequence[RingJob]:
    if order == "arrival":
        return waiting
    return sorted(waiting, key=lambda job: PRIORITIES[order](cluster, job))


def _reservation(head: RingJob, run: RingRun) -> tuple[float, int]:
    """When enough GPUs are idle for `head` at current rates, and how many are then left over."""
    idle = sum(map(len, run.idle))
    if idle >= head.gpus:
        # Enough GPUs are idle, but pick or admission rejects them: try again at the next exit.
        return run.next_exit_s(), 0
    for end_s, gpus in sorted((running.end_s, running.job.gpus) for running in run.running.values()):
        idle += gpus
        if idle >= head.gpus:
            return end_s, idle - head.gpus
    return float("inf"), 0


def _cheaper_than_waiting(job: RingJob, gpus: tuple[Gpu, ...], run: RingRun) -> bool:
    placement = placement_of(gpus)
    if len(placement) == 1 or not run.running:
        return True
    fabric, clamp = run.execution.fabric, run.execution.clamp
    jobs = {name: running.job for name, running in run.running.items()} | {job.name: job}
    placements = {name: running.placement for name, running in run.running.items()} | {job.name: placement}
    then = ring_timings(run.cluster, jobs, placements, fabric=fabric, clamp=clamp)
    alone = ring_timings(run.cluster, jobs, {job.name: placement}, fabric=fabric, clamp=clamp)
    delay_s = job.iterations * (then[job.name].iteration_time_s - alone[job.name].iteration_time_s)
    for name, running in run.running.items():
        delay_s += run.left(running) * (then[name].iteration_time_s - running.timing.iteration_time_s)
    return delay_s <= run.next_exit_s() - run.now_s
