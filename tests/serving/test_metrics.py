"""Gauges of several processes: those of one that was killed go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.metrics import DIRECTORY_VARIABLE, _forget_dead


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_gauges_of_a_killed_process_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"{kind}_{pid}.db" for kind in ("gauge_livesum", "counter") for pid in (ended.pid, os.getpid())]
    for name in names:
        (tmp_path / name).touch()
    _forget_dead(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == set(names) - {f"gauge_livesum_{ended.pid}.db"}, "what was counted stays counted"
