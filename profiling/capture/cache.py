"""Graphs on disk: captured ones by workload, and registered ones by content hash."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from profiling.errors import InputError, UnavailableError, UnknownNameError
from profiling.files import user_folder
from profiling.graph import ComputationGraph
from profiling.workload import REGISTERED, Workload


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/cotenant/graphs`, or the same under `~/.cache`; raises `OSError` without a home folder."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "graphs"


@lru_cache(maxsize=1)
def code_version() -> str:
    """Hash of the capture code and of torch's version; cached graphs of other versions are not used."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    files = [root / "graph.py", root / "operators.py", root / "training.py"]
    for folder in ("capture", "zoo"):
        files += sorted((root / folder).rglob("*.py"))
    for path in files:
        digest.update(path.read_bytes())
    from importlib.metadata import version

    digest.update(version("torch").encode())
    return digest.hexdigest()[:16]


def key_of(workload: Workload) -> str:
    """Cache key of a workload with explicit defaults."""
    body = json.dumps(workload.without_solo().to_mapping(), sort_keys=True)
    return hashlib.sha256(f"{code_version()}:{body}".encode()).hexdigest()[:32]


def read(key: str) -> ComputationGraph | None:
    """The graph with that key; None if missing, damaged or not ours to read."""
    try:
        return ComputationGraph.load(cache_dir() / f"{key}.json")
    except (InputError, OSError):
        return None


def register_graph(graph: ComputationGraph) -> str:
    """Store a graph on this machine and return the model name for jobs: `graph:<content hash>`.

    Raises:
        UnavailableError: the cache cannot be written.
    """
    name = REGISTERED + graph.content_hash
    try:
        graph.save(_registered_path(name))
    except OSError as error:
        raise UnavailableError(
            "the graph cannot be stored",
            got=f"{error.filename}: {error.strerror}",
            hint="XDG_CACHE_HOME names the folder of the cache",
        ) from None
    return name


def registered(name: str) -> ComputationGraph:
    """The graph registered under that name.

    Raises:
        UnknownNameError: not registered, or the name is not a hash.
    """
    check_registered(name)
    return ComputationGraph.load(_registered_path(name))


def check_registered(name: str) -> None:
    """Raise `UnknownNameError` like `registered`, without reading the graph."""
    if not _registered_path(name).exists():
        raise UnknownNameError(f"no graph is registered as {name!r}", hint="register it first")


def registered_hashes(start: str) -> list[str]:
    """Hashes of registered graphs that start with `start`, sorted."""
    return sorted(path.stem for path in cache_dir().with_name("registered").glob(f"{start}*.json"))


def _registered_path(name: str) -> Path:
    digest = name.removeprefix(REGISTERED)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UnknownNameError(
            "a registered graph is named by its hash", expected="graph:<64 hex digits>", got=name
        )
    return cache_dir().with_name("registered") / f"{digest}.json"


def write(key: str, graph: ComputationGraph) -> None:
    """Store a graph under that key, unless the folder cannot be written."""
    with suppress(OSError):
        graph.save(cache_dir() / f"{key}.json")
