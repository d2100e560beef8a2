"""What a decision costs on a cluster of many cards, most of them empty: counted, because times vary."""

from __future__ import annotations

import pytest

from profiling.workload import Workload
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import Solo
from scheduling.core.job import TraceJob
from scheduling.slices.cluster import SliceSnapshot
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.policies.isacpp import IsacppSlices
from scheduling.slices.simulate import simulate_slices

CARDS, JOBS = 300, 4
TABLE = SliceTable({(f"a100:mig={size}g", Workload("a")): Solo(0.7 / size) for size in (1, 2, 3, 4, 7)})


@pytest.mark.parametrize(
    ("policy", "owner", "called", "most"),
    [
        # The cards with a job, and one of those without.
        ("isacpp-slices", IsacppSlices, "_cut", JOBS * (2 * JOBS + 1)),
        # Every card for every job that waits; not in the rounds in between.
        ("static-mig", SliceSnapshot, "is_known", CARDS * JOBS),
    ],
)
def test_few_cards_are_looked_at(
    policy: str, owner: type, called: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, original = [], getattr(owner, called)

    def counted(*arguments: object) -> object:
        calls.append(called)
        return original(*arguments)

    monkeypatch.setattr(owner, called, counted)
    jobs = [TraceJob(str(n), Workload("a"), 2000.0, 40.0 * n) for n in range(JOBS)]
    result = simulate_slices(jobs, ["a100"] * CARDS, get_slice_policy(policy), TABLE, TABLE, SliceCosts())
    assert all(job.finished_s is not None for job in result.jobs)
    assert 0 < len(calls) <= most
