"""The reader of PipeDream profiles, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.capture.pipedream_profile import parse_profile, read_profile
from profiling.errors import InputError
from tests.shared import shared_data

COSTS = "forward_compute_time=2.000, backward_compute_time=3.000, activation_size=10.0, parameter_size=4.000"
GOOD = f"node1 -- Input -- {COSTS}\nnode2 -- Conv2d(3, 64) -- {COSTS} -- stage_id=1\n\tnode1 -- node2"


def test_reads_nodes_and_edges() -> None:
    profile = parse_profile(GOOD, "small")
    assert profile.edges == (("node1", "node2"),)
    second = profile.nodes[1]
    assert (second.id, second.description, second.stage_id) == ("node2", "Conv2d(3, 64)", 1)
    assert (second.forward_s, second.backward_s) == (0.002, 0.003)
    assert (second.activation_bytes, second.parameter_bytes) == (10, 4)
    listed = parse_profile(GOOD.replace("activation_size=10.0", "activation_size=[1.0; 2.0; 4.5]"), "small")
    assert listed.nodes[0].activation_bytes == 7.5
    assert listed.nodes[0].first_output_bytes == 1
    assert second.first_output_bytes is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no nodes"),
        ("node1 -- Conv", "line 1: expected ID"),
        (GOOD.replace("=3.000", "=fast"), "line 1: backward_compute_time: expected a number"),
        (GOOD.replace("=3.000", "=nan"), "line 1: backward_compute_time is out of range"),
        (GOOD.replace("=3.000", "=1e308"), "line 1: backward_compute_time is out of range"),
        (GOOD.replace("parameter_size", "weights"), "line 1: expected parameter_size"),
        (GOOD.replace(", parameter_size=4.000", ""), "line 1: expected the four columns"),
        (GOOD.replace("stage_id=1", "stage_id=one"), "line 2: expected stage_id"),
        (GOOD.replace("node2 --", "node1 --"), "line 2: expected each node once"),
        (GOOD.replace("\tnode1 -- node2", "\tnode1 -- node9"), "line 3: an edge to an unknown node.*node9"),
        (GOOD.replace("\tnode1 -- node2", "\tnode1"), "line 3: expected an edge"),
        (GOOD + "\n\tnode2 -- node1", "line [34]: expected no cycle"),
    ],
)
def test_faults_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_profile(text, "bad")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.graph.txt"
    path.write_text(GOOD)
    assert read_profile(path).name == "vgg16"
    with pytest.raises(InputError, match="no profile"):
        read_profile(tmp_path / "missing.txt")
    with path.open("wb") as file:
        file.truncate(2**27)
    with pytest.raises(InputError, match="too large"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        read_profile(path)


def test_public_profiles() -> None:
    nodes = {p.name: len(read_profile(p).nodes) for p in sorted(shared_data("pipedream").glob("*.txt"))}
    assert len(nodes) == 11
    assert nodes["alexnet.graph.txt"] == 23
