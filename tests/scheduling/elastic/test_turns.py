"""How long a job goes first after it has waited too long."""

from types import SimpleNamespace
from typing import Any

from scheduling.elastic.turns import Turns

HOUR = 3600.0
LIMIT_S = 4 * HOUR


def chosen(turns: Turns, now_h: float, waited_h: float, since_h: float | None) -> bool:
    """Whether job 0 goes first; it has waited `waited_h` before, and since `since_h` if it waits now."""
    gpus = () if since_h is not None else (0,)
    state: Any = SimpleNamespace(
        number=0, gpus=gpus, waited_s=waited_h * HOUR, waiting_since_s=(since_h or 0.0) * HOUR
    )
    snapshot: Any = SimpleNamespace(now_s=now_h * HOUR)
    return turns.first([state], snapshot, LIMIT_S) == {0}


def test_a_turn_lasts_until_gpus_were_held_for_as_long() -> None:
    turns = Turns()
    assert not chosen(turns, 3.9, 0.0, 0.0)
    assert chosen(turns, 4.1, 0.0, 0.0)
    assert chosen(turns, 4.2, 4.1, None), "it runs"
    assert chosen(turns, 9.0, 4.1, 4.3), "it was stopped after 0.2 h, and waits again"
    assert chosen(turns, 9.1, 8.8, None)
    assert chosen(turns, 12.6, 8.8, None)
    assert not chosen(turns, 12.9, 8.8, None), "it has held GPUs for four hours"
    assert not chosen(turns, 13.0, 8.8, 12.95), "and has to wait as long again"
