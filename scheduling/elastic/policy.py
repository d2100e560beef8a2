"""IceFrog and two elastic peers as policies of the simulator; they differ in admission and objective.

Peng et al., "Optimus", EuroSys 2018, section 4.1: each further GPU goes where it shortens a job's remaining
time most. Qiao et al., "Pollux", OSDI 2021, section 4.2: the allocation with the best power mean (p = -1) of
speed-ups over a fair share, without knowing how long jobs take. Both freeze nothing and keep the batch; the
search is greedy instead of genetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.elastic.agent import ElasticAgent, elastic_job
from scheduling.elastic.allocate import allocate
from scheduling.elastic.jobs import ElasticJob, Grant, IceFrogConfig
from scheduling.elastic.penalty import FreezingGuards
from scheduling.elastic.sharing import share_gpus
from scheduling.elastic.turns import Turns
from scheduling.placement.gangs import Pool, exclusive_gpus, usable_gpus
from scheduling.placement.making_room import gpus_of_size

Allocator = Callable[[Sequence[ElasticJob], int, IceFrogConfig], list[Grant]]
OPTIMUS_ROUND_S = 600.0
NEVER = FreezingGuards(max_norm_share=0.0)
_BY_SUBMISSION = partial(allocate, admit_by="submission")


def icefrog(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """The policy of `scheduling.elastic.allocate`."""
    return _policy("icefrog", allocate, config)


def icefrog_unfrozen(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """The same allocator with k = 0, to isolate the effect of GPU elasticity."""
    return _policy("icefrog-unfrozen", allocate, replace(config, guards=NEVER))


def optimus(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """Largest fall of the sum of remaining times per GPU, as published.

    Jobs are admitted by submission, in rounds of 600 s.
    """
    allocator = partial(_BY_SUBMISSION, weigh_by="remaining")
    return _policy("optimus", allocator, replace(config, guards=NEVER, round_s=OPTIMUS_ROUND_S))


def optimus_shortest(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """Ours: Optimus in IceFrog's rounds, with the shortest job admitted first."""
    return _policy("optimus-shortest", partial(allocate, weigh_by="remaining"), replace(config, guards=NEVER))


