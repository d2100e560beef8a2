"""Malformed files are refused with the location of the fault, and nothing is written."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from datasets.importers import import_source, read_source
from datasets.importers.numpy_only import load_npy
from datasets.sources import SOURCES
from datasets.tables import read_table
from profiling.errors import InputError, UnknownNameError, UnsafeFileError

JOB = "('ResNet-18 (batch size 16)', 1)"
OTHER = "('LM (batch size 5)', 1)"
SINGLE = "model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem\n"
PAIR = (
    "model1,gpu_num1,batchsize1,amp1,speed1,model2,gpu_num2,batchsize2,amp2,speed2,gpu_util,gmem_util,gmem\n"
)


def _gavel(folder: Path, body: object) -> Path:
    folder.mkdir(exist_ok=True)
    text = body if isinstance(body, str) else json.dumps(body, indent=1)
    (folder / "simulation_throughputs.json").write_text(text)
    return folder


def _refused(source: str, folder: Path, *words: str) -> None:
    out = folder.parent / "out"
    with pytest.raises(InputError) as caught:
        import_source(source, folder, out)
    for word in words:
        assert word in caught.value.message
    assert not out.exists() or not list(out.iterdir())


def test_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="gavel"):
        import_source("gavle", tmp_path, tmp_path)


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_an_empty_folder_and_a_missing_one(source: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    _refused(source, tmp_path / "src", "expected")
    _refused(source, tmp_path / "nowhere", "expected")


def test_gavel_truncated(tmp_path: Path) -> None:
    _refused("gavel", _gavel(tmp_path / "src", '{"v100": {"'), "line 1", "truncated")


@pytest.mark.parametrize(
    "row",
    [
        {"null": "fast"},
        {},
        {"null": -1.0},
        {"null": 1.0, OTHER: [1.0]},
        {"null": 1.0, OTHER: [1.0, float("nan")]},
        {"null": 1.0, OTHER: 3},
    ],
)
def test_gavel_bad_cells_name_job_and_line(tmp_path: Path, row: dict[str, object]) -> None:
    body = {"v100": {OTHER: {"null": 2.0}, JOB: row}}
    _refused("gavel", _gavel(tmp_path / "src", body), "line", JOB)


def test_gavel_unknown_model(tmp_path: Path) -> None:
    _refused(
        "gavel", _gavel(tmp_path / "src", {"v100": {"('AlexNet', 1)": {"null": 1.0}}}), "AlexNet", "ResNet-18"
    )


def test_gavel_gpus_get_the_catalogues_name(tmp_path: Path) -> None:
    body = {"V100": {JOB: {"null": 2.0, OTHER: [1.0, 1.5]}, OTHER: {"null": 3.0}}}
    import_source("gavel", _gavel(tmp_path / "src", body), tmp_path)
    sets = read_table(tmp_path, "colocation")
    assert set(zip(sets["device"], sets["sharing"], strict=True)) == {("v100", "mps")}
    # Otherwise sets that a predictor has learned would be scored as new.
    assert sets["set_id"].str.startswith("gavel-2020/v100/").all()


@pytest.mark.parametrize("gpu", ["quantum9", "Tesla_V100", "quantum9_unconsolidated"])
def test_gavel_unknown_gpus_are_refused(tmp_path: Path, gpu: str) -> None:
    body = {gpu: {JOB: {"null": 2.0}}}
    _refused(
        "gavel", _gavel(tmp_path / "src", body), "simulation_throughputs.json", "catalogue", "devices list"
    )


def test_gavel_mirror_that_disagrees(tmp_path: Path) -> None:
    body = {"v100": {JOB: {"null": 2.0, OTHER: [1.0, 1.5]}, OTHER: {"null": 3.0, JOB: [1.5, 1.1]}}}
    _refused("gavel", _gavel(tmp_path / "src", body), OTHER, "mirror", "[1.5, 1.0]", "[1.5, 1.1]")


def test_gavel_failed_censored_mirror_and_one_direction(tmp_path: Path) -> None:
    third = "('A3C', 1)"
    body = {
        "v100": {
            JOB: {"null": 10.0, OTHER: [10.0, 3.0], third: [0.0, 0.0]},
            OTHER: {"null": 4.0, JOB: [3.0, 10.0]},
            third: {"null": 5.0, OTHER: [2.5, 1.0]},  # in one direction only
        },
        "v100_unconsolidated": {JOB: {"null": 10.0, OTHER: [10.0, 3.0]}, OTHER: {"null": 4.0}},
    }
    summary = import_source("gavel", _gavel(tmp_path / "src", body), tmp_path / "out")
    assert summary["kept"] == {"workloads": 3, "solo": 3, "colocation": 4}
    assert summary["flagged"] == {"censored: capped at the solo rate": 1}
    assert summary["dropped"] == {
        "mirror copy of a pair": 1,
        "pair failed or out of memory": 1,
        "pair repeated under *_unconsolidated": 1,
        "solo run repeated under *_unconsolidated": 2,
    }


@pytest.mark.parametrize("alone", [JOB, OTHER])
def test_gavel_pairs_need_both_solo_rates(tmp_path: Path, alone: str) -> None:
    body = {"v100": {JOB: {OTHER: [3.0, 4.0]}, OTHER: {JOB: [4.0, 3.0]}}}
    for job, row in body["v100"].items():
        row["null"] = 10.0 if job == alone else 0.0  # type: ignore[assignment]
    result = read_source("gavel", _gavel(tmp_path / "src", body))
    assert result.dropped["pair without a solo run"] == 1
    assert "colocation" not in result.rows


@pytest.mark.parametrize(
    ("single", "pair", "words"),
    [
        ("VGG,C,32,0,fast,1,1,1\n", "", ("single_data.csv, line 2", "speed", "fast")),
        ("VGG,C,32,2,1,1,1,1\n", "", ("amp", "0 or 1")),
        ("LeNet,C,32,0,1,1,1,1\n", "", ("LeNet",)),
        ("VGG,C,32,0,1,101,1,1\n", "", ("gpu_util",)),
        ("VGG,C,32,0,1,1,-1,1\n", "", ("gmem_util",)),
        ("VGG,C,0,0,1,1,1,1\n", "", ("batchsize",)),
        ("VGG,C,32.5,0,1,1,1,1\n", "", ("batchsize", "an integer")),
        ("VGG,C,32,0\n", "", ("line 2", "8 cells")),
        (
            "VGG,C,32,0,9,1,1,1\n",
            "VGG,1,32,0,0.9,VGG,1,32,0,-1,1,1,1\n",
            ("colocate_info.csv, line 2", "speed2"),
        ),
    ],
)
def test_lucid_bad_cells_name_line_and_column(
    tmp_path: Path, single: str, pair: str, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "single_data.csv").write_text(SINGLE + single)
    (folder / "colocate_info.csv").write_text(PAIR + pair)
    _refused("lucid", folder, *words)


def test_lucid_jobs_without_a_solo_run_are_counted(tmp_path: Path) -> None:
    (tmp_path / "single_data.csv").write_text(SINGLE + "VGG,C,32.0,0,9,50,25,1\n")
    pair = "VGG,1,32,0,0.9,LSTM,1,64,0,0.8,80,40,1\n"
    (tmp_path / "colocate_info.csv").write_text(PAIR + pair + pair.replace(",1,64", ",2,64"))
    counts = import_source("lucid", tmp_path, tmp_path / "out")
    assert (counts["read"], counts["dropped"]) == (3, {"pair of multi-GPU jobs": 1})
    assert counts["flagged"] == {"job without a row in single_data.csv: its step times are unknown": 1}
    sets = read_table(tmp_path / "out", "colocation")
    assert sets["solo_step_time_s"].notna().tolist() == [True, False]
    assert sets["set_memory_bandwidth_ratio"].tolist() == [0.4, 0.4]
    solo = read_table(tmp_path / "out", "solo").iloc[0]
    assert (solo["utilization_ratio"], solo["memory_bandwidth_ratio"], solo["gpus"]) == (0.5, 0.25, 1)


def test_sia_rows_that_are_left_out_are_counted(tmp_path: Path) -> None:
    for application, cluster, count in (
        ("cifar10", "-dgx-ext", 2),
        ("cifar10", "-dgx", 1),
        ("cifar10", "", 1),
        ("gpt_pmp", "-azure", 3),
    ):
        folder = tmp_path / "src" / application
        folder.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"1,{32 * (k + 1)},.1,0\n" for k in range(count))
        (folder / f"placements{cluster}.csv").write_text("placement,local_bsz,step_time,sync_time\n" + rows)
    counts = import_source("sia", tmp_path / "src", tmp_path / "out")
    assert (counts["read"], counts["kept"]["scaling"]) == (7, 2)
    assert counts["dropped"] == {
        "hybrid-parallel job (gpt_pmp)": 3,
        "placements.csv, a copy of the aws file": 1,
        "repeated from another file of the same GPU type": 1,
    }


def test_missing_columns(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "traces" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "placements-aws.csv").write_text("placement,step_time\n1,2\n")
    _refused("sia", tmp_path / "src", "line 1", "local_bsz")


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "single_data.csv").write_text(SINGLE.replace("\n", ",speed\n", 1) + "VGG,C,32,0,9,1,1,1,2\n")
    (folder / "colocate_info.csv").write_text(PAIR)
    _refused("lucid", folder, "single_data.csv has a column twice", "speed")


def test_sia_placement_with_a_letter(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "placements-rtx.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,32,.1,0\n1x,32,.1,0\n"
    )
    _refused("sia", tmp_path / "src", "line 3", "1x")


def _isacpp(folder: Path, edges: str) -> Path:
    source = folder / "src" / "ResNet50_32_and_VGG_19_64_in_RTX_4090"
    source.mkdir(parents=True)
    (source / "node_features.csv").write_text(
        "Model name,Batch size,FLOPs (G)\nResNet50,0.1,0.5\nVGG_19,0.3,0.7\n"
    )
    (source / "labels.csv").write_text(
        "execution_time,gpu_memory,pcie_band,gpu_util\n.1,.2,.3,.4\n.1,.2,.3,.4\n"
    )
    (source / "edges.csv").write_text("src,dst,performance degradation\n" + edges)
    return folder / "src"


def test_isacpp_reads_slowdowns_and_batch_sizes(tmp_path: Path) -> None:
    folder = _isacpp(tmp_path, "VGG_19,ResNet50,1.25\nResNet50,VGG_19,2.0\n")
    import_source("isacpp", folder, tmp_path / "out")
    table = read_table(tmp_path / "out", "colocation")
    assert table["throughput_ratio"].tolist() == [0.8, 0.5]
    assert table["workload"].tolist() == ["resnet50-imagenet:batch_size=32", "vgg-19:batch_size=64"]
    assert set(table["device"]) == {"rtx-4090"}


@pytest.mark.parametrize(
    "edges", ["VGG_19,ResNet50,1.25\n", "VGG_19,ResNet50,fast\n", "VGG_19,AlexNet,1.0\n"]
)
def test_isacpp_bad_edges(tmp_path: Path, edges: str) -> None:
    _refused("isacpp", _isacpp(tmp_path, edges), "edges.csv")


def test_freezing_from_a_clone(tmp_path: Path) -> None:
    app = tmp_path / "src" / "bert" / "frozen" / "WikiText2-bert"
    app.mkdir(parents=True)
    (app / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time,frozen_layer\n22,8,.2,.01,0\n22,8,.1,.01,72\n"
    )
    np.save(app / "app_info.npy", np.array({"layer_num": 103, "param_info": np.ones(3)}, dtype=object))
    memory = tmp_path / "src" / "pytorch-cifar" / "memory"
    memory.mkdir(parents=True)
    np.save(
        memory / "model_ResNet18.npy",
        np.array({"total_memory": 34, 0: {32: 5e8}, 4: {32: np.int64(4e8)}}, dtype=object),
    )
    summary = import_source("freezing", tmp_path / "src", tmp_path / "out")
    assert summary["kept"] == {"freezing": 4}
    table = read_table(tmp_path / "out", "freezing")
    assert table["gpus"].tolist() == [4, 4, 1, 1]
    assert table["memory_bytes"].tolist()[2:] == [5e8, 4e8]


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("touch hacked",)


def test_a_pickle_with_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "evil.npy", np.array({"a": _Evil()}, dtype=object))
    with pytest.raises(UnsafeFileError, match="system"):
        load_npy(tmp_path / "evil.npy")
    assert not (tmp_path / "hacked").exists()


def test_damaged_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match="not a complete"):
        load_npy(path)
    np.save(path, np.arange(4))
    assert load_npy(path).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_pickled_arrays_of_both_versions_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "a.npy").open("wb") as stream:
        np.lib.format.write_array(stream, np.array({"a": np.arange(3)}, dtype=object), version)
    assert load_npy(tmp_path / "a.npy")["a"].tolist() == [0, 1, 2]


def test_files_are_found_at_their_upstream_paths(tmp_path: Path) -> None:
    gavel = tmp_path / "gavel" / "scheduler"
    gavel.mkdir(parents=True)
    (gavel / "simulation_throughputs.json").write_text(json.dumps({"k80": {JOB: {"null": 2.0}}}))
    assert import_source("gavel", tmp_path / "gavel", tmp_path / "out")["kept"] == {"workloads": 1, "solo": 1}
    pipedream = tmp_path / "pipedream" / "profiler" / "image_classification" / "profiles" / "vgg16"
    pipedream.mkdir(parents=True)
    (pipedream / "graph.txt").write_text(
        "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, parameter_size=0.000\n"
        "node2 -- ReLU -- forward_compute_time=1.500, backward_compute_time=2.000, activation_size=8.0, parameter_size=0.000\n"
        "\tnode1 -- node2\n"
    )
    import_source("pipedream", tmp_path / "pipedream", tmp_path / "out")
    table = read_table(tmp_path / "out", "graphs")
    assert table["architecture"].tolist() == ["vgg16-imagenet"] * 2
    assert table["forward_time_s"].tolist() == [0.0, 0.0015]
    assert table["inputs"].fillna("").tolist() == ["", "node1"]
