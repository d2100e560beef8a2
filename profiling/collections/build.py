"""Rebuild the collections: record every network, then pack what was recorded.

    python -m profiling.collections.build record timm-0.6 --libraries DIR
    python -m profiling.collections.build pack

Recording needs the libraries themselves (`docs/graphs.md` says how they are installed); it goes on where it stopped, and
keeps one file per network, size and precision under `$XDG_CACHE_HOME/cotenant/collections`. Packing needs those files only.
`unpack` writes them from the project's data files, so that some networks can be recorded again: `record --again`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from profiling.capture.cache import cache_dir
from profiling.collections.affine import AffineGraph, Curves, check, fit
from profiling.collections.entry import Entry, Maker
from profiling.collections.names import COLLECTIONS
from profiling.collections.recorded import recorded_path, write_failure, write_index, write_recorded
from profiling.errors import CotenantError
from profiling.graph import ComputationGraph

PRECISIONS = ("fp32", "amp")
FIRST_BATCH, SECOND_BATCH, CHECKED_BATCH = 16, 64, 256


def record(
    collection: str,
    entries: Iterable[Entry],
    folder: Path,
    names: frozenset[str] = frozenset(),
    precisions: Sequence[str] = PRECISIONS,
    report: Callable[[str], None] = lambda _: None,
    *,
    default_size: bool = False,
    again: bool = False,
) -> tuple[int, int]:
    """Record everything missing in the folder, or everything `again`.

    A network that cannot be recorded leaves its reason there instead.

    Returns:
        graphs recorded now, and networks (with sizes) that failed.
    """
    done = failed = 0
    for entry in entries:
        if names and entry.name not in names:
            continue
        for size in entry.sizes[:1] if default_size else entry.sizes:
            missing = [
                p
                for p in precisions
                if p in entry.precisions
                and (again or not recorded_path(folder, collection, entry.name, size, p).exists())
            ]
            if not missing:
                continue
            start = time.perf_counter()
            try:
                for precision, line in _lines(entry, size, collection, missing):
                    write_recorded(recorded_path(folder, collection, entry.name, size, precision), line)
                    done += 1
            except Exception as error:  # any error raised by a library's network is recorded as the reason
                failed += 1
                reason = (
                    error.message if isinstance(error, CotenantError) else f"{type(error).__name__}: {error}"
                )
                write_failure(folder, collection, entry.name, size, " ".join(reason.split())[:400])
            report(f"{collection}/{entry.name} at {size}: {time.perf_counter() - start:.1f} s")
    return done, failed


def _lines(
    entry: Entry, size: int, collection: str, precisions: Sequence[str]
) -> list[tuple[str, AffineGraph]]:
    """Graphs in these precisions, the last of them verified.

    Raises the error of the first way to make the network if none works.
    """
    reason: Exception | None = None
    title = f"{collection}/{entry.name}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for make in entry.makers(size):
            try:
                return [(p, _line(make, title, p, p == precisions[-1])) for p in precisions]
            except Exception as error:  # the next way may work
                reason = reason or error
    assert reason is not None
    raise reason


def _line(make: Maker, name: str, precision: str, is_checked: bool) -> AffineGraph:
    _capture(make, name, precision, FIRST_BATCH)  # some modules keep tensors of their first pass
    first, second = (
        _capture(make, name, precision, FIRST_BATCH),
        _capture(make, name, precision, SECOND_BATCH),
    )
    line = fit(first[0], second[0], (first[1], second[1]))
    if is_checked:
        check(line, _capture(make, name, precision, CHECKED_BATCH)[0])
    return line


def _capture(make: Maker, name: str, precision: str, batch_size: int) -> tuple[ComputationGraph, Curves]:
    from profiling.capture.fold import fold_repeats
    from profiling.capture.source import MAX_NODES
    from profiling.capture.step import capture_job
    from profiling.training import TrainingJob

    job = make(batch_size, precision)
    assert isinstance(job, TrainingJob)
    curves: Curves = {}
    options = {"precision": precision, "optimizer": job.optimizer_name}
    graph = capture_job(job, name, options, curves)
    return (fold_repeats(graph) if len(graph.operators) > MAX_NODES else graph), curves


def source_entries(collection: str) -> Iterator[Entry]:
    """Networks of a collection, from its library."""
    module = importlib.import_module(f"profiling.collections.sources.{COLLECTIONS[collection].source}")
    return iter(module.entries())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m profiling.collections.build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record the missing graphs of a collection")
    recording.add_argument("collection", choices=sorted(COLLECTIONS))
    recording.add_argument("names", nargs="*", help="networks; all of them by default")
    recording.add_argument("--precision", choices=PRECISIONS, action="append", help="both by default")
    recording.add_argument(
        "--default-size", action="store_true", help="only the default size of each network"
    )
    recording.add_argument("--again", action="store_true", help="also re-record existing graphs")
    recording.add_argument(
        "--libraries", action="append", default=[], help="folder to import the library from"
    )
    recording.add_argument("--folder", type=Path, default=cache_dir().with_name("collections"))
    packing = commands.add_parser("pack", help="write the project's data files from the recorded graphs")
    packing.add_argument("collection", nargs="*", help="collections; all of them by default")
    packing.add_argument("--folder", type=Path, default=cache_dir().with_name("collections"))
    unpacking = commands.add_parser("unpack", help="write the recorded files from the project's data files")
    unpacking.add_argument("collection", choices=sorted(COLLECTIONS))
    unpacking.add_argument("--folder", type=Path, default=cache_dir().with_name("collections"))
    given = parser.parse_args(arguments)
    if given.command == "record":
        sys.path[:0] = given.libraries
        entries = list(source_entries(given.collection))
        write_index(given.folder, given.collection, entries)
        done, failed = record(
            given.collection,
            entries,
            given.folder,
            frozenset(given.names),
            given.precision or PRECISIONS,
            lambda line: print(line, file=sys.stderr, flush=True),
            default_size=given.default_size,
            again=given.again,
        )
        print(f"{done} graphs recorded, {failed} networks failed")
        return 0
    if given.command == "unpack":
        from profiling.collections.unpack import unpack

        print(f"{unpack(given.collection, given.folder)} graphs")
        return 0
    from profiling.collections.pack import pack

    for collection in given.collection or sorted(COLLECTIONS):
        print(pack(collection, given.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
