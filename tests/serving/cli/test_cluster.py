"""`cotenant cluster`: the sample is valid, mistakes are reported, and names work everywhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from scheduling.clusters import cluster_names, load_cluster
from scheduling.clusters.writing import to_yaml
from scheduling.core.snapshot import ClusterSnapshot
from tests.commands import printed, refused, run


def test_init_writes_a_valid_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(capsys, "cluster", "init", "-o", path)[0] == 0
    code, out, _ = run(capsys, "cluster", "validate", path, "--json")
    body = json.loads(out)
    assert code == 0
    assert (body["nodes"], body["gpus"], body["tenants"], body["links"]) == (3, 10, 1, 1)
    assert body["by_device"] == {"v100": 8, "a100-80gb": 2}
    assert body["notes"] == []
    assert "--force" in refused(capsys, "cluster", "init", "-o", path)
    assert run(capsys, "cluster", "init", "-o", path, "--force")[0] == 0


@pytest.mark.parametrize("name", cluster_names())
def test_bundled_clusters(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cluster", "validate", name)[0] == 0
    if name != "philly-2000":
        (tmp_path / "c.yaml").write_text(to_yaml(load_cluster(name)))
        assert ClusterSnapshot.load(tmp_path / "c.yaml") == load_cluster(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [{name: a, gpus: [{device: abacus}]}]", "GPU 0 of node a: device 'abacus'"),
        ("nodes: [{name: a, gpus: []}]", "no GPU"),
        ("nodes: [{name: a, gpus: [{device: v100, sharing: mig}]}]", "MIG"),
        (
            "nodes: [{name: a, gpus: [{device: v100, tenants: [{job: lstm, iterations_left: 1}]}]}]",
            "a tenant of GPU 0 of node a",
        ),
        (
            "nodes: [{name: a, gpus: [{device: v100}]}]\nlinks: [{source: a, target: a, bandwidth_bytes_per_s: 0}]",
            "bandwidth_bytes_per_s",
        ),
        ("nodes: [{name: a, gpu: []}]", "unknown field"),
        ("nodes: [{gpus: [{device: v100, id: 0/1, count: 2}]}]", "has an id and a count"),
        ("nodes: [{gpus: [{device: v100, tenants_assumed: 1}]}]", "expected true or false, got a number"),
        ("", "c.yaml is empty: expected YAML with nodes"),
        ("nodes: 3", "expected a list, got a number"),
        (
            "nodes: [{name: a, gpus: [{device: v100, tenants: [{job: dcgan-64}]}]}]",
            "iterations_left is not a number",
        ),
        (
            "nodes: [{name: a, gpus: [{device: v100, tenants: [{job: 'dcgan-64:precision=bf16', iterations_left: 9}]}]}]",
            "expected a precision that v100 has, got bf16",
        ),
    ],
)
def test_mistakes(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    err = refused(capsys, "cluster", "validate", tmp_path / "c.yaml")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            "nodes: [{name: a, count: 100000, gpus: [{device: v100, count: 1024}]}]",
            "100000 GPUs, got 102400000",
        ),
        ("nodes: [{count: 100000, gpus: []}, {count: 1, gpus: []}]", "100000 nodes, got 100001"),
        (
            "nodes: [{count: 1000, gpus: [{device: v100, count: 100, tenants: ["
            + ", ".join(["{job: lstm, iterations_left: 1}"] * 5)
            + "]}]}]",
            "400000 tenants, got 500000",
        ),
    ],
)
def test_counts_are_summed_before_they_are_expanded(
    counts: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClusterSnapshot, "from_mapping", lambda _: pytest.fail("expanded"))
    (tmp_path / "c.yaml").write_text(counts)
    err = refused(capsys, "cluster", "validate", tmp_path / "c.yaml")
    assert "the cluster is too large" in err
    assert message in " ".join(err.split())


def test_a_repeated_key_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("nodes:\n- name: a\n  gpus: [{device: v100}]\n  gpus: [{device: k80}]\n")
    err = refused(capsys, "cluster", "validate", tmp_path / "c.yaml")
    assert "line 4: key 'gpus' is repeated" in " ".join(err.split())


def test_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(
        "nodes: [{name: a, gpus: [{device: a100, sharing: mig}]}, {name: b}]\n"
        "links: [{source: a, target: switch, bandwidth_bytes_per_s: 1e9}]"
    )
    notes = json.loads(run(capsys, "cluster", "validate", tmp_path / "c.yaml", "--json")[1])["notes"]
    assert ["switch" in notes[0], "no GPU" in notes[1]] == [True, True]


def test_import_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("NODELIST GRES\nn[1-2] gpu:v100:2\n"))
    out = printed(capsys, "cluster", "import", "sinfo", "-", "-o", tmp_path / "c.yaml")
    assert "2 nodes, 4 GPUs" in out
    assert run(capsys, "cluster", "validate", tmp_path / "c.yaml")[0] == 0
    body = json.loads(run(capsys, "cluster", "show", tmp_path / "c.yaml", "--json")[1])
    assert [len(node["gpus"]) for node in body["nodes"]] == [2, 2]
    assert "--force" in refused(capsys, "cluster", "import", "sinfo", "-", "-o", tmp_path / "c.yaml")
    monkeypatch.setattr("sys.stdin", io.StringIO("NODELIST GRES\nn1 gpu:v100:2\n"))
    assert run(capsys, "cluster", "import", "sinfo", "-", "-o", tmp_path / "c.yaml", "--force")[0] == 0
    assert run(capsys, "cluster", "import", "sinfo", tmp_path / "nowhere")[0] == 2
    assert "unknown source" in run(capsys, "cluster", "import", "squeue", tmp_path / "nowhere")[2]
    assert run(capsys, "cluster", "import", "sinfo", "-", "--device", "a")[0] == 2
    twice = ("--device", "big=a100", "--device", "big=v100")
    assert "--device names 'big' twice" in refused(capsys, "cluster", "import", "sinfo", "-", *twice)


def test_an_import_names_slices_of_which_nothing_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = "GPU 0: NVIDIA B200 (UUID: GPU-1)\n" + "".join(
        f"  MIG 1g.23gb     Device  {k}: (UUID: MIG-{k})\n" for k in range(2)
    )
    (tmp_path / "listed").write_text(listed)
    code, _, err = run(
        capsys, "cluster", "import", "nvidia-smi", tmp_path / "listed", "-o", tmp_path / "c.yaml"
    )
    assert (code, err) == (0, "2 GPUs of a type that is not in the catalogue: b200:mig=1g.23gb\n")
