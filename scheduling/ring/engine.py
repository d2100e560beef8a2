"""Executes gang jobs over time: placements, rates, and the next completion.

Time is continuous by default; with `slot_s` it is in the paper's slots, in which a job does floor(slot / tau)
iterations (equation 9) and leaves at the end of the slot in which it is done. There is no preemption and no
migration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from profiling.errors import InfeasibleError, InputError
from scheduling.ring.fabric import SERVER_UPLINKS, Fabric, Link
from scheduling.ring.model import (
    RingCluster,
    RingJob,
    RingTiming,
    execution_s,
    iterations_per_slot,
    ring_timing,
)

Gpu = tuple[int, int]  # server, GPU of that server


@dataclass(frozen=True, slots=True)
class Execution:
    """How time passes: the links, equation 7 clamped or literal, and the slot (None: continuous time)."""

    fabric: Fabric = SERVER_UPLINKS
    clamp: bool = True
    slot_s: float | None = None

    def __post_init__(self) -> None:
        if self.slot_s is not None and not 0 < self.slot_s < float("inf"):
            raise InputError("slot_s", expected="a positive number of seconds", got=self.slot_s)


@dataclass(frozen=True, slots=True)
class Assignment:
    job: str
    gpus: tuple[Gpu, ...]
    start_s: float
    end_s: float

    @property
    def placement(self) -> dict[int, int]:
        """Server index → GPUs."""
        return placement_of(self.gpus)


@dataclass(frozen=True, slots=True)
class RingSchedule:
    """Every job once: its GPUs, start and end under the schedule's own contention."""

    assignments: tuple[Assignment, ...]

    @property
    def makespan_s(self) -> float:
        return max((assignment.end_s for assignment in self.assignments), default=0.0)

    def completion_s(self, arrivals_s: Mapping[str, float] | None = None) -> dict[str, float]:
        """Completion time of each job since its arrival (since 0 without `arrivals_s`)."""
        return {
            assignment.job: assignment.end_s - (arrivals_s or {}).get(assignment.job, 0.0)
            for assignment in self.assignments
        }

    @property
    def mean_completion_s(self) -> float:
        return sum(assignment.end_s for assignment in self.assignments) / len(self.assignments)


@dataclass(slots=True)
class Running:
    """A running job: `left` iterations remain at `since_s`, from which `timing` holds; it ends at `end_s`."""

    job: RingJob
    gpus: tuple[Gpu, ...]
    placement: dict[int, int]
    links: tuple[Link, ...]
    rings: int
    start_s: float
    since_s: float
    left: float
    timing: RingTiming
    end_s: float = 0.0


