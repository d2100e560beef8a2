"""Of several decisions about a queue the first that is not projected to end later than a plain rule would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduling.core.job import Allocation
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.projection import Outcome, Projection

# With more jobs running and waiting a projection takes longer than a decision should.
_MOST_JOBS = 512

Proposal = Callable[[], list[Allocation]]


def guarded(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    proposals: Iterable[Proposal],
    tolerance: float,
    max_slowdown: float,
    restart_s: float,
) -> list[Allocation]:
    """The first of `proposals` that is safe; where none is, what the plain rule starts.

    A decision is safe where, followed by shortest job first alone or with blind packing, neither the last job nor the
    longest completion times end later, by more than `tolerance`, than with that rule from now on. A proposal that stops
    jobs is also tried without that. With nobody waiting, or too many jobs in view, the first proposal is taken as it is.

    Args:
        proposals: in the order of preference; called only where it is their turn. Gangs are placed as the first says.
        restart_s: what stopping or moving a job costs it.
    """
    propose = iter(proposals)
    first = next(propose)()
    if not snapshot.waiting or len(snapshot.waiting) + len(snapshot.running) > _MOST_JOBS:
        return first
    projection = Projection(snapshot, belief, max_slowdown, restart_s)
    gangs = [a for a in first if a.job.job.gpus > 1]
    plain = [projection.follow(gangs, pack) for pack in (False, True)]
    soonest = min(plain, key=lambda o: o.end_s)
    end_s, tail_s = (1.0 + tolerance) * soonest.end_s, (1.0 + tolerance) * soonest.tail_s

    def safe(outcome: Outcome) -> bool:
        return outcome.end_s <= end_s and outcome.tail_s <= tail_s

    for decisions in _with_milder(first, propose):
        if any(safe(projection.follow(decisions, pack)) for pack in (True, False)):
            return decisions
    best = min((o for o in plain if safe(o)), key=lambda o: o.sum_s)
    return [*gangs, *(Allocation(snapshot.waiting[n], gpus) for n, gpus in best.started.items())]


def _with_milder(first: list[Allocation], others: Iterable[Proposal]) -> Iterator[list[Allocation]]:
    yield first
    milder = _without_stops(first)
    if len(milder) < len(first):
        yield milder
    for propose in others:
        yield propose()


def _without_stops(decisions: Sequence[Allocation]) -> list[Allocation]:
    """The jobs that start without another one being stopped or moved for them."""
    freed = {gpu for a in decisions for gpu in a.job.gpus}
    return [a for a in decisions if not a.job.gpus and not freed & set(a.gpus)]
