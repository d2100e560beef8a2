"""The folder of the workers' metrics: in memory, and removed after the service, however that ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serving import metrics_folder as module
from serving.metrics_folder import metrics_folder


def test_the_folder_is_in_memory_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_MEMORY", tmp_path)
    with metrics_folder() as folder:
        assert Path(folder).parent == tmp_path
        (Path(folder) / "counter_1.db").touch()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(module, "_IN_MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with metrics_folder() as folder:
        assert Path(folder).parent == tmp_path


def test_folders_of_killed_services_are_removed_and_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IN_MEMORY", tmp_path)
    killed = f"""
import os, pathlib, signal
from serving import metrics_folder as module
module._IN_MEMORY = pathlib.Path({str(tmp_path)!r})
with module.metrics_folder():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    (left,) = tmp_path.iterdir()
    (tmp_path / "cotenant-metrics-foreign").mkdir()  # not locked by us, perhaps not ours
    with metrics_folder() as one, metrics_folder() as other:
        assert {path.name for path in tmp_path.iterdir()} == {
            Path(one).name,
            Path(other).name,
            "cotenant-metrics-foreign",
        }
        assert not left.exists()
