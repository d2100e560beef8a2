from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.capture.pipedream_profile import parse_profile
from profiling.graph import ComputationGraph, Operator
from profiling.measure.operators import export_operators, node_rows, own_graph, pipedream_text, times_per_node
from profiling.workload import Workload
from tests.profiling.graphs import chain

GRAPH: ComputationGraph = chain(
    [
        Operator("a", "convolution", forward_flops=1e6, bytes_written=10, module_path="block.conv"),
        Operator("b", "activation", bytes_written=10, module_path="block"),
        Operator("c", "linear", forward_flops=2e6, parameter_bytes=4, bytes_written=5, module_path="head"),
        Operator("d", "linear", forward_flops=6e6, bytes_written=5, module_path="head"),
    ]
)


def row(module: str, kind: str, forward_s: float = 1.0, backward_s: float = 2.0) -> dict[str, Any]:
    return {"module": module, "kind": kind, "forward_s": forward_s, "backward_s": backward_s}


def test_time_is_assigned_by_module_and_kind() -> None:
    forward, backward = times_per_node(GRAPH, [row("block.conv", "convolution")])
    assert forward == [1.0, 0.0, 0.0, 0.0]
    assert backward == [2.0, 0.0, 0.0, 0.0]


def test_equal_nodes_share_time_by_cost() -> None:
    forward, _ = times_per_node(GRAPH, [row("head", "linear")])
    assert forward[2] == pytest.approx(0.25, rel=1e-3)
    assert forward[3] == pytest.approx(0.75, rel=1e-3)


def test_time_of_a_folded_module_goes_to_the_enclosing_one() -> None:
    forward, _ = times_per_node(GRAPH, [row("block.bn.inner", "batch_norm")])
    assert sum(forward[:2]) == pytest.approx(1.0)
    assert forward[2:] == [0.0, 0.0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "block", "block.conv", "head", "elsewhere"]),
            st.sampled_from(["linear", "activation", "other"]),
            st.floats(0, 10),
        ),
        max_size=10,
    )
)
def test_no_time_is_lost(items: list[tuple[str, str, float]]) -> None:
    forward, backward = times_per_node(GRAPH, [row(m, k, t, t) for m, k, t in items])
    total = sum(t for _, _, t in items)
    assert sum(forward) == pytest.approx(total)
    assert sum(backward) == pytest.approx(total)


def test_pipedream_text_reads_back() -> None:
    forward, backward = [0.001, 0.002, 0.003, 0.004], [0.002, 0.0, 0.001, 0.5]
    profile = parse_profile(pipedream_text(GRAPH, forward, backward), "net")
    assert [n.forward_s for n in profile.nodes] == pytest.approx(forward)
    assert [n.backward_s for n in profile.nodes] == pytest.approx(backward)
    assert [n.parameter_bytes for n in profile.nodes] == [0, 0, 4, 0]
    assert len(profile.edges) == 3


def test_rows_are_valid() -> None:
    import pandas as pd

    from datasets.tables import validate_table
    from profiling.measure.tables import LICENCE

    rows = node_rows(GRAPH, [0.1] * 4, [0.2] * 4)
    frame = pd.DataFrame(
        [
            {**r, "architecture": "net", "device": "cpu", "batch_size": 2}
            | {"source": "cotenant", "campaign": "t", "licence": LICENCE, "origin": "measured"}
            for r in rows
        ]
    )
    assert list(validate_table("graphs", frame)["inputs"].fillna("")) == ["", "a", "b", "c"]


def test_times_of_a_factory_are_assigned_to_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timed_factory.py").write_text(
        "import torch\n\ndef make(batch_size=4):\n    return torch.nn.Linear(8, 2), torch.randn(batch_size, 8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    record: dict[str, Any] = {
        "members": [{"workload": "timed_factory:make"}],
        "graph": own_graph(Workload("timed_factory:make")),
        "device": "cpu",
        "operators": {"rows": [row("", "linear")], "optimizer_s": 0.5, "step_time_s": 4.0},
    }
    body = export_operators(record, tmp_path / "graphs")
    assert body is not None
    assert (sum(body["forward_time_s"]), sum(body["backward_time_s"])) == (1.0, 2.0)
    for _ in range(2):
        export_operators(record | {"device": "h200:mig=1g.18gb"}, tmp_path / "graphs")
    names = {
        path.name: json.loads(path.read_text())["device"] for path in (tmp_path / "graphs").glob("*.json")
    }
    assert names == {
        "timed-factory-make.json": "cpu",
        "timed-factory-make-h200-mig=1g.18gb.json": "h200:mig=1g.18gb",
    }
    del record["graph"]
    assert export_operators(record, tmp_path / "graphs") is None
