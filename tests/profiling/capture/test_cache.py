"""The cache of captured graphs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.capture import graph_for, register_graph, source
from profiling.errors import UnavailableError
from profiling.workload import Workload


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_graphs_are_cached_on_disk(tmp_path: Path) -> None:
    workload = Workload.parse("ppo-lunarlander:batch_size=3")
    source._zoo_graph.cache_clear()
    graph = graph_for(workload)
    (kept,) = (tmp_path / "cache" / "cotenant" / "graphs").glob("*.json")
    source._zoo_graph.cache_clear()
    assert graph_for(Workload.parse("PPO:batch_size=3,step_time_s=0.5")).content_hash == graph.content_hash
    # A damaged file is captured again.
    source._zoo_graph.cache_clear()
    kept.write_text("{")
    assert graph_for(workload).content_hash == graph.content_hash
    # So is one that cannot be read.
    source._zoo_graph.cache_clear()
    kept.unlink()
    kept.mkdir()
    assert graph_for(workload).content_hash == graph.content_hash
    source._zoo_graph.cache_clear()


def test_without_a_home_folder_no_graph_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user ID without an entry in /etc/passwd."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    source._zoo_graph.cache_clear()
    graph = graph_for(Workload.parse("ppo-lunarlander:batch_size=3"))
    source._zoo_graph.cache_clear()
    with pytest.raises(UnavailableError, match="set HOME or XDG_CACHE_HOME"):
        register_graph(graph)
