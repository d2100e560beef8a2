"""`static-mig:best`: the best static partition of a fleet, found by simulating every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling.devices import mig_layout
from profiling.errors import InfeasibleError, InputError
from scheduling.slices.cluster import SlicePolicy
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.policies.static import check_mig
from scheduling.slices.simulate import SliceResult

BEST = "static-mig:best"


def best_static(cards: Sequence[str], simulate: Callable[[SlicePolicy], SliceResult]) -> SliceResult:
    """The run with the shortest mean completion time among the partitions in which no slice can be added or enlarged.

    It is known only in hindsight. Partitions that leave jobs waiting forever are passed over.

    Args:
        cards: device of each card.
        simulate: runs a policy.

    Raises:
        InputError: the cards are of several types, or cannot be partitioned.
        InfeasibleError: every partition leaves jobs waiting.
    """
    types = list(dict.fromkeys(cards))
    if len(types) > 1:
        raise InputError(
            f"policy {BEST} tries partitions that every card supports",
            expected="cards of one type",
            got=", ".join(types),
            hint="isacpp-slices partitions each card by its own type",
        )
    check_mig(BEST, types[0])
    best: SliceResult | None = None
    for partition in mig_layout(types[0]).maximal:
        try:
            result = simulate(get_slice_policy(f"static-mig:{partition}"))
        except InfeasibleError:
            continue
        if best is None or result.completion_s(True).mean() < best.completion_s(True).mean():
            best = result
    if best is None:
        raise InfeasibleError(
            f"every static partition of {types[0]} leaves jobs waiting",
            hint="a job may need more memory than any slice has",
        )
    return best
