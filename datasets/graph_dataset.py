"""Co-location sets as graphs of workloads, each with its computation graph: a PyTorch Geometric dataset on
disk.

A folder holds one file of sets and one of distinct computation graphs; a set refers to its members' graphs by
number, so that a graph shared by a thousand sets is stored, loaded and encoded once. The folder's name is a
hash of everything that it was built from: the same rows give the same folder, which is built once. Training
can read its graphs from such a folder (`cotenant train --graphs`), so that nothing is captured again and the
models' code is not needed.

Layout of `ROOT/<hash>/`:

* `sets.safetensors`: tensors over all sets and members, split by `set_pointer`;
* `graphs.safetensors`: operator features and edges of all distinct graphs, split by `node_pointer` and
  `edge_pointer`;
* `graphs.jsonl.gz`: the same graphs in full, one per line, as written by `ComputationGraph.to_dict`;
* `index.json`: set ids, workloads with the numbers of their graphs, devices, graph hashes, names of the
  feature columns.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch_geometric.data import Data, Dataset

from profiling.errors import InputError
from profiling.files import read_json, write_json, write_whole
from profiling.graph import GRAPH_VERSION, ComputationGraph
from profiling.graph_columns import COUNT_COLUMNS
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3
# Operator columns, in the order of the feature matrix; `kind` is an index into `index.json`'s `kinds`.
OPERATOR_COLUMNS = COUNT_COLUMNS
_MEMBER_COLUMNS = ("throughput_ratio", "step_time_s", "solo_step_time_s", "batch_size")
_SET_COLUMNS = ("set_memory_bytes", "set_utilization_ratio", "set_memory_bandwidth_ratio")

GraphSource = Callable[[Workload], ComputationGraph]


class ColocationDataset(Dataset):
    """The sets of a `colocation` table.

    Item i is a `Data` with one node for each member and an edge from every member to every other:

    * `graph_index`: [m] numbers of the members' computation graphs, for `computation_graph(number)`;
    * `x`: [m, 4] throughput ratio, step time, solo step time (s), batch size; NaN where not measured;
    * `censored`, `is_target`: [m];
    * `set_x`: [1, 3] memory (bytes), utilisation and bandwidth ratio of the set;
    * `edge_index`: [2, m (m - 1)];
    * `set_id`, `device`, `sharing`, `workloads`: as in the table.

    Args:
        root: folder of built datasets.
        colocation: the table; its set ids become the items, in ascending order.
        graph_of: from a workload (batch size and options included) to its computation graph; by default
            `profiling.capture.graph_for`.
        progress: called after each distinct workload is captured, with (done, total).
        workloads: SPECs of jobs outside any set, whose graphs are stored too.

    Raises:
        InputError: the stored dataset is damaged, or the table is empty.
    """

    def __init__(
        self,
        root: Path | str,
        colocation: pd.DataFrame,
        graph_of: GraphSource | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        workloads: Iterable[str] = (),
    ) -> None:
        if not len(colocation):
            raise InputError("no co-location sets", expected="rows in the table", got="none")
        further = sorted(set(workloads) - set(colocation["workload"]))
        folder = Path(root) / content_key(colocation, further)
        if not (folder / "index.json").is_file():
            _build(folder, colocation, further, graph_of or _capture, progress)
        self._load(folder)
        super().__init__()

    @classmethod
    def read(cls, folder: Path | str) -> ColocationDataset:
        """An existing dataset, without its table.

        Raises:
            InputError: no dataset in `folder`, or it is damaged.
        """
        if not (Path(folder) / "index.json").is_file():
            raise InputError(
                f"no graph dataset in {folder}",
                expected="a folder printed by `cotenant data graphs`",
                got="no index.json",
            )
        dataset = cls.__new__(cls)
        dataset._load(Path(folder))
        Dataset.__init__(dataset)
        return dataset

    def _load(self, folder: Path) -> None:
        self.folder = folder
        index = read_json(self.folder / "index.json")
        version = index.get("version") if isinstance(index, dict) else None
        if version != FORMAT:
            raise InputError(
                f"{self.folder} has an unsupported version", expected=str(FORMAT), got=version or "none"
            )
        self.index: dict[str, Any] = index
        try:
            self.sets: dict[str, torch.Tensor] = load_file(self.folder / "sets.safetensors")
            self.graphs: dict[str, torch.Tensor] = load_file(self.folder / "graphs.safetensors")
        except (OSError, SafetensorError) as error:
            raise self._damaged("complete sets.safetensors and graphs.safetensors", error) from None

    def len(self) -> int:
        return len(self.index["set_ids"])

    def get(self, idx: int) -> Data:
        start, end = (int(p) for p in self.sets["set_pointer"][idx : idx + 2])
        members = end - start
        are_different = ~torch.eye(members, dtype=torch.bool)
        return Data(
            x=self.sets["x"][start:end],
            graph_index=self.sets["graph_index"][start:end],
            censored=self.sets["censored"][start:end],
            is_target=self.sets["is_target"][start:end],
            set_x=self.sets["set_x"][idx : idx + 1],
            edge_index=are_different.nonzero().T.contiguous(),
            num_nodes=members,
            set_id=self.index["set_ids"][idx],
            device=self.index["devices"][idx],
            sharing=self.index["sharing"][idx],
            workloads=[self.index["workloads"][int(g)] for g in self.sets["workload_index"][start:end]],
        )

    @property
    def graph_count(self) -> int:
        """Distinct computation graphs."""
        return len(self.index["graph_hashes"])

    def computation_graph(self, number: int) -> Data:
        """One distinct graph.

        It has `x` [n, len(OPERATOR_COLUMNS)], `kind` [n], `edge_index` [2, e], `edge_attr` [e, 1] bytes, and
        `totals` [1, 6] (parameters, gradients, optimiser state, activations, host input: bytes; kernels of
        the optimiser).
        """
        node = slice(*(int(p) for p in self.graphs["node_pointer"][number : number + 2]))
        edge = slice(*(int(p) for p in self.graphs["edge_pointer"][number : number + 2]))
        return Data(
            x=self.graphs["operators"][node],
            kind=self.graphs["kind"][node],
            edge_index=self.graphs["edge_index"][:, edge],
            edge_attr=self.graphs["edge_bytes"][edge, None],
            totals=self.graphs["totals"][number : number + 1],
        )

    @cached_property
    def _whole_graphs(self) -> list[ComputationGraph]:
        try:
            lines = gzip.decompress((self.folder / "graphs.jsonl.gz").read_bytes()).splitlines()
            if len(lines) != self.graph_count:
                raise ValueError(f"{len(lines)} of {self.graph_count} graphs")
            return [ComputationGraph.from_dict(json.loads(line)) for line in lines]
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise self._damaged("a complete graphs.jsonl.gz", error) from None

    def _damaged(self, expected: str, error: Exception) -> InputError:
        return InputError(
            f"{self.folder} is damaged", expected=expected, got=str(error), hint="delete the folder"
        )

    @cached_property
    def _number_of(self) -> dict[Workload, int]:
        specs = zip(self.index["workloads"], self.index["workload_graphs"], strict=True)
        return {Workload.parse(text).captured(): number for text, number in specs}

    def graph_of(self, workload: Workload) -> ComputationGraph:
        """The graph of a job, captured now if it is not in the dataset; a graph source for training."""
        number = self._number_of.get(workload.captured())
        return _capture(workload) if number is None else self._whole_graphs[number]


def content_key(colocation: pd.DataFrame, workloads: Iterable[str] = ()) -> str:
    """Hash of the rows in canonical order, of further jobs, of the capture's version and of this format."""
    import pandas as pd

    rows = colocation.sort_values(["set_id", "member"])
    digest = hashlib.sha256(json.dumps([FORMAT, GRAPH_VERSION, list(rows.columns), *workloads]).encode())
    digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
    return digest.hexdigest()[:24]


