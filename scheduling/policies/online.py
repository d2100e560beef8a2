"""Policies that learn while they run: they see how fast jobs go together, as any scheduler does after a few steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from scheduling.beliefs.online import LearningBelief
from scheduling.core.job import Allocation
from scheduling.core.policy import Decide, Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies import isacpp


def decide_learning(
    snapshot: SchedulingSnapshot, belief: SetCache, decide: Decide, part: bool
) -> list[Allocation]:
    """`decide` with a belief that has seen how the jobs of `snapshot` went so far; it is kept with the snapshot."""
    learner = snapshot.derived.setdefault(("learning", belief), LearningBelief(belief.predictor))
    assert isinstance(learner, LearningBelief)
    new = learner.observe(snapshot)
    if part:
        stopped = [Allocation(job) for gpu in new if (job := learner.to_part(snapshot, gpu)) is not None]
        if stopped:
            return stopped
    return decide(snapshot, learner.cache) if snapshot.waiting else []


def learning(policy: Policy, part: bool = True) -> Policy:
    """`policy` with a belief that learns while it runs, under the name `NAME-online`.

    Args:
        part: jobs that were seen to do less together than one after the other are parted: the last to come goes back
            to the queue.
    """
    decide = partial(decide_learning, decide=policy.decide, part=part)
    return replace(policy, name=f"{policy.name}-online", decide=decide, preemptive=policy.preemptive or part)


POLICY = learning(isacpp.POLICY)
MAKESPAN = learning(isacpp.MAKESPAN)
