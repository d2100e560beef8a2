from __future__ import annotations

from pathlib import Path

from tests.profiling.campaign.kills import kill_at_random


def test_twenty_kills_lose_no_finished_run(tmp_path: Path) -> None:
    count = kill_at_random(tmp_path, kills=20, seed=1)
    assert count.kills == 20
    assert count.lost == 0
    assert count.done == count.total
