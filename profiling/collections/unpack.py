"""Unpacks the project's data files into one file per graph, so that some networks can be recorded again."""

from __future__ import annotations

from pathlib import Path

from profiling.collections.entry import Entry
from profiling.collections.pack import DATA
from profiling.collections.recorded import recorded_path, write_failure, write_index, write_recorded
from profiling.collections.store import Store
from profiling.files import read_json


def unpack(collection: str, folder: Path, source: Path = DATA) -> int:
    """Write a collection's recorded files, index and failures; packing them again gives the same data files.

    Args:
        collection: a name of `COLLECTIONS`.
        folder: folder of `record`'s files.
        source: folder of the data files.

    Returns:
        number of graphs.
    """
    store = Store(collection, source)
    for name, size, precision in store.rows:
        line = store.line(name, size, precision)
        write_recorded(recorded_path(folder, collection, name, size, precision), line)
    write_index(folder, collection, [_entry(store, name) for name in store.names])
    for title, reason in read_json(source / f"{collection}.json")["not_recorded"].items():
        name, _, size = title.rpartition("@")
        write_failure(folder, collection, name, int(size), reason)
    return len(store.rows)


def _entry(store: Store, name: str) -> Entry:
    known = store.names[name]
    stored = store.sizes.get(name, ())
    sizes = tuple(sorted(stored, key=lambda size: (size != known.default_size, size)))
    return Entry(name, known.family, sizes, lambda _: iter(()), alias_of=known.alias_of)
