"""Policies that learn while they run: they observe the pace of co-located jobs, as any scheduler can after a
few steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from predictor.types import SetPredictor
from scheduling.beliefs.posterior import PosteriorLearner
from scheduling.core.job import Allocation, JobState
from scheduling.core.learner import Learner, SettledGpus
from scheduling.core.policy import Decide, Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import current_workload
from scheduling.policies import isacpp

MakeLearner = Callable[[SetPredictor], Learner]
# The default learner of the `-online` policies, over the given predictor.
LEARNER: MakeLearner = PosteriorLearner


@dataclass(slots=True, eq=False)
class _Learning:
    """A learner with the cache that policies query."""

    learner: Learner
    cache: SetCache
    settled: SettledGpus = field(default_factory=SettledGpus)
    revision: int = 0

    @classmethod
    def of(cls, learner: Learner) -> _Learning:
        return cls(learner, SetCache(learner), revision=learner.revision)

    def observe(self, snapshot: SchedulingSnapshot) -> None:
        self.learner.observe(snapshot)
        if self.learner.revision != self.revision:
            self.revision = self.learner.revision
            self.cache.forget()


def decide_learning(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    decide: Decide,
    moves: bool,
    make: MakeLearner,
) -> list[Allocation]:
    """`decide` with a belief that has observed the jobs of `snapshot` so far; it is stored with the snapshot.

    Args:
        moves: `decide` may act when no job waits, too.
    """
    learning = snapshot.derived(("learning", belief, make), lambda: _Learning.of(make(belief.predictor)))
    learning.observe(snapshot)
    parted = [
        Allocation(job)
        for gpu in learning.settled.new(snapshot)
        if (job := _to_part(snapshot, learning.cache, gpu)) is not None
    ]
    if parted:
        return parted
    return decide(snapshot, learning.cache) if snapshot.waiting or moves else []


def _to_part(snapshot: SchedulingSnapshot, cache: SetCache, gpu: int) -> JobState | None:
    """The last job to join `gpu`, if its tenants together do less work than one of them would alone."""
    tenants = snapshot.tenants[gpu]
    device = cache.device_id(snapshot.devices[gpu], snapshot.sharing[gpu])
    work = 0.0
    for tenant in tenants:
        row = cache.solo(device, cache.workload_id(current_workload(tenant)))
        work += tenant.rate * float(cache.step_time_s[row, 0])
    last = max(tenants, key=lambda t: (t.started_s or 0.0, t.number))
    return last if work < 1.0 and last.job.preemptible else None


def learning(policy: Policy, make: MakeLearner = LEARNER) -> Policy:
    """`policy` with a belief that learns while it runs, under the name `NAME-online`.

    Jobs that do less together than in turn are separated: the last to join goes back to the queue.

    Args:
        make: the learner, given the predictor.
    """
    decide = partial(decide_learning, decide=policy.decide, moves=policy.preemptive, make=make)
    return replace(policy, name=f"{policy.name}-online", decide=decide, preemptive=True)


POLICY = learning(isacpp.POLICY)
MAKESPAN = learning(isacpp.MAKESPAN)
