import errno
import os
from pathlib import Path

import pytest

from profiling.files import write_whole


def test_a_full_disk_is_named_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_whole(tmp_path / "graph.json", "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*graph\.json"):
        write_whole(target, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
