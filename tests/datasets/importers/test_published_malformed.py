"""Malformed files of larger sources are refused with the location of the fault; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.importers import import_source, read_source
from datasets.importers.gpumemnet import _alive, read
from datasets.importers.nasbench import count_cell_network
from profiling.errors import InputError

TIMM_HEADER = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
TIMM = "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv"
OPERATOR_HEADER = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Warps per SM,Blocks per SM,Grid x,Grid y,Grid z,"
    "Block x,Block y,Block z,CUDA Version,B,H\n"
)
OPERATOR = "{name},{latency},{device},p2.1.0,8902,k,0.1,0.02,1,1,1,128,1,1,cu121,77,3\n"
CELL = "0" * 32
CHAIN = [[[0, 1, 0], [0, 0, 1], [0, 0, 0]], [-1, 0, -2]]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _refused(source: str, folder: Path, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        import_source(source, folder, folder.parent / "out")
    for word in words:
        assert word in caught.value.message
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("resnet50,1,fast,512,224,25.6\n", ("line 2", "train_step_time", "fast")),
        ("resnet50,1,10.0,500,224,25.6\n", ("line 2", "train_batch_size", "512")),
        ("resnet50,1,10.0,512\n", ("line 2", "6 cells")),
    ],
)
def test_timm_rows(tmp_path: Path, row: str, words: tuple[str, ...]) -> None:
    _write(tmp_path / "src" / "results" / TIMM, TIMM_HEADER + row)
    _refused("timm", tmp_path / "src", TIMM, *words)


def test_timm_file_names(tmp_path: Path) -> None:
    _write(tmp_path / "src" / TIMM.replace("rtx3090", "rtx9999"), TIMM_HEADER)
    _refused("timm", tmp_path / "src", "rtx9999", "rtx3090")
    _write(tmp_path / "other" / "benchmark-train-amp.csv", TIMM_HEADER)
    _refused("timm", tmp_path / "other", "another name")


def test_timm_floats_tags_and_failed_networks(tmp_path: Path) -> None:
    rows = "resnet50.a1_in1k,1,10.0,1024.0,224.0,25.6,4.1,11.1\nvgg16,,,,224,138,15.5,13.6\n"
    header = "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count,infer_gmacs,infer_macts\n"
    name = "benchmark-infer-amp_bf16-nhwc-pt291-cu130-5090-dynamo.csv"
    _write(tmp_path / name, header + rows)
    _write(tmp_path / TIMM, TIMM_HEADER + "resnet50,1,100.0,384,224,25.6\n")
    result = read_source("timm", tmp_path)
    assert result.dropped == {"no step time: the network did not run": 1}
    inference, training = result.tables()["solo"].to_dict("records")
    assert inference["workload"] == (
        "timm/resnet50:batch_size=1024,image_size=224,mode=inference,precision=amp,compiler=compile,"
        "memory_layout=channels-last,data_on_device=true"
    )
    assert (inference["framework_version"], training["framework_version"]) == ("2.9.1", "1.12")
    assert inference["campaign"] == "timm-pt291-cu130-bf16"
    memory = result.tables()["memory"]
    assert memory["batch_size"].tolist() == [384, 512]
    assert memory["upper_bound_bytes"].notna().tolist() == [True, False]
    # Attention's products are hidden from the newer releases; the training row still takes what there is.
    assert result.tables()["workloads"]["macs_per_sample"].tolist() == pytest.approx([4.1e9, 4.1e9])


def _ecnas(folder: Path, **changes: Any) -> Path:
    body: dict[str, Any] = {
        "trainable_params": count_cell_network(*CHAIN).parameters,
        "avg_power_usages:": {"gpu": {"avg_power_usages (W)": [[187.5]]}},
        "evaluation_results": [
            {"training_time": t, "training_steps": s} for t, s in ((0.0, 0), (20.0, 156), (66.9, 625))
        ],
    } | changes
    run = folder / "src" / "energy" / "4V9E" / "4_epochs" / "00" / CELL / "repeat_1" / "results.json"
    _write(run, json.dumps(body))
    _write(folder / "src" / "graphs" / "generated_graphs_4V9E.json", json.dumps({CELL: CHAIN}))
    return folder / "src"


def test_ecnas(tmp_path: Path) -> None:
    row = read_source("ecnas", _ecnas(tmp_path)).tables()["solo"].iloc[0]
    assert row["step_time_s"] == pytest.approx(0.1)
    assert (row["framework"], row["repeat"], row["power_w"]) == ("tensorflow", 1, 187.5)
    _refused("ecnas", _ecnas(tmp_path / "a", trainable_params=1), "a different network")
    _refused("ecnas", _ecnas(tmp_path / "b", evaluation_results=[]), "not a run")
    assert read_source("ecnas", _ecnas(tmp_path / "disk_recovery")).read == 1
    folder = _ecnas(tmp_path / "c")
    (folder / "graphs" / "generated_graphs_4V9E.json").write_text("{}")
    _refused("ecnas", folder, "no graph")


def test_cells_share_the_output_s_channels_and_drop_dead_vertices() -> None:
    alone = count_cell_network(*CHAIN)
    dead = [[[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], [-1, 0, 1, -2]]
    assert count_cell_network(*dead) == alone
    two = [[[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], [-1, 0, 2, -2]]
    halves = count_cell_network(*two)
    assert halves.pooled > alone.pooled
    assert halves.macs < alone.macs
    with pytest.raises(InputError, match="no path"):
        count_cell_network([[0, 0], [0, 0]], [-1, -2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "fft"}, ("line 2", "OPName", "bmm")),
        ({"latency": "0"}, ("line 2", "Latency", "above 0")),
    ],
)
def test_neusight_operators(tmp_path: Path, changes: dict[str, str], words: tuple[str, ...]) -> None:
    row = {"name": "add", "latency": "0.02", "device": "Tesla T4"} | changes
    folder = tmp_path / "src" / "dataset" / "train" / "collect" / "add" / "p2.1.0"
    _write(folder / "Tesla T4.csv", OPERATOR_HEADER + OPERATOR.format(**row))
    _refused("neusight", tmp_path / "src", *words)


def test_neusight_other_vendors_and_four_gpus_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "dataset" / "train" / "collect" / "add" / "p2.1.0"
    rows = [
        OPERATOR.format(name="addu", latency="0.02", device=d) for d in ("Tesla T4", "AMD Instinct MI210")
    ]
    _write(folder / "all.csv", OPERATOR_HEADER + "".join(rows))
    body = json.dumps({"num_layer": 24, "e2e_latency": 100.0})
    for name in ("bert_large-inf-512-8", "gpt2_large-train-1024-4-tp4", "gpt2_large-inf-1024-4-fusion"):
        _write(tmp_path / "label" / "Tesla_T4" / f"{name}.json", body)
    result = read_source("neusight", tmp_path)
    assert sorted(result.dropped.values()) == [1, 1]
    assert result.rows["operators"][0]["operand_count"] == 1
    assert result.tables()["solo"]["compiler"].tolist() == ["eager", "compile"]
    _write(tmp_path / "label" / "Tesla_T4" / "bert_large-inf-512-9.json", "{}")
    with pytest.raises(InputError, match="e2e_latency"):
        read_source("neusight", tmp_path)


def test_orion(tmp_path: Path) -> None:
    header = "Name,Profile,Memory_footprint,SM_usage,Duration\n"
    folder = tmp_path / "src" / "model_kernels"
    _write(folder / "resnet50_4_fwd", header + "k,2,0,48,4448\n")
    _refused("orion", tmp_path / "src", "line 2", "Profile")
    _write(folder / "resnet50_4_fwd", header + "k,1,0,48,0\n")
    _refused("orion", tmp_path / "src", "line 2", "Duration")
    _write(folder / "resnet50_4_fwd", header + "k,1,0,48,4448\n")
    _write(folder / "README.md", "Lists of kernels\n")
    result = read_source("orion", tmp_path / "src")
    assert (result.read, result.notes) == (1, ["README.md is not a list of kernels: skipped"])
    _write(folder / "alexnet_4_fwd", header + "k,1,0,48,4448\n")
    _refused("orion", tmp_path / "src", "alexnet")


def test_lamikr(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "results" / "Nvidia" / "TITAN_V"
    path = _write(folder / "TITAN_V__float_model_train_benchmark.csv", "resnet18\n3.0\n1.0\n2.0\n")
    result = read_source("lamikr", tmp_path)
    assert result.rows["solo"][0]["step_time_s"] == 0.002
    assert sum(result.flagged.values()) == 1
    for other in ("Nvidia/GTX_480_2X", "AMD/MI50"):
        _write(tmp_path / "other" / other / "MI50__float_model_train_benchmark.csv", "resnet18\n3.0\n")
    assert read_source("lamikr", tmp_path / "other").dropped == {
        "several GPUs (DataParallel), or another vendor's": 2
    }
    _write(path, "resnet18\n3.0\nnan\n")
    _refused("lamikr", tmp_path / "src", "line 3", "resnet18")
    _write(path, "resnet18,vgg16\n3.0\n")
    _refused("lamikr", tmp_path / "src", "line 2", "2 cells")
    _write(path, "resnet18,resnet18\n3.0,4.0\n")
    _refused("lamikr", tmp_path / "src", "a column twice", "resnet18")


def test_schedtune(tmp_path: Path) -> None:
    header = "model,batchsize,activations,parameters,input,peak mem usage,SM count\n"
    _write(tmp_path / "src" / "model_stats.csv", header + "resnet18,8,227.25,44.59,4.59,824,14\n")
    _refused("schedtune", tmp_path / "src", "line 2", "SM count", "13")


def test_gpumemnet_crashes() -> None:
    line = [(8, 1000.0), (16, 1800.0), (32, 3400.0), (64, 6600.0)]
    assert _alive(line) == 4
    assert _alive([*line, (128, 6000.0)]) == 4  # falls
    assert _alive([*line[:3], (64, 4000.0)]) == 3  # under half of the first slope
    assert _alive([(8, 1000.0), (16, 1020.0), (32, 3400.0)]) == 0  # only the first is left
    assert _alive(line[:1]) == 0


def test_gpumemnet_leaves_out_runs_that_took_less_than_their_tensors(tmp_path: Path) -> None:
    import pandas as pd

    rows = [
        {
            "Filename": f"vgg13_{batch}.out",
            "Batch Size": batch,
            "Max GPU Memory (MiB)": m,
            "Last Numeric Value": e,
        }
        for batch, m, e in ((8, 3000.0, 1000.0), (16, 5000.0, 1500.0), (32, 7000.0, 7100.0))
    ]
    pd.DataFrame(rows).to_excel(tmp_path / "fake_tensor.xlsx", index=False)
    result = read(tmp_path)
    assert [row["workload"] for row in result.rows["memory"]] == [
        "timm/vgg13:batch_size=8,optimizer=momentum",
        "timm/vgg13:batch_size=16,optimizer=momentum",
    ]
    assert result.dropped["crashed: less memory than its tensors take"] == 1


def test_gpumemnet_not_a_workbook(tmp_path: Path) -> None:
    _write(tmp_path / "src" / "fake_tensor.xlsx", "no")
    _refused("gpumemnet", tmp_path / "src", "not a workbook")
    import pandas as pd

    path = tmp_path / "src" / "fake_tensor.xlsx"
    pd.DataFrame({"Filename": ["a_8.out"]}).to_excel(path, index=False)
    _refused("gpumemnet", tmp_path / "src", "columns are missing")
    twice = {
        "Filename": ["a_8.out"] * 2,
        "Batch Size": 8,
        "Max GPU Memory (MiB)": 9.0,
        "Last Numeric Value": 1.0,
    }
    pd.DataFrame(twice).to_excel(path, index=False)
    _refused("gpumemnet", tmp_path / "src", "several runs of a", "got 8, 8")


def _miso(folder: Path, target: list[float]) -> Path:
    logs = folder / "src" / "mps" / "models" / "logs" / "mig"
    for name, seconds in {"7g.40gb": 0.1, "4g.20gb": 0.15, "3g.20gb": 0.2}.items():
        _write(logs / f"{name}_bert_train4.json", json.dumps({"0": [9.0, seconds], "1": [seconds]}))
    usage = folder / "src" / "mps" / "configs" / "util_collection"
    for kind in ("util_sm", "util_mem", "power", "memory"):
        _write(usage / f"{kind}_bert.json", json.dumps({"4": 50.0}))
    _write(usage / "power_dummy.json", json.dumps({"32": 36.0}))
    inputs = np.ones((2, 3, 7))
    inputs[:, :, 0] = [0.5, 0.6, 1.0]
    targets = np.tile(np.array([8 / 9, 1, 8 / 9])[None, :, None], (2, 1, 7))
    targets[:, :, 0] = target
    inputs[1], targets[1] = inputs[1][:, ::-1], targets[1][:, ::-1]  # the same mix with its columns permuted
    (folder / "src" / "unet").mkdir(parents=True, exist_ok=True)
    np.save(folder / "src" / "unet" / "input_data.npy", inputs)
    np.save(folder / "src" / "unet" / "target_data.npy", targets)
    return folder / "src"


def test_miso(tmp_path: Path) -> None:
    result = read_source("miso", _miso(tmp_path, [0.5, 0.75, 1.0]))
    assert result.dropped == {"usage of the filler": 1, "filler process": 6, "permuted copy of a mix": 7}
    mixes = result.tables()["mixes"]
    assert mixes["log_step_time_ratio"].tolist() == pytest.approx(np.log([0.5, 0.6]))
    assert mixes["numerator_sm_share_ratio"].tolist() == [1.0, 0.5]
    assert mixes["processes"].tolist() == [7, 7]
    solo = result.tables()["solo"].set_index("device")
    assert solo.loc["a100:mig=4g", "step_time_s"] == pytest.approx(0.15)
    assert solo.loc["a100", "utilization_ratio"] == 0.5
    assert set(result.tables()["workloads"]["workload"]) == set(solo["workload"])
    _refused("miso", _miso(tmp_path / "a", [0.4, 0.75, 1.0]), "mix 0", "not one job")


def test_parvagpu_and_rapp(tmp_path: Path) -> None:
    header = "Mig instance,Batch size,Workload Number,Throughput,Latency\n"
    rows = "1,8,1,100.0,0.08\n1,8,2,60.0,0.1\n1,8,3,0,0\n2,8,2,50,0.1\n"
    _write(tmp_path / "prof_data" / "inceptionv3.csv", header + rows)
    result = read_source("parvagpu", tmp_path)
    assert result.dropped == {"out of memory": 1, "set whose member did not run alone": 1}
    assert result.tables()["colocation"]["throughput_ratio"].tolist() == [0.6, 0.6]
    assert result.tables()["colocation"]["step_time_s"].tolist() == pytest.approx([8 / 60] * 2)
    assert set(result.tables()["colocation"]["architecture"]) == {"torchvision/inception_v3"}
    for cells, column in (("0,8,1,1", "Mig instance"), ("1,0,1,1", "Batch size"), ("1,8,0,1", "Workload Number"), ("1,8,1,-1", "Throughput")):  # fmt: skip
        _write(tmp_path / "prof_data" / "vgg16.csv", f"{header}{cells},0.08\n")
        with pytest.raises(InputError, match=column):
            read_source("parvagpu", tmp_path)


def test_rapp(tmp_path: Path) -> None:
    path = tmp_path / "src" / "graph_features_all_models" / "vgg16_5.json"
    entry = {"batch": 1, "sm": 5, "quota": 100, "latency": 20.0}
    entries = [entry, {**entry, "quota": 50}, entry]
    _write(path, json.dumps({"model_name": "vgg16", "profiling_result": entries}))
    result = read_source("rapp", tmp_path / "src")
    assert sorted(result.dropped.values()) == [1, 1]
    assert result.tables()["solo"][["mode", "sm_share_ratio"]].to_numpy().tolist() == [["inference", 0.05]]
    for wrong in ({"sm": 0}, {"latency": "slow"}, {"quota": 101}, {"batch": 1.5}):
        _write(path, json.dumps({"model_name": "vgg16", "profiling_result": [entry | wrong]}))
        _refused("rapp", tmp_path / "src", "entry 0")


RUN = "energy/4V9E/4_epochs/00/CELL/repeat_1/results.json"
LOG, USAGE = "logs/mig/7g.40gb_bert_train4.json", "util_collection/power_bert.json"


@pytest.mark.parametrize(
    ("source", "files", "words"),
    [
        ("rapp", {"graph_features_all_models/a.json": {"profiling_result": []}}, ("a.json", "model_name")),
        (
            "rapp",
            {"graph_features_all_models/a.json": {"model_name": None, "profiling_result": []}},
            ("a.json", "model_name"),
        ),
        ("rapp", {"graph_features_all_models/a.json": []}, ("a.json", "got list")),
        ("ecnas", {RUN: {}, "generated_graphs_a.json": [1]}, ("generated_graphs_a.json", "got list")),
        ("ecnas", {RUN: {}, "generated_graphs_a.json": {"CELL": 5}}, ("cell CELL", "adjacency matrix")),
        (
            "ecnas",
            {RUN: {}, "generated_graphs_a.json": {"CELL": [[1], [1]]}},
            ("cell CELL", "adjacency matrix"),
        ),
        (
            "lamikr",
            {"TITAN_V__float_model_train_benchmark.csv": "resnet18\n3\n", "config.json": [12]},
            ("config.json", "BATCH_SIZE"),
        ),
        ("miso", {LOG: [1]}, ("train4.json", "epoch", "got list")),
        ("miso", {LOG: {"0": [9.0, 0.1]}, USAGE: [1]}, ("power_bert.json", "got list")),
        ("miso", {LOG: {"0": [9.0, 0.1]}, USAGE: {"4": "much"}}, ("power_bert.json", "got 4: 'much'")),
        ("miso", {LOG: {"0": [9.0, 0.1]}, USAGE: {"four": 5}}, ("power_bert.json", "got four: 5")),
        (
            "neusight",
            {
                "dataset/test/a.csv": OPERATOR_HEADER
                + OPERATOR.format(name="bmm", latency=1, device="Tesla T4")
            },
            ("a.csv, line 2", "a column is missing", "expected M"),
        ),
        (
            "isacpp",
            {"A_1_and_B_2_in_RTX_4090/node_features.csv": "Model name\nA\nB\n"},
            ("no file", "labels.csv"),
        ),
    ],
)
def test_files_of_another_shape(
    tmp_path: Path, source: str, files: dict[str, Any], words: tuple[str, ...]
) -> None:
    for name, body in files.items():
        _write(tmp_path / "src" / name, body if isinstance(body, str) else json.dumps(body))
    _refused(source, tmp_path / "src", *words)


def test_miso_mixes_of_another_shape(tmp_path: Path) -> None:
    folder = _miso(tmp_path, [0.5, 0.75, 1.0])
    for wrong in (np.ones((2, 3)), np.array(1.0), np.array({"a": 1}, dtype=object)):
        np.save(folder / "unet" / "input_data.npy", wrong)
        _refused("miso", folder, "unexpected shape", "[n, 3, 7]")


def test_freezing_without_the_number_of_layers(tmp_path: Path) -> None:
    header = "placement,local_bsz,step_time,sync_time,frozen_layer\n"
    path = _write(tmp_path / "src" / "frozen" / "VOC-yolo" / "placements.csv", header + "1,8,.2,0,0\n")
    for wrong in (np.arange(3), np.array({"layer_num": "many"}, dtype=object)):
        np.save(path.with_name("app_info.npy"), wrong)
        _refused("freezing", tmp_path / "src", "app_info.npy", "layer_num")


@pytest.mark.parametrize("wrong", [{"few": {32: 5e8}}, {0: {"few": 5e8}}, {0: {32: [5e8]}}])
def test_freezing_memory_of_another_shape(tmp_path: Path, wrong: dict[Any, Any]) -> None:
    path = tmp_path / "src" / "memory" / "model_ResNet18.npy"
    path.parent.mkdir(parents=True)
    np.save(path, np.array(wrong, dtype=object))
    _refused("freezing", tmp_path / "src", "model_ResNet18.npy", "batch size: bytes")
