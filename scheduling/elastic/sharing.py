"""Who shares a GPU in IceFrog's round: jobs that the allocator left without one, beside jobs of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.types import SetPredictor
from scheduling.elastic.agent import elastic_job
from scheduling.elastic.jobs import Grant, IceFrogConfig
from scheduling.elastic.pairs import choose_pair
from scheduling.elastic.penalty import allowed_prefixes, frozen_penalty
from scheduling.sets import SetCache
from scheduling.simulator.job import JobState
from scheduling.simulator.state import SchedulingSnapshot


@dataclass(frozen=True, slots=True)
class Shared:
    """`guest` runs on the GPU of `host`; prefixes are indices of each one's candidates."""

    host: JobState
    guest: JobState
    host_prefix: int
    guest_prefix: int


def share_gpus(
    snapshot: SchedulingSnapshot,
    states: Sequence[JobState],
    grants: Sequence[Grant],
    predictor: SetPredictor | SetCache,
    config: IceFrogConfig,
) -> list[Shared]:
    """Pairs of this round, each job in one at most.

    A pair of the last round stays where the allocator still gives its two jobs one GPU together and both make more of it
    than one. Then the shortest jobs without a GPU look for the host that gains most.
    """
    granted = {state.number: grant.gpus for state, grant in zip(states, grants, strict=True)}
    hosts = {s.number: s for s in states if granted[s.number] == 1 and not s.exclusive}
    guests = [s for s in states if granted[s.number] == 0 and not s.exclusive]
    pairs: list[Shared] = []
    for guest in [g for g in guests if g.gpus]:
        partner = next((t for t in snapshot.tenants[guest.gpus[0]] if t is not guest), None)
        if partner is not None and partner.number in hosts:
            found = _pair(snapshot, partner, guest, predictor, config, 1.0)
            if found is not None:
                pairs.append(found[1])
                del hosts[partner.number]
                guests.remove(guest)
    waiting = sorted(guests, key=lambda s: (_remaining_s(s, snapshot), s.number))
    for guest in waiting[: config.pairs_per_round]:
        offers = [
            found
            for host in hosts.values()
            if (found := _pair(snapshot, host, guest, predictor, config, config.min_pair_gain)) is not None
        ]
        if offers:
            best = max(offers, key=lambda offer: offer[0])[1]
            pairs.append(best)
            del hosts[best.host.number]
    return pairs


def _pair(
    snapshot: SchedulingSnapshot,
    host: JobState,
    guest: JobState,
    predictor: SetPredictor | SetCache,
    config: IceFrogConfig,
    least: float,
) -> tuple[float, Shared] | None:
    """(gain, pair) for two jobs on one GPU."""
    places, penalties, rates = [], [], []
    for state in (host, guest):
        job = elastic_job(state, snapshot)
        allowed = allowed_prefixes(job.norm_share, job.progress, job.debt, config.guards) & (job.rate[0] > 0)
        places.append(np.flatnonzero(allowed))
        penalties.append(frozen_penalty(job.norm_share[allowed], config.guards.kappa))
        rates.append(job.rate[0][allowed])
        if not allowed.any():
            return None
    gpu = host.gpus[0] if host.gpus else 0
    prefixes = [[s.agent.prefixes[i] for i in p] for s, p in zip((host, guest), places, strict=True)]
    choice = choose_pair(
        (host.job.workload, guest.job.workload),
        (prefixes[0], prefixes[1]),
        (penalties[0], penalties[1]),
        (rates[0], rates[1]),
        predictor,
        snapshot.devices[gpu],
        snapshot.sharing[gpu],
        least,
    )
    if choice is None:
        return None
    i, j = choice.prefixes
    return choice.gain, Shared(host, guest, int(places[0][i]), int(places[1][j]))


def _remaining_s(state: JobState, snapshot: SchedulingSnapshot) -> float:
    job = elastic_job(state, snapshot)
    return job.left / max(float(job.rate[0, 0]), 1e-300)