def _capture(workload: Workload) -> ComputationGraph:
    from profiling.capture import graph_for

    graph: ComputationGraph = graph_for(workload)
    return graph


def _build(
    folder: Path,
    colocation: pd.DataFrame,
    further: Iterable[str],
    graph_of: GraphSource,
    progress: Callable[[int, int], None],
) -> None:
    rows = colocation.sort_values(["set_id", "member"]).reset_index(drop=True)
    workloads = sorted({*rows["workload"], *further})
    graphs: dict[str, ComputationGraph] = {}
    graph_of_workload: dict[str, str] = {}
    for done, text in enumerate(workloads, 1):
        graph = graph_of(Workload.parse(text).captured())
        graphs.setdefault(graph.content_hash, graph)
        graph_of_workload[text] = graph.content_hash
        progress(done, len(workloads))
    hashes = sorted(graphs)
    number = {name: position for position, name in enumerate(hashes)}
    place = {text: position for position, text in enumerate(workloads)}
    sizes = rows.groupby("set_id", sort=True).size()
    first = rows.groupby("set_id", sort=True).first()
    sets = {
        "set_pointer": _pointer(list(sizes)),
        "graph_index": torch.tensor([number[graph_of_workload[text]] for text in rows["workload"]]),
        "workload_index": torch.tensor([place[text] for text in rows["workload"]]),
        "x": torch.tensor(rows[list(_MEMBER_COLUMNS)].to_numpy(dtype=float, na_value=float("nan"))),
        "censored": torch.tensor(rows["censored"].to_numpy(dtype=bool)),
        "is_target": torch.tensor(rows["is_target"].to_numpy(dtype=bool)),
        "set_x": torch.tensor(first[list(_SET_COLUMNS)].to_numpy(dtype=float, na_value=float("nan"))),
    }
    kinds = sorted({op.kind for graph in graphs.values() for op in graph.operators})
    _save(folder / "sets.safetensors", sets)
    _save(folder / "graphs.safetensors", _graph_tensors([graphs[name] for name in hashes], kinds))
    lines = [json.dumps(graphs[name].to_dict(), separators=(",", ":")) for name in hashes]
    write_whole(folder / "graphs.jsonl.gz", gzip.compress("\n".join(lines).encode(), mtime=0))
    # The index is written last; a folder without it is not a dataset, and is rebuilt.
    write_json(
        folder / "index.json",
        {
            "version": FORMAT,
            "set_ids": [str(set_id) for set_id in sizes.index],
            "devices": list(first["device"]),
            "sharing": list(first["sharing"]),
            "workloads": workloads,
            "workload_graphs": [number[graph_of_workload[text]] for text in workloads],
            "graph_hashes": hashes,
            "kinds": kinds,
            "operator_columns": list(OPERATOR_COLUMNS),
            "member_columns": list(_MEMBER_COLUMNS),
            "set_columns": list(_SET_COLUMNS),
        },
    )


