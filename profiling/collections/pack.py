"""Packs recorded graphs into the project's data files.

Each operator, structure and size is stored once per collection: networks of a library share most of their
operators, and sizes and precisions of one network share its structure. A collection is four Parquet files:
operators, structures, byte sizes of edges, and graphs that refer to the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from profiling.collections.affine import FIXED_SCALARS, NUMBERS, PEAKS, TRAITS, AffineGraph
from profiling.collections.recorded import failures, read_index, recorded
from profiling.files import write_json, write_whole
from profiling.operators import CONTRACTIONS

FORMAT = 1
DATA = Path(__file__).with_name("data")
TABLES = ("operators", "structures", "edge_sizes", "graphs", "names")


class _Numbering:
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self.index: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def of(self, key: Hashable, value: Any) -> int:
        position = self.index.get(key)
        if position is None:
            position = self.index[key] = len(self.values)
            self.values.append(value)
        return position


def pack(collection: str, folder: Path, target: Path = DATA) -> str:
    """Write a collection's tables from its recorded files, and return a line that states how much it is."""
    index = read_index(folder, collection)
    operators, structures, edge_sizes = _Numbering(), _Numbering(), _Numbering()
    graphs: list[dict[str, Any]] = []
    architectures: dict[str, str] = {}
    for name, size, precision, line in recorded(folder, collection):
        if name not in architectures or size == index[name]["sizes"][0]:
            architectures[name] = architecture(line)
        row = _row(line, operators, structures, edge_sizes)
        graphs.append({"name": name, "size": size, "precision": precision, **row})
    stored = {(graph["name"], graph["size"]) for graph in graphs}
    names = []
    for name, entry in sorted(index.items()):
        own = entry["alias_of"] or name
        sizes = [size for size in index[own]["sizes"] if (own, size) in stored]
        if sizes:
            names.append(
                {
                    "name": name,
                    "family": entry["family"],
                    "alias_of": entry["alias_of"],
                    "default_size": sizes[0],
                    "architecture": architectures[own],
                }
            )
    tables = {
        "operators": _operator_columns(operators.values),
        "structures": {key: [s[key] for s in structures.values] for key in structures.values[0]},
        "edge_sizes": {
            "constant": [float(c) for c, _ in edge_sizes.values],
            "slope": [float(s) for _, s in edge_sizes.values],
        },
        "graphs": {key: [g[key] for g in graphs] for key in graphs[0]},
        "names": {key: [n[key] for n in names] for key in names[0]},
    }
    total = 0
    digests = {}
    for table in TABLES:
        data = _parquet(tables[table])
        write_whole(target / f"{collection}.{table}.parquet", data)
        total += len(data)
        digests[table] = hashlib.sha256(data).hexdigest()
    failed = failures(folder, collection)
    manifest = {
        "format": FORMAT,
        "collection": collection,
        "names": len(names),
        "graphs": len(graphs),
        "sha256": digests,
        "not_recorded": failed,
    }
    write_json(target / f"{collection}.json", manifest)
    return (
        f"{collection}: {len(names)} names, {len(graphs)} graphs, {len(operators.values)} distinct operators, "
        f"{len(structures.values)} structures, {total / 1e6:.2f} MB; {len(failed)} not recorded"
    )


def architecture(line: AffineGraph) -> str:
    """Digest of a network's weights: parameters, and every contraction by its weight, window and groups.

    It does not depend on the size or precision of the input, nor on how the library implements the rest.
    """
    columns = [
        NUMBERS.index(name) for name in ("gemm_n", "gemm_k", "kernel_height", "kernel_width", "groups")
    ]
    weighted = sorted(
        (trait[0], repeat, *line.numbers[:, i][:, columns].ravel().tolist())
        for i, (trait, repeat) in enumerate(zip(line.traits, line.repeat.tolist(), strict=True))
        if trait[0] in CONTRACTIONS and trait[3]
    )
    body = json.dumps([line.fixed[FIXED_SCALARS.index("parameter_count")], weighted])
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def _row(
    line: AffineGraph, operators: _Numbering, structures: _Numbering, edge_sizes: _Numbering
) -> dict[str, Any]:
    numbers = _tidy(line.numbers)
    ids = []
    for i, trait in enumerate(line.traits):
        values = numbers[:, i]
        ids.append(operators.of((trait, values.tobytes()), (trait, values)))
    structure = line.structure
    fields = {
        "layers": "\n".join(structure.layers),
        "layer_index": structure.layer_index.tolist(),
        "paths": "\n".join(structure.paths),
        "path_index": structure.path_index.tolist(),
        "edge_target": structure.edges[:, 1].tolist(),
        "edge_span": (structure.edges[:, 1] - structure.edges[:, 0]).tolist(),
    }
    edge_bytes = _tidy(line.edge_bytes)
    return {
        "operators": ids,
        "repeat": line.repeat.tolist() if (line.repeat != 1).any() else [],
        "structure": structures.of(json.dumps(fields), fields),
        "edge_sizes": [edge_sizes.of(pair, pair) for pair in zip(*edge_bytes.tolist(), strict=True)],
        **{f"{name}_lines": peak.T.ravel().tolist() for name, peak in zip(PEAKS, line.peaks, strict=True)},
        "host_input": line.host_input.tolist(),
        **dict(zip(FIXED_SCALARS, line.fixed.tolist(), strict=True)),
    }


def _tidy(values: np.ndarray) -> np.ndarray:
    """Round whole numbers to which subtraction has added a rounding error; never returns a negative zero."""
    whole = np.rint(values)
    return np.where(np.abs(values - whole) < 1e-6 * np.maximum(1.0, np.abs(values)), whole, values) + 0.0


def _operator_columns(rows: list[tuple[Any, np.ndarray]]) -> dict[str, Any]:
    columns: dict[str, Any] = {trait: [row[0][i] for row in rows] for i, trait in enumerate(TRAITS)}
    numbers = np.stack([row[1] for row in rows])  # [U, 2, numbers]
    for i, name in enumerate(NUMBERS):
        for part, suffix in enumerate(("", "_slope")):
            if numbers[:, part, i].any():
                columns[name + suffix] = numbers[:, part, i]
    return columns


def _parquet(columns: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {}
    for name, values in columns.items():
        array = pa.array(values)
        if pa.types.is_floating(array.type) and _is_whole(array):
            array = array.cast(pa.int64())
        if pa.types.is_list(array.type) and pa.types.is_int64(array.type.value_type):
            array = array.cast(pa.list_(pa.int32()))
        arrays[name] = array
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(arrays), sink, compression="zstd", compression_level=19, write_statistics=False,
        row_group_size=1 << 20, data_page_size=1 << 24, dictionary_pagesize_limit=1 << 24,
    )  # fmt: skip
    return bytes(sink.getvalue())


def _is_whole(array: Any) -> bool:
    values = array.to_numpy(zero_copy_only=False)
    return bool((np.abs(values) < 2**53).all() and (values == np.rint(values)).all())
