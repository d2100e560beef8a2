"""Files that are written atomically, and read with errors that state where they are wrong."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from profiling.errors import ConflictError, InputError

# Longer than any import locks a folder.
_PATIENCE_S = 300.0


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an `OSError` of a write: the system omits it where a disk is full, or names a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_whole(path: Path | str, data: bytes | str) -> Path:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part of it.

    The bytes go to a temporary file in the same folder, are synced, and are renamed over the target.

    Raises:
        OSError: the folder cannot be written to; the target is then unchanged.
    """
    target = Path(path)
    write_together({target: data})
    return target


def write_together(files: Mapping[Path, bytes | str | None]) -> None:
    """`write_whole` for several files, of which none is changed unless all could be written; None removes one.

    What a symbolic link points to is written, as `open` would; the link stays. So does a device or pipe.

    Raises:
        OSError: a folder cannot be written to; the targets are then unchanged.
    """
    temporary: dict[Path, Path] = {}
    streams = {target for target in files if target.is_char_device() or target.is_fifo()}
    try:
        for target, data in files.items():
            if data is not None and target not in streams:
                _write_beside(Path(os.path.realpath(target)), data, temporary)
        for target, written in temporary.items():
            os.replace(written, target)
    except BaseException:
        for written in temporary.values():
            written.unlink(missing_ok=True)
        raise
    for target, data in files.items():
        if data is None:
            target.unlink(missing_ok=True)
        elif target in streams:
            with naming(target):
                target.write_bytes(_encoded(data))


def _encoded(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _write_beside(target: Path, data: bytes | str, temporary: dict[Path, Path]) -> None:
    """Write `data` to a synced file beside `target`, which is added to `temporary`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = target.stat().st_mode & 0o777 if target.exists() else None
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    # Not one of tempfile, which only its owner could read: the umask can be read only by changing it, for all threads.
    opener = partial(os.open, mode=0o666 if kept is None else kept)
    with naming(target), open(beside, "xb", opener=opener) as stream:
        temporary[target] = beside
        stream.write(_encoded(data))
        stream.flush()
        os.fsync(stream.fileno())
    if kept is not None:
        os.chmod(beside, kept)


def not_csv(path: Path, line: int, error: csv.Error) -> InputError:
    """The error of a table whose `line` cannot be read."""
    return InputError(f"{path}, line {line}: not CSV", expected="quoted as in RFC 4180", got=str(error))


def user_folder(variable: str, in_home: str) -> Path:
    """`$variable/cotenant`, or the same under `~/in_home`.

    Raises:
        FileNotFoundError: the variable is not set and this user has no home folder, as in a container whose user ID
            has no entry in /etc/passwd.
    """
    if parent := os.environ.get(variable):
        return Path(parent) / "cotenant"
    try:
        return Path.home() / in_home / "cotenant"
    except RuntimeError:
        reason = f"no home folder is known, set HOME or {variable}"
        raise FileNotFoundError(errno.ENOENT, reason, f"~/{in_home}") from None


def check_folder(folder: Path | str) -> None:
    """Check that files can be written to `folder`, before work that may take hours.

    The folder may be missing; it is not made here.

    Raises:
        InputError: it is a file or below one, or not the user's to write.
    """
    path = Path(folder).absolute()
    nearest = next(one for one in (path, *path.parents) if one.exists())
    if not nearest.is_dir():
        raise InputError(
            f"{folder} cannot be a folder",
            expected="a folder, or a name for a new one",
            got=f"{nearest}, a file",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"{folder} cannot be written to",
            expected="a folder of your own",
            got=f"no right to write to {nearest}",
        )


def check_file(path: Path | str) -> None:
    """`check_folder` for what `write_whole` writes: the folder of what a link points to; a device or pipe needs none."""
    target = Path(path)
    if not (target.is_char_device() or target.is_fifo()):
        check_folder(Path(os.path.realpath(target)).parent)


def check_new(path: Path | str, force: bool, marker: str = "") -> None:
    """Refuse to overwrite a file, or the result in a folder, unless `force`.

    Args:
        marker: file of the folder without which it holds no result; empty if `path` is a file.

    Raises:
        InputError: it is there.
    """
    if (Path(path) / marker).exists() and not force:
        raise InputError(
            f"{path} has a {marker}" if marker else f"{path} exists",
            expected="a new folder" if marker else "a new file",
            hint="name another with -o, or give --force to replace it",
        )


@contextlib.contextmanager
def only_writer(folder: Path | str, wait_s: float = _PATIENCE_S) -> Iterator[None]:
    """Prevent other processes from changing `folder` between reading its files and writing them.

    The lock is on the file `.lock` in it and is released with the process, however that ends.

    Raises:
        ConflictError: another process holds the folder for longer than `wait_s` seconds.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(folder) / ".lock", timeout=wait_s)
    try:
        lock.acquire()
    except Timeout:
        raise ConflictError(
            f"another process writes to {folder}", hint="wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path | str, value: Any) -> Path:
    """Write `value` as indented JSON, atomically."""
    return write_whole(path, json.dumps(value, indent=2, sort_keys=False, allow_nan=False) + "\n")


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice; parsers keep the last value and say nothing."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key[:80]!r} is repeated")


def each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these members, as an `object_pairs_hook`. Raises `RepeatedKeyError`."""
    values = dict(members)
    if len(values) < len(members):
        counts = Counter(key for key, _ in members)
        raise RepeatedKeyError(next(key for key, count in counts.items() if count > 1))
    return values


def parse_json(text: str) -> Any:
    """The JSON value of `text`.

    Raises:
        ValueError: it is not JSON, has a key twice in an object, is nested too deeply, or has an integer of more
            digits than Python reads.
    """
    try:
        return json.loads(text, object_pairs_hook=each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing, is not UTF-8, or is not JSON, with line and column; or cannot be read
            as such (`parse_json`).
    """
    source = Path(path)
    try:
        return parse_json(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file at {source}", hint="check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not text", expected="JSON in UTF-8", got=str(error)) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source} is not valid JSON",
            expected="one JSON value",
            got=f"{error.msg} at line {error.lineno}, column {error.colno}",
            hint="the file may be truncated; download it again",
        ) from None
    except ValueError as error:
        raise InputError(f"{source} cannot be read", expected="ordinary JSON", got=str(error)) from None


def check_once(source: Path | str, names: Sequence[str]) -> None:
    """Raise `InputError` if a table has a column twice; columns without a name do not count."""
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{source} has a column twice", expected="each column once", got=", ".join(twice))


def csv_header(path: Path) -> tuple[list[str], Path | io.BytesIO]:
    """First row of a CSV file, and what pandas reads it from, which is not the path of a pipe.

    To be checked with `check_once`, because pandas would rename the second of two equal columns.

    Raises:
        OSError, UnicodeDecodeError, ParserError, EmptyDataError: it cannot be read.
    """
    import pandas as pd

    source = path if path.is_file() else io.BytesIO(path.read_bytes())
    first = pd.read_csv(source, header=None, nrows=1, dtype=str, keep_default_na=False)
    if not isinstance(source, Path):
        source.seek(0)
    return first.iloc[0].tolist(), source
