"""Recordings on disk before packing: one compressed JSON file per network, size and precision."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from profiling.collections.affine import FIXED_SCALARS, NUMBERS, PEAKS, AffineGraph, Structure
from profiling.collections.entry import Entry
from profiling.files import read_json, write_json, write_whole


def recorded_path(folder: Path, collection: str, name: str, size: int, precision: str) -> Path:
    return folder / collection / f"{name}@{size}.{precision}.json.gz"


def write_index(folder: Path, collection: str, entries: Iterable[Entry]) -> None:
    """Store what the library states about its networks: family, sizes with the default first, and aliases."""
    body = {e.name: {"family": e.family, "sizes": list(e.sizes), "alias_of": e.alias_of} for e in entries}
    write_json(folder / collection / "index.json", body)


def read_index(folder: Path, collection: str) -> dict[str, dict[str, Any]]:
    """Read what `write_index` wrote."""
    index: dict[str, dict[str, Any]] = read_json(folder / collection / "index.json")
    return index


def write_failure(folder: Path, collection: str, name: str, size: int, reason: str) -> None:
    """Store the reason why a network could not be recorded."""
    write_whole(folder / collection / f"{name}@{size}.failed", reason)


def failures(folder: Path, collection: str) -> dict[str, str]:
    """Reasons, by `NAME@SIZE`, for networks that could not be recorded and have not been since."""
    texts = {}
    for path in sorted((folder / collection).glob("*.failed")):
        if not list(path.parent.glob(f"{path.stem}.*.json.gz")):
            texts[path.stem] = path.read_text()
    return texts


def write_recorded(path: Path, line: AffineGraph) -> None:
    """Write one graph; columns that are all 0 are omitted."""
    numbers = {
        name: line.numbers[:, :, i].tolist() for i, name in enumerate(NUMBERS) if line.numbers[:, :, i].any()
    }
    structure = line.structure
    body = {
        "name": line.name,
        "layers": structure.layers,
        "layer_index": structure.layer_index.tolist(),
        "paths": structure.paths,
        "path_index": structure.path_index.tolist(),
        "edges": structure.edges.tolist(),
        "traits": line.traits,
        "repeat": line.repeat.tolist(),
        "numbers": numbers,
        "edge_bytes": line.edge_bytes.tolist(),
        "peaks": {name: peak.tolist() for name, peak in zip(PEAKS, line.peaks, strict=True)},
        "host_input": line.host_input.tolist(),
        "fixed": dict(zip(FIXED_SCALARS, line.fixed.tolist(), strict=True)),
        "options": line.options,
    }
    write_whole(path, gzip.compress(json.dumps(body, separators=(",", ":")).encode(), 6, mtime=0))


def read_recorded(path: Path) -> AffineGraph:
    """Read what `write_recorded` wrote."""
    body: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    count = len(body["repeat"])
    numbers = np.zeros((2, count, len(NUMBERS)))
    for name, values in body["numbers"].items():
        numbers[:, :, NUMBERS.index(name)] = values
    return AffineGraph(
        name=body["name"],
        structure=Structure(
            layers=tuple(body["layers"]),
            layer_index=np.array(body["layer_index"], dtype=np.int32),
            paths=tuple(body["paths"]),
            path_index=np.array(body["path_index"], dtype=np.int32),
            edges=np.array(body["edges"], dtype=np.int32).reshape(-1, 2),
        ),
        traits=tuple(tuple(trait) for trait in body["traits"]),
        repeat=np.array(body["repeat"], dtype=np.int32),
        numbers=numbers,
        edge_bytes=np.array(body["edge_bytes"], dtype=np.float64).reshape(2, -1),
        peaks=tuple(np.array(body["peaks"][name]) for name in PEAKS),
        host_input=np.array(body["host_input"]),
        fixed=np.array([body["fixed"][name] for name in FIXED_SCALARS], dtype=np.float64),
        options=body["options"],
    )


def recorded(folder: Path, collection: str) -> Iterator[tuple[str, int, str, AffineGraph]]:
    """Every recorded graph of a collection with its name, size and precision, ordered by name."""
    for path in sorted((folder / collection).glob("*.json.gz")):
        title, precision, *_ = path.name.rsplit(".", 3)
        name, _, size = title.rpartition("@")
        yield name, int(size), precision, read_recorded(path)