def pollux(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """Largest fall of the sum of inverse speed-ups over a fair share; admission by submission."""
    return _policy("pollux", _BY_SUBMISSION, replace(config, guards=NEVER, shortness=0.0))


def pollux_freezing(config: IceFrogConfig = IceFrogConfig()) -> Policy:
    """Pollux's allocation on effective progress: each job freezes what pays, and nothing else changes."""
    return _policy("pollux-freezing", _BY_SUBMISSION, replace(config, shortness=0.0))


def _policy(name: str, allocator: Allocator, config: IceFrogConfig) -> Policy:
    decide = partial(_decide, allocator=allocator, config=config)
    freezes = config.guards.max_norm_share > 0
    return Policy(name, decide, round_s=config.round_s, preemptive=True, freezes=freezes)


def _decide(
    snapshot: SchedulingSnapshot, belief: SetCache, allocator: Allocator, config: IceFrogConfig
) -> list[Allocation]:
    # A job that may not be stopped keeps its GPUs and layers.
    bound = [s for s in snapshot.running.values() if not s.job.preemptible]
    states = sorted((s for s in snapshot.active() if s.job.preemptible or not s.gpus), key=lambda s: s.number)
    first = snapshot.derived("turns", Turns).first(states, snapshot, config.starvation_s)
    jobs = [elastic_job(state, snapshot, belief, state.number in first) for state in states]
    room = usable_gpus(snapshot, belief, up=True) - len({gpu for s in bound for gpu in s.gpus})
    grants = allocator(jobs, room, config)
    pairs = share_gpus(snapshot, states, grants, belief, config) if config.share_gpus else []
    prefix = {state.number: grant.prefix for state, grant in zip(states, grants, strict=True)}
    for pair in pairs:
        prefix[pair.host.number], prefix[pair.guest.number] = pair.host_prefix, pair.guest_prefix
    guests = {pair.guest.number for pair in pairs}
    own = [_Own(*each) for each in zip(states, jobs, grants, strict=True) if each[0].number not in guests]
    given_up = {gpu for state in states for gpu in state.gpus}
    places = _places(snapshot, belief, own, first, given_up)
    for pair in pairs:
        places[pair.guest.number] = places[pair.host.number]
    return [
        Allocation(state, places[state.number], _layers(state, prefix[state.number]))
        for state in [*(one.state for one in own), *(pair.guest for pair in pairs)]
        if places.get(state.number) or state.gpus
    ]


class _Own(NamedTuple):
    """A job that runs on GPUs of its own, if on any, and what it is granted."""

    state: JobState
    job: ElasticJob
    grant: Grant


def _places(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    own: Sequence[_Own],
    first: Collection[int],
    given_up: set[int],
) -> dict[int, tuple[int, ...]]:
    """GPUs of each job by number; one that is granted as many as it has stays, unless a job of `first` needs them.

    Args:
        given_up: GPUs of all jobs that may be stopped.
    """
    staying = {one.state.number for one in own if one.state.gpus and one.grant.gpus == len(one.state.gpus)}
    # If two jobs that shared a GPU both get one again, the first keeps it.
    for state, _, _ in own:
        mates = [t for t in snapshot.tenants[state.gpus[0]] if t is not state] if state.gpus else []
        if state.number in staying and any(m.number in staying for m in mates):
            staying.discard(state.number)
    places = {one.state.number: one.state.gpus for one in own if one.state.number in staying}
    pool = Pool(snapshot, also=given_up - {gpu for gpus in places.values() for gpu in gpus})
    moving = [one for one in own if one.state.number not in staying and (one.state.gpus or one.grant.gpus)]
    moving.sort(key=lambda one: (one.state.number not in first, -one.grant.gpus))
    for state, job, grant in moving:  # it grows meanwhile
        # The next smaller size if no node has room for it.
        sizes = [job.sizes[s] for s in range(grant.size, -1, -1) if job.rate[s, 0] > 0]
        places[state.number] = _gpus(pool, belief, state, sizes)
        if not sizes or places[state.number] or state.number not in first:
            continue
        # Jobs that would stay make room; those whose GPUs are needed move.
        yielding = [one for one in own if one.state.number in staying and one.state.number not in first]
        pool.release(gpu for one in yielding for gpu in one.state.gpus)
        places[state.number] = _gpus(pool, belief, state, sizes)
        for other in yielding:
            if pool.taken.isdisjoint(other.state.gpus):
                pool.withdraw(other.state.gpus)
            else:
                staying.discard(other.state.number)
                moving.append(other)
    if any(one.grant.gpus and not places[one.state.number] for one in own):
        _fill(pool, belief, own, places)
    return places


def _fill(pool: Pool, belief: SetCache, own: Sequence[_Own], places: dict[int, tuple[int, ...]]) -> None:
    """Give GPUs that a job cannot use, because no node has room for it, to jobs that would wait otherwise, in place.

    Running jobs keep theirs, and waiting ones get their smallest size.
    """
    idle = [one for one in own if not places.get(one.state.number)]
    for state, job, _ in sorted(idle, key=lambda one: not one.state.gpus):
        sizes = [size for s, size in enumerate(job.sizes) if job.rate[s, 0] > 0]
        if state.gpus or sizes:
            places[state.number] = gpus_of_size(pool, belief, state, len(state.gpus) or sizes[0])


def _gpus(pool: Pool, belief: SetCache, state: JobState, sizes: Sequence[int]) -> tuple[int, ...]:
    """GPUs of one type for the first of these sizes for which there is room."""
    return next(filter(None, (exclusive_gpus(pool, belief, state, size) for size in sizes)), ())


def _layers(state: JobState, prefix: int) -> int:
    """Frozen layers of a candidate; a job without an `ElasticAgent` keeps its current ones."""
    return state.agent.prefixes[prefix] if isinstance(state.agent, ElasticAgent) else state.frozen_prefix
