"""A second simulator that recomputes everything at every event, by the rules in docs/scheduling.md only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.workload import Workload
from scheduling.core.job import TraceJob

RESTART_S = 30.0
POLICIES = ("fifo", "exclusive", "sjf", "srtf", "blind", "blind-sjf")
Gpus = tuple[int, ...]


@dataclass(eq=False)
class _Job:
    trace: TraceJob
    number: int
    left: float
    gpus: Gpus = ()
    ready_s: float = 0.0
    started: bool = False
    ended_s: float | None = None


class Naive:
    """Jobs on nodes, each (type, GPUs).

    Args:
        ratio: (type, workload, its neighbour) -> co-located / solo throughput of the workload.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, int]],
        solo_s: dict[tuple[str, Workload], float],
        ratio: Callable[[str, Workload, Workload], float],
    ) -> None:
        self.nodes, self.solo_s, self.ratio = nodes, solo_s, ratio
        self.places = [(kind, node) for node, (kind, count) in enumerate(nodes) for _ in range(count)]
        self.kinds = sorted({kind for kind, _ in nodes})
        self.now_s = 0.0

    def run(self, trace: Sequence[TraceJob], policy: str) -> dict[str, float]:
        """When each job ends."""
        ordered = sorted(trace, key=lambda job: job.submit_s)
        self.jobs = [_Job(job, number, job.iterations) for number, job in enumerate(ordered)]
        self.now_s = -1.0
        while open_jobs := [job for job in self.jobs if job.ended_s is None]:
            held = {job: self.step_s(job) for job in open_jobs if job.gpus}
            ends = {job: max(self.now_s, job.ready_s) + job.left * step_s for job, step_s in held.items()}
            arrivals = [job.trace.submit_s for job in open_jobs if job.trace.submit_s > self.now_s]
            before_s, self.now_s = self.now_s, min([*ends.values(), *arrivals])
            for job, step_s in held.items():
                job.left -= max(self.now_s - max(before_s, job.ready_s), 0.0) / step_s
                if ends[job] == self.now_s:
                    job.ended_s, job.gpus = self.now_s, ()
            while self.decide(policy):
                pass
        return {job.trace.id: float(job.ended_s or 0.0) for job in self.jobs}

    def tenants(self, gpu: int) -> list[_Job]:
        return [job for job in self.jobs if gpu in job.gpus]

    def step_s(self, job: _Job) -> float:
        """Of the slowest member of the gang."""
        slowest = 0.0
        for gpu in job.gpus:
            kind, own = self.places[gpu][0], job.trace.workload
            kept = [
                self.ratio(kind, own, other.trace.workload) for other in self.tenants(gpu) if other is not job
            ]
            slowest = max(slowest, self.solo_s[kind, own] / (kept[0] if kept else 1.0))
        return slowest

    def length(self, job: _Job) -> tuple[float, int]:
        fastest_s = min(self.solo_s[kind, job.trace.workload] for kind in self.kinds)
        return job.left * fastest_s / job.trace.priority, job.number

    def decide(self, policy: str) -> bool:
        """Start what the policy starts now; whether there was anything."""
        present = [job for job in self.jobs if job.trace.submit_s <= self.now_s and job.ended_s is None]
        if policy.endswith("sjf") or policy == "srtf":
            present.sort(key=self.length)
        waiting = [job for job in present if not job.gpus]
        stoppable: list[_Job] = []
        if policy == "srtf":
            room, run = len(self.places), []
            for job in present:
                if job.trace.gpus <= room:
                    room -= job.trace.gpus
                    run.append(job)
            waiting = [job for job in waiting if job in run]
            stoppable = [job for job in present if job.gpus and job not in run]
        empty = [gpu for gpu in range(len(self.places)) if not self.tenants(gpu)]
        lone = [gpu for gpu in range(len(self.places)) if [len(job.gpus) for job in self.tenants(gpu)] == [1]]
        empty = sorted(empty + [gpu for job in stoppable for gpu in job.gpus])
        started = False
        for job in waiting:
            gpus = self.whole(job, empty)
            if not gpus and policy.startswith("blind") and job.trace.gpus == 1 and lone:
                gpus = (lone.pop(0),)
            if gpus:
                for other in stoppable:
                    if set(other.gpus) & set(gpus):
                        other.gpus = ()
                empty = [gpu for gpu in empty if gpu not in gpus]
                job.gpus, job.ready_s = gpus, self.now_s + RESTART_S * job.started
                job.started = started = True
            elif policy == "fifo":
                break
        return started

    def whole(self, job: _Job, empty: Sequence[int]) -> Gpus:
        """Empty GPUs of the fastest type that has enough, on the node that they fill best if one is large enough."""
        count = job.trace.gpus
        for kind in sorted(self.kinds, key=lambda kind: self.solo_s[kind, job.trace.workload]):
            by_node = [
                [gpu for gpu in empty if self.places[gpu][1] == node]
                for node, (own, _) in enumerate(self.nodes)
                if own == kind
            ]
            if enough := [gpus for gpus in by_node if len(gpus) >= count]:
                return tuple(min(enough, key=len)[:count])
            if count > max(size for own, size in self.nodes if own == kind):
                scattered = [gpu for gpus in sorted(by_node, key=len, reverse=True) for gpu in gpus]
                if len(scattered) >= count:
                    return tuple(scattered[:count])
        return ()