@dataclass
class RingRun:
    """State of a cluster while jobs run.

    Attributes:
        idle: idle GPUs of each server.
        load: work given to each GPU so far, in seconds of the schedulers' estimates (the paper's U).
        running: by job name.
    """

    cluster: RingCluster
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.idle: list[set[int]] = [set(range(count)) for count in self.cluster.servers]
        self.load: list[list[float]] = [[0.0] * count for count in self.cluster.servers]
        self.running: dict[str, Running] = {}
        self.done: list[Assignment] = []
        self._flows: dict[Link, int] = {}

    def start(self, job: RingJob, gpus: Sequence[Gpu], load_s: float = 0.0) -> None:
        """Start `job` now on idle GPUs, and add `load_s` of work to each of them.

        Raises:
            InputError: the gang is incomplete, or a GPU is busy or does not exist.
        """
        if len(set(gpus)) != job.gpus or len(gpus) != job.gpus:
            raise InputError(
                f"job {job.name!r} is not placed completely", expected=f"{job.gpus} GPUs", got=gpus
            )
        if job.name in self.running:
            raise InputError(f"job {job.name!r} is already running", expected="each job once")
        for server, gpu in gpus:
            if not 0 <= server < len(self.idle) or gpu not in self.idle[server]:
                raise InputError(
                    f"job {job.name!r}: GPU {gpu} of server {server} is not idle", expected="an idle GPU"
                )
        for server, gpu in gpus:
            self.idle[server].remove(gpu)
            self.load[server][gpu] += load_s
        placement = placement_of(gpus)
        links = self.execution.fabric.links(placement)
        rings = self.execution.fabric.rings(placement)
        self._add_flows(links, rings)
        run = Running(
            job,
            tuple(gpus),
            placement,
            links,
            rings,
            self.now_s,
            self.now_s,
            job.iterations,
            RingTiming(0, 0, 1),
        )
        self.running[job.name] = run
        run.timing = self._timing(run)
        run.end_s = self._end_s(run)
        self._retime(links)

    def next_exit_s(self) -> float:
        """When the next job ends if nothing else starts; infinity if none runs."""
        return min((run.end_s for run in self.running.values()), default=float("inf"))

    def advance(self, until_s: float) -> None:
        """Advance time to `until_s`; jobs that end by then leave, and the others speed up."""
        while self.running and (exit_s := self.next_exit_s()) <= until_s:
            self.leave(exit_s)
        self.now_s = max(self.now_s, until_s)

    def leave(self, exit_s: float | None = None) -> list[str]:
        """Advance to the next exit, and return the names of the jobs that end there.

        Raises:
            InfeasibleError: jobs run but none makes progress (an iteration is longer than a slot).
        """
        exit_s = self.next_exit_s() if exit_s is None else exit_s
        if exit_s == float("inf"):
            slow = next(iter(self.running.values()))
            raise InfeasibleError(
                f"job {slow.job.name!r} never ends",
                expected="iterations no longer than a slot",
                got=f"{slow.timing.iteration_time_s:g} s in slots of {self.execution.slot_s:g} s",
            )
        self.now_s = exit_s
        # Jobs that end together may differ by rounding.
        names = [name for name, run in self.running.items() if run.end_s <= exit_s + 1e-9 * max(1, exit_s)]
        freed: list[Link] = []
        for name in names:
            run = self.running.pop(name)
            for server, gpu in run.gpus:
                self.idle[server].add(gpu)
            self._add_flows(run.links, -run.rings)
            freed.extend(run.links)
            self.done.append(Assignment(name, run.gpus, run.start_s, exit_s))
        self._retime(freed)
        return names

    def finish(self) -> RingSchedule:
        """Run all jobs to their end; returns the schedule, by start."""
        while self.running:
            self.leave()
        return RingSchedule(
            tuple(sorted(self.done, key=lambda assignment: (assignment.start_s, assignment.job)))
        )

    def split_rings(self, server: int) -> int:
        """Rings that cross the uplink of `server` now."""
        return self._flows.get(("server", server), 0)

    def _add_flows(self, links: Iterable[Link], flows: int) -> None:
        for link in links:
            self._flows[link] = self._flows.get(link, 0) + flows

    def _timing(self, run: Running) -> RingTiming:
        fabric = self.execution.fabric
        load = max((self._flows[link] / fabric.flows_at_full_rate(link) for link in run.links), default=0)
        return ring_timing(
            self.cluster, run.job, run.placement, load, rings=run.rings, clamp=self.execution.clamp
        )

    def _retime(self, links: Sequence[Link]) -> None:
        """Update the jobs on `links` to now and set their new rates."""
        changed = set(links)
        if not changed:
            return
        for run in self.running.values():
            if changed.isdisjoint(run.links):
                continue
            timing = self._timing(run)
            if timing.contention != run.timing.contention:
                run.left, run.since_s, run.timing = self.left(run), self.now_s, timing
                run.end_s = self._end_s(run)

    def left(self, run: Running) -> float:
        """Iterations that a job has left now; its own field is as of the last change of its rate."""
        slot_s = self.execution.slot_s
        if slot_s is None:
            return max(0.0, run.left - (self.now_s - run.since_s) / run.timing.iteration_time_s)
        slots = round((self.now_s - run.since_s) / slot_s)
        return max(0.0, run.left - slots * iterations_per_slot(run.timing, slot_s))

    def _end_s(self, run: Running) -> float:
        slot_s = self.execution.slot_s
        if slot_s is None:
            return run.since_s + execution_s(run.job, run.left, run.timing.iteration_time_s)
        done = iterations_per_slot(run.timing, slot_s)
        return run.since_s + -(-run.left // done) * slot_s if done else float("inf")


def placement_of(gpus: Iterable[Gpu]) -> dict[int, int]:
    """Server index → GPUs, servers ascending."""
    placement: dict[int, int] = {}
    for server, _ in sorted(gpus):
        placement[server] = placement.get(server, 0) + 1
    return placement
