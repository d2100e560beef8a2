from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from torch_geometric.loader import DataLoader

from datasets.graph_dataset import OPERATOR_COLUMNS, ColocationDataset, content_key
from profiling.errors import InputError
from profiling.graph import ComputationGraph, Operator, TensorEdge
from profiling.workload import Workload
from tests.datasets.test_splits import TABLE, sets_of

CALLS: list[str] = []


def graph_of(workload: Workload) -> ComputationGraph:
    """A graph that depends only on the model, so that batch sizes share it."""
    CALLS.append(str(workload))
    size = ord(workload.model[0]) - ord("a") + 2
    operators = tuple(
        Operator(f"op{i}", ["conv", "relu"][i % 2], forward_flops=10.0 * i) for i in range(size)
    )
    return ComputationGraph(
        workload.model, operators, tuple(TensorEdge(i, i + 1, 4.0) for i in range(size - 1))
    )


def test_items_are_sets_with_their_graphs(tmp_path: Path) -> None:
    dataset = ColocationDataset(tmp_path, TABLE, graph_of)
    assert len(dataset) == TABLE["set_id"].nunique()
    assert dataset.graph_count == 4
    triple = dataset[len(dataset) - 1]
    assert triple.num_nodes == 3
    assert triple.edge_index.shape == (2, 6)
    assert (triple.edge_index[0] != triple.edge_index[1]).all()
    assert triple.x[:, 0].tolist() == pytest.approx([0.83] * 3)
    for position, text in enumerate(triple.workloads):
        graph = dataset.computation_graph(int(triple.graph_index[position]))
        assert graph.x.shape == (ord(text[0]) - ord("a") + 2, len(OPERATOR_COLUMNS))
        assert graph.edge_index.shape[1] == len(graph.x) - 1
        assert len({tuple(graph.kind[k::2].unique().tolist()) for k in (0, 1)}) == 2
        assert int(graph.edge_index.max()) == len(graph.x) - 1


def test_built_once_and_addressed_by_content(tmp_path: Path) -> None:
    CALLS.clear()
    first = ColocationDataset(tmp_path, TABLE, graph_of)
    captured = len(CALLS)
    assert captured == TABLE["workload"].nunique()
    again = ColocationDataset(tmp_path, TABLE.sample(frac=1, random_state=0), graph_of)
    assert len(CALLS) == captured
    assert again.folder == first.folder
    changed = TABLE.assign(throughput_ratio=TABLE["throughput_ratio"] + 0.01)
    assert content_key(changed) != content_key(TABLE)


def test_graphs_are_read_back_without_the_table(tmp_path: Path) -> None:
    built = ColocationDataset(tmp_path, TABLE, graph_of, workloads=["e-net:batch_size=4"])
    CALLS.clear()
    dataset = ColocationDataset.read(built.folder)
    assert len(dataset) == len(built)
    for text in (*TABLE["workload"], "e-net:batch_size=4,frozen_prefix=1"):
        job = Workload.parse(text)
        stored = dataset.graph_of(job)
        assert not CALLS
        assert stored == graph_of(job)
        CALLS.clear()
    for wrong in (b"half", gzip.compress(b"")):
        (built.folder / "graphs.jsonl.gz").write_bytes(wrong)
        with pytest.raises(InputError, match="damaged"):
            ColocationDataset.read(built.folder).graph_of(Workload.parse(TABLE["workload"].iloc[0]))
    with pytest.raises(InputError, match="no graph dataset"):
        ColocationDataset.read(tmp_path)


def test_batches_with_the_pyg_loader(tmp_path: Path) -> None:
    dataset = ColocationDataset(tmp_path, TABLE, graph_of)
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch.num_graphs == 4
    assert batch.graph_index.shape[0] == batch.num_nodes


def test_an_interrupted_build_is_repeated_and_a_damaged_one_refused(tmp_path: Path) -> None:
    folder = ColocationDataset(tmp_path, TABLE, graph_of).folder
    (folder / "index.json").unlink()
    assert len(ColocationDataset(tmp_path, TABLE, graph_of)) == TABLE["set_id"].nunique()
    (folder / "graphs.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="damaged"):
        ColocationDataset(tmp_path, TABLE, graph_of)
    for index in ("[]", "{}"):
        (folder / "index.json").write_text(index)
        with pytest.raises(InputError, match="unsupported version: expected 3, got none"):
            ColocationDataset.read(folder)
    with pytest.raises(InputError, match="no co-location sets"):
        ColocationDataset(tmp_path, TABLE.iloc[:0], graph_of)


def test_five_thousand_sets_store_each_graph_once(tmp_path: Path) -> None:
    names = ["a-net", "b-net", "c-net", "d-net"]
    table = sets_of(*((names[i % 4] + f"@{i % 7 + 1}", names[i // 4 % 4]) for i in range(5000)))
    dataset = ColocationDataset(tmp_path, table, graph_of)
    assert len(dataset) == 5000
    assert dataset.graph_count == 4
    assert len(dataset.graphs["operators"]) == 2 + 3 + 4 + 5
    assert torch.equal(
        dataset[4999].graph_index, ColocationDataset(tmp_path, table, graph_of)[4999].graph_index
    )


def test_a_captured_graph_of_the_zoo(tmp_path: Path) -> None:
    table = sets_of(("resnet18-cifar@2", "resnet18-cifar@2"))
    dataset = ColocationDataset(tmp_path, table)
    assert dataset.graph_count == 1
    assert float(dataset.computation_graph(0).totals[0, 0]) == 4 * 11_173_962
