"""Results on disk: append-only JSON-lines files, one line per finished run, each synced to disk.

A process killed while writing leaves a torn last line, which readers skip and the next writer terminates. A kill
at any moment therefore loses no finished run.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiling.errors import InputError, LimitError
from profiling.files import naming, only_writer

SLICE_BYTES = 2 * 2**20
MAX_SLICES = 8


@dataclass
class Results:
    """Contents of the slices in some folders.

    Attributes:
        records: by run id; if a run has several lines, the last one in which no member failed, or else the last.
        attempts: by run id, how many lines there are.
        environments: machine and versions, by fingerprint.
        torn_lines: lines truncated by a kill.
    """

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    torn_lines: int = 0

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a run; a failed repetition does not replace what was measured before."""
        self.attempts[record["id"]] += 1
        known = self.records.get(record["id"])
        if known is None or has_failed(known) or not has_failed(record):
            self.records[record["id"]] = record


def slice_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("slice-*.jsonl"))


def check_begun(*folders: Path) -> None:
    """Raise `InputError` if a folder has no slices: a misspelt one would read as a campaign of which nothing is done."""
    for folder in folders:
        if not slice_files(folder):
            raise InputError(
                f"no campaign in {folder}",
                expected="a folder with slice-*.jsonl, as `cotenant campaign run` writes them",
                got="no such folder" if not folder.exists() else "none of them",
                hint="check the path",
            )


def read_results(folders: Iterable[Path]) -> Results:
    """All complete lines of all slices in `folders`; a missing folder is empty."""
    results = Results()
    for folder in folders:
        for path in slice_files(folder):
            for line in path.read_bytes().split(b"\n"):
                if not line:
                    continue
                body = _checked(line)
                if body is None:
                    results.torn_lines += 1
                elif body["type"] == "environment":
                    results.environments[body["value"]["fingerprint"]] = body["value"]
                elif body["type"] == "run":
                    results.add(body["value"])
    return results


def has_failed(record: dict[str, Any]) -> bool:
    """Whether a member of the run died or ran out of memory."""
    return any(m["outcome"] != "ok" for m in record["members"])


def was_disturbed(record: dict[str, Any]) -> bool:
    """Whether another process used the core in too many windows of the run."""
    return any(m.get("solo_verdict") == "disturbed" for m in record["members"])


def _encode(kind: str, value: dict[str, Any]) -> bytes:
    body = json.dumps({"type": kind, "value": value}, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(body.encode()):08x} {body}\n".encode()


def _checked(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None if its checksum is wrong."""
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        value: dict[str, Any] = json.loads(body)
        return value
    except ValueError:
        return None


class SliceWriter:
    """Appends to the newest slice of a folder; a context manager that excludes other writers.

    Args:
        folder: created if missing.
        first: number of the first slice in an empty folder, so that slices of several folders have distinct
            names.

    Raises:
        ConflictError: another process writes to this folder now.
        LimitError: (from `append`) all slices are full.
    """

    def __init__(self, folder: Path, first: int = 0, slice_bytes: int = SLICE_BYTES) -> None:
        self.folder, self.first, self.slice_bytes = folder, first, slice_bytes

    def __enter__(self) -> SliceWriter:
        self._held = contextlib.ExitStack()
        self._held.enter_context(only_writer(self.folder, wait_s=0))
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def append_environment(self, environment: dict[str, Any]) -> None:
        self._append(_encode("environment", environment))

    def append_run(self, record: dict[str, Any]) -> None:
        """Append a record. Returns once the line is on disk."""
        self._append(_encode("run", record))

    def _append(self, line: bytes) -> None:
        path = self._target(len(line))
        is_new = not path.exists()
        with naming(path), open(path, "ab") as stream:
            if not is_new and not _ends_whole(path):
                line = b"\n" + line
            # One write call, so a kill leaves the whole line, a prefix of it, or nothing.
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            _sync_folder(self.folder)

    def _target(self, size: int) -> Path:
        files = slice_files(self.folder)
        if not files:
            return self.folder / f"slice-{self.first:03d}.jsonl"
        if files[-1].stat().st_size + size + 1 <= self.slice_bytes:
            return files[-1]
        if len(files) >= MAX_SLICES:
            raise LimitError(
                f"{self.folder} is full",
                expected=f"at most {MAX_SLICES} slices of {self.slice_bytes} bytes",
                hint="run the rest in another folder, with --done for this one",
            )
        return self.folder / f"slice-{int(files[-1].stem.removeprefix('slice-')) + 1:03d}.jsonl"


def _ends_whole(path: Path) -> bool:
    with open(path, "rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return True
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def next_slice_number(folders: Iterable[Path]) -> int:
    """One more than the highest slice number in `folders`."""
    numbers: Iterator[int] = (
        int(path.stem.removeprefix("slice-")) for folder in folders for path in slice_files(folder)
    )
    return max(numbers, default=-1) + 1