def _graph_tensors(graphs: list[ComputationGraph], kinds: list[str]) -> dict[str, torch.Tensor]:
    kind_number = {kind: position for position, kind in enumerate(kinds)}
    operators = [op for graph in graphs for op in graph.operators]
    edges = [edge for graph in graphs for edge in graph.edges]
    return {
        "node_pointer": _pointer([len(graph.operators) for graph in graphs]),
        "edge_pointer": _pointer([len(graph.edges) for graph in graphs]),
        "operators": torch.tensor(
            np.concatenate(
                [np.stack([graph.columns[name] for name in OPERATOR_COLUMNS], 1) for graph in graphs]
            ),
            dtype=torch.float32,
        ),
        "kind": torch.tensor([kind_number[op.kind] for op in operators]),
        "edge_index": torch.tensor([[edge.source, edge.target] for edge in edges], dtype=torch.long)
        .reshape(-1, 2)
        .T.contiguous(),
        "edge_bytes": torch.tensor([edge.bytes for edge in edges]),
        "totals": torch.tensor(
            [
                [
                    graph.parameter_bytes,
                    graph.gradient_bytes,
                    graph.optimizer_state_bytes,
                    graph.activation_bytes,
                    graph.host_input_bytes,
                    graph.optimizer_kernels,
                ]
                for graph in graphs
            ]
        ),
    }


def _pointer(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    write_whole(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
