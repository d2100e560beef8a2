"""Time to load 5,000 co-location sets with shared graphs from disk.

    python -m benchmarks.graph_dataset [TABLES]

The sets in TABLES (by default the bundled ones) are repeated until there are 5,000.
"""

from __future__ import annotations

import tempfile
import time

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record


def main() -> None:
    import pandas as pd

    from datasets.bundled import load
    from datasets.graph_dataset import ColocationDataset
    from datasets.tables import read_table

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", nargs="?", help="folder of imported tables")
    tables = parser.parse_args().tables
    colocation = read_table(tables, "colocation") if tables else load()["colocation"]
    sets = colocation["set_id"].nunique()
    copies = -(-5000 // sets)
    table = pd.concat(
        [colocation.assign(set_id=colocation["set_id"] + f" copy {i}") for i in range(copies)],
        ignore_index=True,
    )
    keep = sorted(set(table["set_id"]))[:5000]
    table = table[table["set_id"].isin(keep)].reset_index(drop=True)
    with tempfile.TemporaryDirectory() as root:
        started = time.perf_counter()
        built = ColocationDataset(root, table)
        build_s = time.perf_counter() - started
        started = time.perf_counter()
        loaded = ColocationDataset(root, table)
        load_s = time.perf_counter() - started
        size = sum(path.stat().st_size for path in built.folder.iterdir())
    figures = {
        "sets": len(loaded),
        "distinct_sets": sets,
        "workloads": len(loaded.index["workloads"]),
        "graphs": loaded.graph_count,
        "build_s": round(build_s, 2),
        "load_s": round(load_s, 3),
        "bytes": size,
    }
    print(figures)
    record("graph_dataset", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
