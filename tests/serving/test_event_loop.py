"""How many connections a worker accepts in a turn of its loop."""

from __future__ import annotations

from serving.event_loop import AcceptPace


def test_in_short_turns_connections_are_left_to_other_workers() -> None:
    pace = AcceptPace()
    for turn in range(5):
        assert pace.most(turn * 1e-4) == 1
        pace.taken(turn * 1e-4, all_of_them=False)


def test_a_busy_worker_takes_what_has_queued() -> None:
    pace = AcceptPace()
    assert pace.most(0.0) == 1
    pace.taken(0.0, all_of_them=False)
    assert pace.most(0.008) == 64
    pace.taken(0.009, all_of_them=True)
    assert pace.most(5.0) == 1, "an idle worker, whatever the time since"
