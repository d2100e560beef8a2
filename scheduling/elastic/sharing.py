"""Sharing in IceFrog's round: jobs that the allocator left without a GPU run beside single-GPU jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, SetPredictor
from scheduling.core.job import JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.elastic.agent import elastic_job
from scheduling.elastic.jobs import Grant, IceFrogConfig
from scheduling.elastic.pairs import choose_pair
from scheduling.elastic.penalty import allowed_prefixes, frozen_penalty


@dataclass(frozen=True, slots=True)
class Shared:
    """`guest` runs on the GPU of `host`; prefixes are indices of each one's candidates."""

    host: JobState
    guest: JobState
    host_prefix: int
    guest_prefix: int


@dataclass(frozen=True, eq=False, slots=True)
class _Option:
    """A job's options on one GPU: allowed candidates with penalty and rate, including the current one."""

    state: JobState
    places: NDArray[np.int64]
    penalties: Floats
    rates: Floats
    present: int | None
    remaining_s: float

    @property
    def prefixes(self) -> list[int]:
        return [self.state.agent.prefixes[place] for place in self.places]


def share_gpus(
    snapshot: SchedulingSnapshot,
    states: Sequence[JobState],
    grants: Sequence[Grant],
    belief: SetCache,
    config: IceFrogConfig,
) -> list[Shared]:
    """Pairs of this round, each job in at most one.

    A pair of the last round stays if the allocator still gives its two jobs one GPU together and both make
    more of it than one. Then the shortest jobs without a GPU look for the host that gains most.
    """
    granted = {state.number: grant.gpus for state, grant in zip(states, grants, strict=True)}
    options = {
        s.number: _option(snapshot, s, belief, config)
        for s in states
        if granted[s.number] <= 1 and not s.exclusive
    }
    hosts = {number: option for number, option in options.items() if granted[number] == 1}
    guests = {number: option for number, option in options.items() if granted[number] == 0}
    pairs: list[Shared] = []
    for guest in [g for g in guests.values() if g.state.gpus]:
        mates = [t for t in snapshot.tenants[guest.state.gpus[0]] if t is not guest.state]
        if mates and mates[0].number in hosts:
            kept_pair = _pair(snapshot, hosts[mates[0].number], guest, belief, config, together=True)
            if kept_pair is not None:
                pairs.append(kept_pair[1])
                del hosts[mates[0].number], guests[guest.state.number]
    shortest = sorted(guests.values(), key=lambda g: (g.remaining_s, g.state.number))
    for guest in shortest[: config.pairs_per_round]:
        offers = [
            offer
            for host in hosts.values()
            if (offer := _pair(snapshot, host, guest, belief, config)) is not None
        ]
        if offers:
            best = max(offers, key=lambda offer: offer[0])[1]
            pairs.append(best)
            del hosts[best.host.number]
    return pairs


def _option(
    snapshot: SchedulingSnapshot, state: JobState, belief: SetCache, config: IceFrogConfig
) -> _Option:
    job = elastic_job(state, snapshot, belief)
    allowed = allowed_prefixes(job.norm_share, job.progress, job.debt, config.guards) & (job.rate[0] > 0)
    return _Option(
        state,
        np.flatnonzero(allowed),
        frozen_penalty(job.norm_share[allowed], config.guards.kappa),
        job.rate[0][allowed],
        int(allowed[: job.prefix].sum()) if allowed[job.prefix] else None,
        job.left / max(float(job.rate[0, 0]), 1e-300),
    )


def _pair(
    snapshot: SchedulingSnapshot,
    host: _Option,
    guest: _Option,
    predictor: SetPredictor | SetCache,
    config: IceFrogConfig,
    together: bool = False,
) -> tuple[float, Shared] | None:
    """(gain, pair) for two jobs on one GPU, where they may be `together` already."""
    if not len(host.places) or not len(guest.places):
        return None
    gpu = host.state.gpus[0] if host.state.gpus else 0
    present = None
    if together and host.present is not None and guest.present is not None:
        present = (host.present, guest.present)
    choice = choose_pair(
        (host.state.job.workload, guest.state.job.workload),
        (host.prefixes, guest.prefixes),
        (host.penalties, guest.penalties),
        (host.rates, guest.rates),
        predictor,
        snapshot.devices[gpu],
        snapshot.sharing[gpu],
        1.0 if together else config.min_pair_gain,
        present,
        config.min_prefix_gain,
    )
    if choice is None:
        return None
    i, j = choice.prefixes
    return choice.gain, Shared(host.state, guest.state, int(host.places[i]), int(guest.places[j]))
