"""The project's data files back into one file per graph, so that some networks can be recorded again and the rest be kept."""

from __future__ import annotations

from pathlib import Path

from profiling.collections.entry import Entry
from profiling.collections.pack import DATA
from profiling.collections.recorded import recorded_path, write_failure, write_index, write_recorded
from profiling.collections.store import Store
from profiling.files import read_json


def unpack(collection: str, folder: Path, source: Path = DATA) -> int:
    """Write the recorded files, the index and the failures of a collection; packed again they give the same data files.

    Args:
        collection: a name of `COLLECTIONS`.
        folder: where `record` keeps what it recorded.
        source: the data files.

    Returns:
        how many graphs there are.
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
