"""Reads packed collections: the graph of any network, size and batch size, without its library or torch."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from profiling.collections.affine import (
    FIXED_SCALARS,
    NUMBERS,
    PEAKS,
    TRAITS,
    AffineGraph,
    Structure,
)
from profiling.collections.names import COLLECTIONS

DATA = Path(__file__).with_name("data")
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Name:
    """A network of a collection.

    Attributes:
        name: within the collection.
        family: the module of the library that defines the network.
        alias_of: the name whose graph it shares; empty if it has its own.
        default_size: default image size (or sequence length); 0 if there is none.
        architecture: equal for names of the same network in any collection.
    """

    name: str
    family: str
    alias_of: str
    default_size: int
    architecture: str


class Store:
    """One collection's tables, opened on first use and cached.

    Args:
        collection: a name of `COLLECTIONS`.
        folder: folder of its files.
    """

    def __init__(self, collection: str, folder: Path = DATA) -> None:
        self.collection = collection
        self._folder = folder

    def _read(self, table: str) -> Any:
        import pyarrow.parquet as pq

        # `read_table` uses pyarrow.dataset, which imports pandas if installed; that takes most of a second.
        with pq.ParquetFile(self._folder / f"{self.collection}.{table}.parquet") as file:
            return file.read()

    @cached_property
    def names(self) -> dict[str, Name]:
        """Every name of the collection."""
        if not (self._folder / f"{self.collection}.names.parquet").exists():
            return {}
        return {row["name"]: Name(**row) for row in self._read("names").to_pylist()}

    @cached_property
    def rows(self) -> dict[tuple[str, int, str], int]:
        """Row of a graph by name, size and precision (`fp32` or `amp`)."""
        table = self._graphs
        keys = zip(*(table[key].to_pylist() for key in ("name", "size", "precision")), strict=True)
        return {key: i for i, key in enumerate(keys)}

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Stored sizes of a name, ascending."""
        sizes_of: dict[str, set[int]] = {}
        for name, size, _ in self.rows:
            sizes_of.setdefault(name, set()).add(size)
        return {name: tuple(sorted(sizes)) for name, sizes in sizes_of.items()}

    @cached_property
    def _graphs(self) -> Any:
        return self._read("graphs").combine_chunks()

    @cached_property
    def _structures(self) -> Any:
        return self._read("structures").combine_chunks()

    @cached_property
    def _traits(self) -> list[Any]:
        table = self._read("operators").select(TRAITS)
        return list(zip(*(table[trait].to_pylist() for trait in TRAITS), strict=True))

    @cached_property
    def _numbers(self) -> np.ndarray:
        """[2, U, len(NUMBERS)] constants and slopes of the distinct operators."""
        table = self._read("operators")
        numbers = np.zeros((2, table.num_rows, len(NUMBERS)))
        for part, suffix in enumerate(("", "_slope")):
            for i, name in enumerate(NUMBERS):
                if name + suffix in table.column_names:
                    numbers[part, :, i] = table[name + suffix].to_numpy()
        return numbers

    @cached_property
    def _edge_sizes(self) -> np.ndarray:
        table = self._read("edge_sizes")
        return np.stack([table[key].to_numpy().astype(np.float64) for key in ("constant", "slope")])

    def line(self, name: str, size: int, precision: str) -> AffineGraph:
        """The graph as a function of the batch size.

        Raises:
            KeyError: it is not stored.
        """
        return self._line(self.rows[name, size, precision])

    @lru_cache(maxsize=512)  # noqa: B019 - stores live as long as the process
    def _line(self, row: int) -> AffineGraph:
        graphs = self._graphs
        ids = _list(graphs["operators"], row)
        repeat = _list(graphs["repeat"], row)
        return AffineGraph(
            name=f"{self.collection}/{graphs['name'][row].as_py()}",
            structure=self._structure(graphs["structure"][row].as_py()),
            traits=tuple(self._traits[i] for i in ids.tolist()),
            repeat=repeat if len(repeat) else np.ones(len(ids), dtype=np.int32),
            numbers=self._numbers[:, ids],
            edge_bytes=self._edge_sizes[:, _list(graphs["edge_sizes"], row)],
            peaks=tuple(_list(graphs[f"{peak}_lines"], row).reshape(-1, 2).T for peak in PEAKS),
            host_input=_list(graphs["host_input"], row),
            fixed=np.array([graphs[name][row].as_py() for name in FIXED_SCALARS], dtype=np.float64),
            options={},
        )

    @lru_cache(maxsize=512)  # noqa: B019
    def _structure(self, row: int) -> Structure:
        table = self._structures
        target = _list(table["edge_target"], row)
        return Structure(
            layers=_lines(table["layers"][row].as_py()),
            layer_index=_list(table["layer_index"], row),
            paths=tuple(table["paths"][row].as_py().split("\n")),
            path_index=_list(table["path_index"], row),
            edges=np.stack([target - _list(table["edge_span"], row), target], axis=1),
        )


def _list(column: Any, row: int) -> np.ndarray:
    return column[row].values.to_numpy(zero_copy_only=False)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")) if text else ()


@lru_cache(maxsize=len(COLLECTIONS))
def _store(collection: str) -> Store:
    return Store(collection)


def store_of(collection: str) -> Store:
    """The process's store of a collection."""
    with _LOCK:
        return _store(collection)
