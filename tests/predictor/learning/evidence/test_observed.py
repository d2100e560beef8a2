"""Rows of observations."""

from __future__ import annotations

import numpy as np

from predictor.learning.evidence.observed import Expected, Observed, name_of
from profiling.workload import Workload


def observed(pairs: list[tuple[int, int]]) -> Observed:
    """Rows of members beside others, -1 for a job alone."""
    jobs = [Workload.parse(f"alpha:batch_size={size}") for size in range(1, 60)]
    keys = [("v100", "mps", jobs[own], (jobs[other],) if other >= 0 else ()) for own, other in pairs]
    nothing = np.zeros(len(pairs))
    expected = Expected(nothing, nothing, nothing, nothing[:, None])
    return Observed.nothing().with_rows(
        {name_of(key): key for key in keys}, lambda _: (np.array(pairs), expected)
    )


def test_all_rows_are_kept_if_there_is_room() -> None:
    assert observed([(0, 1), (1, 0)]).sample(2).tolist() == [0, 1]


def test_a_sample_has_rows_of_every_member() -> None:
    busy = [(own, other) for own in range(20) for other in range(20)]
    new = [(0, 30), (31, 2), (3, -1)]
    rows = observed([*busy, *new])
    kept = rows.sample(60)
    assert len(kept) == 60
    assert set(range(400, 403)) <= set(kept.tolist())
    assert set(rows.own[kept]) == {*range(20), 31}


def test_a_sample_does_not_depend_on_the_order_of_rows() -> None:
    pairs = [(own, other) for own in range(15) for other in range(-1, 15)]
    order = np.random.default_rng(0).permutation(len(pairs))
    one, other = observed(pairs), observed([pairs[k] for k in order])
    assert {one.keys[k] for k in one.sample(50)} == {other.keys[k] for k in other.sample(50)}


def test_rows_of_an_earlier_sample_keep_their_places() -> None:
    pairs = [(own, other) for own in range(15) for other in range(-1, 15)]
    few, all_ = observed(pairs[:150]).sample(100), observed(pairs)
    kept = all_.sample(100, few)
    assert set(kept.tolist()) == set(all_.sample(100).tolist())
    stay = np.isin(few, kept)
    assert 10 < stay.sum() < 100
    assert (kept[stay] == few[stay]).all()
    assert sorted(all_.sample(120, few).tolist()) == all_.sample(120).tolist()
    assert sorted(all_.sample(80, few).tolist()) == all_.sample(80).tolist()
