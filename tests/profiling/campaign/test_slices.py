from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.campaign.slices import MAX_SLICES, SliceWriter, next_slice_number, read_results, slice_files
from profiling.errors import ConflictError, LimitError


def record(name: str, size: int = 10) -> dict[str, object]:
    return {"id": name, "text": "x" * size, "members": [{"outcome": "ok"}]}


def test_round_trip(tmp_path: Path) -> None:
    with SliceWriter(tmp_path) as writer:
        writer.append_environment({"fingerprint": "abc", "cores": 2})
        writer.append_run(record("a"))
        writer.append_run(record("b"))
        writer.append_run(record("a", 3))
    stored = read_results([tmp_path])
    assert set(stored.records) == {"a", "b"}
    assert stored.records["a"]["text"] == "xxx"
    assert stored.environments["abc"]["cores"] == 2


def test_a_failed_repetition_keeps_what_was_measured(tmp_path: Path) -> None:
    failed = record("a", 3) | {"members": [{"outcome": "killed"}]}
    with SliceWriter(tmp_path) as writer:
        for one in (failed, record("a", 5), failed):
            writer.append_run(one)
    assert read_results([tmp_path]).records["a"] == record("a", 5)


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 400))
def test_truncation_at_any_byte_loses_only_that_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("slices")
    with SliceWriter(folder) as writer:
        writer.append_run(record("first", 50))
        whole = slice_files(folder)[0].stat().st_size
        writer.append_run(record("second", 300))
    path = slice_files(folder)[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: whole + cut])
    assert "first" in read_results([folder]).records
    with SliceWriter(folder) as writer:
        writer.append_run(record("third"))
    records = read_results([folder]).records
    assert {"first", "third"} <= set(records)
    assert ("second" in records) == (whole + cut >= size - 1)


def test_a_changed_byte_is_detected(tmp_path: Path) -> None:
    with SliceWriter(tmp_path) as writer:
        writer.append_run(record("a", 40))
    path = slice_files(tmp_path)[0]
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"yxxx", 1))
    stored = read_results([tmp_path])
    assert (stored.records, stored.torn_lines) == ({}, 1)


def test_slices_roll_over_and_end(tmp_path: Path) -> None:
    with SliceWriter(tmp_path, slice_bytes=1000) as writer:
        for i in range(2 * MAX_SLICES):
            writer.append_run(record(str(i), 300))
        with pytest.raises(LimitError, match="full"):
            writer.append_run(record("more", 300))
    assert len(slice_files(tmp_path)) == MAX_SLICES
    assert all(p.stat().st_size <= 1000 for p in slice_files(tmp_path))
    assert len(read_results([tmp_path]).records) == 2 * MAX_SLICES


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "slice-000.jsonl").symlink_to("/dev/full")
    with SliceWriter(tmp_path) as writer, pytest.raises(OSError, match=r"No space left.*slice-000"):
        writer.append_run(record("a"))


def test_two_writers_are_separated(tmp_path: Path) -> None:
    with SliceWriter(tmp_path), pytest.raises(ConflictError, match="process writes"), SliceWriter(tmp_path):
        pass
    with SliceWriter(tmp_path):
        pass


def test_slices_of_several_folders_have_different_names(tmp_path: Path) -> None:
    with SliceWriter(tmp_path / "one") as writer:
        writer.append_run(record("a"))
    first = next_slice_number([tmp_path / "one"])
    with SliceWriter(tmp_path / "two", first=first) as writer:
        writer.append_run(record("b"))
    assert [p.name for p in slice_files(tmp_path / "two")] == ["slice-001.jsonl"]
    assert set(read_results([tmp_path / "one", tmp_path / "two"]).records) == {"a", "b"}
