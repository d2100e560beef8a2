"""IceFrog and two elastic peers as policies of the simulator: they differ in whom they admit and in what they weigh.

Peng et al., "Optimus", EuroSys 2018, section 4.1: each further GPU goes where it shortens a job's remaining time most.
Qiao et al., "Pollux", OSDI 2021, section 4.2: the allocation with the best power mean (p = -1) of speed-ups over a
fair share, without knowing how long jobs take. Both freeze nothing and keep the batch; greedy instead of genetic search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from predictor.types import SetPredictor
from scheduling.elastic.agent import elastic_job
from scheduling.elastic.allocate import allocate
from scheduling.elastic.jobs import SIZES, ElasticJob, Grant, IceFrogConfig
from scheduling.elastic.penalty import FreezingGuards
from scheduling.policies.api import Policy
from scheduling.policies.gangs import Pool
from scheduling.sets import SetCache
from scheduling.simulator.job import Allocation
from scheduling.simulator.state import SchedulingSnapshot

Allocator = Callable[[Sequence[ElasticJob], int, IceFrogConfig], list[Grant]]
NEVER = FreezingGuards(max_norm_share=0.0)


def icefrog(config: IceFrogConfig | None = None, name: str = "icefrog") -> Policy:
    """The policy of `scheduling.elastic.allocate`."""
    return _policy(name, allocate, config or IceFrogConfig())


def icefrog_unfrozen(config: IceFrogConfig | None = None) -> Policy:
    """The same allocator with k = 0: what GPU elasticity alone gives."""
    return icefrog(replace(config or IceFrogConfig(), guards=NEVER), "icefrog-unfrozen")


def optimus(config: IceFrogConfig | None = None) -> Policy:
    """Greatest fall of the sum of remaining times per GPU."""
    return _policy("optimus", _optimus, replace(config or IceFrogConfig(), guards=NEVER))


def pollux(config: IceFrogConfig | None = None) -> Policy:
    """Greatest fall of the sum of inverse speed-ups over a fair share; admission by submission."""
    return _policy("pollux", _pollux, replace(config or IceFrogConfig(), guards=NEVER, shortness=0.0))


def _optimus(jobs: Sequence[ElasticJob], gpus: int, config: IceFrogConfig) -> list[Grant]:
    return allocate(jobs, gpus, config, weigh_by="remaining")


def _pollux(jobs: Sequence[ElasticJob], gpus: int, config: IceFrogConfig) -> list[Grant]:
    return allocate(jobs, gpus, config, admit_by="submission")


def _policy(name: str, allocator: Allocator, config: IceFrogConfig) -> Policy:
    def decide(snapshot: SchedulingSnapshot, belief: SetPredictor | SetCache) -> list[Allocation]:
        states = sorted(snapshot.active(), key=lambda s: s.number)
        jobs = [elastic_job(state, snapshot) for state in states]
        grants = allocator(jobs, len(snapshot), config)
        moving = [
            (state, grant)
            for state, grant in zip(states, grants, strict=True)
            if grant.gpus != len(state.gpus)
        ]
        decisions = [
            Allocation(state, state.gpus, state.agent.prefixes[grant.prefix])
            for state, grant in zip(states, grants, strict=True)
            if grant.gpus == len(state.gpus) and state.gpus
        ]
        pool = Pool(snapshot, also=[gpu for state, _ in moving for gpu in state.gpus])
        for state, grant in sorted(moving, key=lambda item: -item[1].gpus):
            taken: tuple[int, ...] = ()
            for size in range(grant.size, -1, -1):  # no node has room for it: the next smaller size
                taken = pool.take(SIZES[size], 0)
                if taken:
                    break
            if taken or state.gpus:
                decisions.append(Allocation(state, taken, state.agent.prefixes[grant.prefix]))
        return decisions

    return Policy(name, decide, round_s=config.round_s, preemptive=True)
