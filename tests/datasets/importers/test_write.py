"""Concurrent imports into one folder."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from datasets import tables
from datasets.importers import write_source
from datasets.tables import make_table, read_table
from profiling.errors import ConflictError
from profiling.files import only_writer


def _solo(source: str) -> dict[str, pd.DataFrame]:
    row = {
        "device": "v100",
        "workload": "resnet50:batch_size=16",
        "step_time_s": 0.1,
        "gpus": 1,
        "licence": "MIT",
        "origin": "measured",
        "source": source,
        "campaign": source,
    }
    return {"solo": make_table("solo", [row])}


def test_imports_at_the_same_time_keep_each_others_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tables.table_bytes

    def slowly(name: str, frame: pd.DataFrame) -> bytes:
        time.sleep(0.05)  # every other import has read the old table by then, unless it waits
        return encode(name, frame)

    monkeypatch.setattr(tables, "table_bytes", slowly)
    sources = ["gavel", "lucid", "miso", "timm"]
    with ThreadPoolExecutor(len(sources)) as pool:
        list(pool.map(lambda source: write_source(source, _solo(source), tmp_path), sources))
    assert sorted(read_table(tmp_path, "solo")["source"]) == sources


def test_a_folder_that_another_process_holds_is_a_conflict(tmp_path: Path) -> None:
    with (
        only_writer(tmp_path),
        pytest.raises(ConflictError, match="another process writes to"),
        only_writer(tmp_path, wait_s=0),
    ):
        pass
