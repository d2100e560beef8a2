"""Imported step times, memory and mixes agree with independent counts made from the raw files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pytest

from datasets.importers import read_source
from datasets.importers.base import Import
from datasets.sources import get_source
from profiling.capture import graph_for
from profiling.workload import Workload
from tests.shared import shared_data


@pytest.fixture(scope="module")
def imported() -> Any:
    """Sources by name, each read once."""
    kept: dict[str, tuple[Import, dict[str, pd.DataFrame]]] = {}

    def of(name: str) -> tuple[Import, dict[str, pd.DataFrame]]:
        if name not in kept:
            result = read_source(name, shared_data(name))
            kept[name] = result, result.tables()
            for frame in kept[name][1].values():
                assert set(frame["campaign"]) <= set(get_source(name).campaigns)
                assert set(frame["licence"]) == {get_source(name).licence}
        return kept[name]

    return of


def _csv(path: Any) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_timm_steps(imported: Any) -> None:
    result, tables = imported("timm")
    raw = {path.stem: _csv(path) for path in shared_data("timm").rglob("benchmark-*.csv")}
    assert result.read == sum(map(len, raw.values()))
    expected: Counter[tuple[str, str]] = Counter()
    total_ms = 0.0
    for name, rows in raw.items():
        prefix = "train" if "-train-" in name else "infer"
        for row in rows:
            if row[f"{prefix}_step_time"] and row[f"{prefix}_batch_size"]:
                expected["training" if prefix == "train" else "inference", "dynamo" in name] += 1
                total_ms += float(row[f"{prefix}_step_time"])
    solo = tables["solo"]
    counts = Counter(zip(solo["mode"], solo["compiler"] == "compile", strict=True))
    assert counts == expected
    assert sum(result.dropped.values()) == result.read - len(solo)
    assert solo["step_time_s"].sum() == pytest.approx(total_ms / 1e3)
    assert solo["data_on_device"].all()
    train = solo[solo["mode"] == "training"]
    assert train["architecture"].str.startswith("timm-0.6/").all()
    assert train["memory_layout"].value_counts().to_dict() == {
        "contiguous": len(raw["benchmark-train-amp-nchw-pt112-cu113-rtx3090"]),
        "channels-last": len(raw["benchmark-train-amp-nhwc-pt112-cu113-rtx3090"]),
    }
    assert set(train["framework_version"]) == {"1.12"}
    assert set(solo["device"]) == {"rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000-max-q"}


def test_timm_brackets_of_memory(imported: Any) -> None:
    _, tables = imported("timm")
    memory = tables["memory"]
    train = [r for p in shared_data("timm").rglob("benchmark-train-*.csv") for r in _csv(p)]
    smaller = [r for r in train if float(r["train_batch_size"]) < 512]
    assert memory["upper_bound_bytes"].notna().sum() == len(train)
    assert memory["lower_bound_bytes"].notna().sum() == len(smaller)
    assert memory["memory_bytes"].isna().all()
    # What did not run is larger than what ran, by half at most.
    job = ["architecture", "image_size", "memory_layout"]
    ran = memory[memory["upper_bound_bytes"].notna()].set_index(job)["batch_size"].astype(float)
    failed = memory[memory["lower_bound_bytes"].notna()].set_index(job)["batch_size"].astype(float)
    ratio = (failed / ran.loc[failed.index]).to_numpy()
    assert ((ratio > 1) & (ratio <= 2)).all()


def test_timm_counts_of_training_networks_come_from_inference_files(imported: Any) -> None:
    _, tables = imported("timm")
    stated = {
        (row["model"].split(".")[0], int(float(row["infer_img_size"])))
        for path in shared_data("timm").rglob("benchmark-infer-*.csv")
        for row in _csv(path)
        if row["infer_gmacs"] and row["infer_macts"]
    }
    train = _csv(next(shared_data("timm").rglob("benchmark-train-amp-nchw-*.csv")))
    both = [r for r in train if (r["model"], int(float(r["train_img_size"]))) in stated]
    workloads = tables["workloads"]
    mine = workloads[(workloads["mode"] == "training") & (workloads["memory_layout"] == "contiguous")]
    assert mine["macs_per_sample"].notna().sum() == len(both)
    assert len(mine) == len(train)


def test_ecnas(imported: Any) -> None:
    result, tables = imported("ecnas")
    paths = list(shared_data("ecnas").rglob("results.json"))
    steps, parameters = 0.0, 0
    for path in paths:
        body = json.loads(path.read_text())
        first, last = body["evaluation_results"][1], body["evaluation_results"][2]
        steps += (last["training_time"] - first["training_time"]) / (
            last["training_steps"] - first["training_steps"]
        )
        parameters += body["trainable_params"]
    solo = tables["solo"]
    assert (result.read, len(solo)) == (len(paths), len(paths))
    assert solo["step_time_s"].sum() == pytest.approx(steps)
    assert solo["architecture"].nunique() == len({path.parts[-3] for path in paths})
    assert solo[solo["campaign"] == "ecnas-4v9e"]["repeat"].value_counts().nunique() == 1
    # The importer raises where the rebuilt cell's parameters are not the publisher's.
    counted = solo.merge(tables["workloads"], on=["workload", "campaign"])["parameter_count"]
    assert counted.sum() == parameters
    assert solo["power_w"].between(50, 320).all()


def test_neusight_operators(imported: Any) -> None:
    _, tables = imported("neusight")
    operators = tables["operators"]
    expected: Counter[str] = Counter()
    latency_ms = 0.0
    root = shared_data("neusight", "scripts", "asplos", "data", "dataset")
    for path in [*root.glob("train/collect/*/*/*.csv"), *root.glob("test/*.csv")]:
        frame = pd.read_csv(path, usecols=["OPName", "Latency"])
        expected.update(frame["OPName"])
        latency_ms += frame["Latency"].sum()
    assert len(operators) == expected.total()
    assert operators["latency_s"].sum() == pytest.approx(latency_ms / 1e3)
    scalar = operators[(operators["kind"] == "elementwise") & (operators["operand_count"] == 1)]
    assert len(scalar) == sum(expected[name] for name in ("addu", "mulu", "divu", "powu"))
    assert (operators["operator"] == "conv2d").sum() == expected["conv"]
    assert operators[operators["operator"] == "conv2d"]["kernel_size"].notna().all()
    assert operators[operators["operator"] == "bmm"][["b", "m", "n", "k"]].notna().all().all()
    assert set(operators["device"]) == {"p4", "p100", "v100-32gb", "t4", "a100"}
    assert "a100" not in set(operators[operators["operator"] == "conv2d"]["device"])
    assert (operators["campaign"] == "neusight-test").sum() == sum(
        len(pd.read_csv(path, usecols=["B"])) for path in root.glob("test/*.csv")
    )


def test_neusight_models(imported: Any) -> None:
    result, tables = imported("neusight")
    labels = shared_data("neusight", "scripts", "asplos", "label")
    runs = {path: json.loads(path.read_text()) for path in labels.glob("*/*.json")}
    single = {path: body for path, body in runs.items() if not re.search(r"-(dp|tp|pp)4", path.stem)}
    solo = tables["solo"]
    assert len(solo) == len(single)
    assert result.dropped["model over four GPUs (data, tensor or pipeline parallel)"] == len(runs) - len(
        single
    )
    assert solo["step_time_s"].sum() == pytest.approx(sum(b["e2e_latency"] for b in single.values()) / 1e3)
    assert (solo["compiler"] == "compile").sum() == sum("fusion" in path.stem for path in single)
    nodes = [row for path in labels.glob("*/*.csv") for row in _csv(path)]
    graphs = tables["graphs"]
    assert len(graphs) == len(nodes)
    assert graphs["workload"].nunique() * 1.0 <= len(list(labels.glob("*/*.csv")))
    forward = graphs["forward_time_s"] * graphs["occurrences"].astype(float)
    measured = solo[solo["mode"] == "inference"].set_index(["device", "workload"])["step_time_s"]
    summed = forward.groupby([graphs["device"], graphs["workload"]]).sum()
    ratio = (summed / measured).dropna()
    assert 1.0 < ratio.median() < 1.2
    assert ratio.between(0.9, 1.7).all()


def test_orion(imported: Any) -> None:
    result, tables = imported("orion")
    files = {p.name: _csv(p) for p in shared_data("orion").rglob("model_kernels/*")}
    kept = [row for name, rows in files.items() if not name.endswith("fb0") for row in rows]
    kernels = tables["kernels"]
    assert len(kernels) == len(kept)
    assert result.dropped == {"placeholder (fb0)": sum(len(r) for n, r in files.items() if n.endswith("fb0"))}
    assert kernels["duration_s"].sum() == pytest.approx(sum(float(r["Duration"]) for r in kept) / 1e9)
    assert (kernels["bound"] == "compute").sum() == sum(r["Profile"] == "1" for r in kept)
    assert kernels["sm_count"].max() > 80


def test_lamikr(imported: Any) -> None:
    result, tables = imported("lamikr")
    expected = {}
    for path in shared_data("lamikr").rglob("*_benchmark.csv"):
        rows = _csv(path)
        for network in rows[0]:
            expected[path.stem, network] = median(float(row[network]) for row in rows)
    solo = tables["solo"]
    assert (result.read, len(solo)) == (len(expected), len(expected))
    assert solo["step_time_s"].sum() == pytest.approx(sum(expected.values()) / 1e3)
    assert solo["device"].nunique() == 8
    assert solo["architecture"].nunique() == len({network for _, network in expected})
    assert set(solo[solo["precision"] == "tf32"]["device"]) == {"a100", "rtx-3090", "rtx-4060-ti-16gb"}
    train = solo[solo["mode"] == "training"]
    assert train["workload"].str.contains("optimizer=none").all()


def test_schedtune(imported: Any) -> None:
    _, tables = imported("schedtune")
    rows = _csv(shared_data("schedtune", "model_stats.csv"))
    memory = tables["memory"]
    assert len(memory) == len(rows)
    assert memory["memory_bytes"].sum() == sum(float(row["peak mem usage"]) for row in rows) * 2**20
    assert set(memory["device"]) == {"k80", "rtx-2070-super", "rtx-3070", "v100", "rtx-3090"}
    workloads = tables["workloads"].set_index("workload")
    assert workloads.loc["torchvision/resnet18:batch_size=8", "parameter_count"] == pytest.approx(
        11_689_512, rel=1e-3
    )


def test_gpumemnet(imported: Any) -> None:
    result, tables = imported("gpumemnet")
    frame = pd.read_excel(next(shared_data("gpumemnet").rglob("fake_tensor.xlsx")))
    assert result.read == len(frame)
    memory = tables["memory"]
    assert sum(result.dropped.values()) + len(memory) == len(frame)
    grid = frame.assign(name=frame["Filename"].str.replace(r"_\d+\.out$", "", regex=True)).pivot(
        index="name", columns="Batch Size", values="Max GPU Memory (MiB)"
    )
    kept = 0
    for values in grid.sort_index(axis=1).to_numpy():
        slopes = np.diff(values) / np.diff(sorted(grid.columns))
        bad = (slopes < 5) | (slopes < 0.5 * slopes[0])
        alive = len(values) if not bad.any() else int(bad.argmax()) + 1
        kept += alive if alive > 1 else 0
    # FakeTensor counts a step's tensors, and no run takes less.
    assert len(memory) == kept - result.dropped["crashed: less memory than its tensors take"]
    assert (memory["memory_bytes"] >= memory["estimate_bytes"]).all()
    # What stays rises with the batch.
    rising = memory.sort_values("batch_size").groupby("architecture")["memory_bytes"]
    assert rising.apply(lambda part: part.is_monotonic_increasing).all()


def test_a_network_that_has_grown_since_is_the_one_of_then(imported: Any) -> None:
    """timm 1.0 gave `ecaresnext50t_32x4d` twice the layers that it had when others measured it."""
    for source, table in (("timm", "solo"), ("gpumemnet", "memory")):
        names = imported(source)[1][table]["workload"].str.partition(":")[0].unique()
        grown = [name for name in names if name.endswith("/ecaresnext50t_32x4d")]
        assert grown == ["timm-0.6/ecaresnext50t_32x4d"]
    graphs = [
        graph_for(Workload(f"{name}_32x4d", precision="amp"))
        for name in ("timm-0.6/ecaresnext50t", "timm/ecaresnext26t", "timm/ecaresnext50t")
    ]
    assert graphs[0].parameter_count == graphs[1].parameter_count < 0.7 * graphs[2].parameter_count


def test_miso_mixes(imported: Any) -> None:
    result, tables = imported("miso")
    inputs = np.load(shared_data("miso", "unet", "input_data.npy"))
    targets = np.load(shared_data("miso", "unet", "target_data.npy"))
    filler = np.abs(targets - np.array([8 / 9, 1, 8 / 9])[None, :, None]).max(axis=1) < 6e-5
    # Copies with permuted columns follow one another, five of each.
    first = {
        tuple(sorted(map(tuple, np.concatenate([a, b]).T.round(6).tolist()))): i
        for i, (a, b) in reversed(list(enumerate(zip(inputs, targets, strict=True))))
    }
    real = ~filler[sorted(first.values())]
    mixes = tables["mixes"]
    lowest = mixes[mixes["numerator_sm_share_ratio"] == 1.0]
    assert mixes["set_id"].nunique() == len(first)
    assert len(lowest) == real.sum()
    assert len(mixes) == 2 * real.sum()
    ratios = np.log(inputs[:, 0] / inputs[:, 2])[sorted(first.values())][real]
    assert np.sort(lowest["log_step_time_ratio"]) == pytest.approx(np.sort(ratios))
    sizes = Counter(lowest.groupby("set_id").size())
    assert sizes == Counter(real.sum(axis=1).tolist())
    assert set(mixes["processes"]) == {7}
    assert result.dropped["permuted copy of a mix"] == 7 * (len(inputs) - len(first))
    # CycleGAN ran alone only.
    assert mixes["architecture"].nunique() == 7
    assert mixes["workload"].nunique() == 28


def test_miso_alone(imported: Any) -> None:
    _, tables = imported("miso")
    logs = list(shared_data("miso").rglob("logs/mig/*_train*.json"))
    solo = tables["solo"]
    steps = solo[solo["step_time_s"].notna()]
    assert len(steps) == len(logs)
    path = next(p for p in logs if p.stem == "3g.20gb_bert_train4")
    body = json.loads(path.read_text())
    seconds = [s for epoch in sorted(body, key=int) for s in body[epoch]]
    row = steps[
        (steps["device"] == "a100:mig=3g")
        & (steps["architecture"] == "keras-bert-imdb")
        & (steps["batch_size"] == 4)
    ]
    assert row["step_time_s"].item() == pytest.approx(sum(seconds[1:]) / (len(seconds) - 1))
    usage = solo[solo["step_time_s"].isna()]
    assert len(usage) == 32
    assert usage[["utilization_ratio", "memory_bandwidth_ratio", "power_w"]].notna().all().all()
    assert set(tables["memory"]["scope"]) == {"pool"}


def test_parvagpu(imported: Any) -> None:
    result, tables = imported("parvagpu")
    rows = [(p.stem, r) for p in shared_data("parvagpu").rglob("prof_data/*.csv") for r in _csv(p)]
    ran = [(n, r) for n, r in rows if float(r["Throughput"]) > 0]
    assert (result.read, result.dropped["out of memory"]) == (len(rows), len(rows) - len(ran))
    alone = [r for _, r in ran if r["Workload Number"] == "1"]
    sets = [r for _, r in ran if r["Workload Number"] != "1"]
    colocation = tables["colocation"]
    assert len(tables["solo"]) == len(alone)
    assert colocation["set_id"].nunique() == len(sets)
    assert len(colocation) == sum(int(r["Workload Number"]) for r in sets)
    by_size = colocation.groupby("processes")["throughput_ratio"].mean().round(2).tolist()
    assert by_size == [0.68, 0.54, 0.45, 0.39]
    pair = colocation[
        colocation["set_id"]
        == "parvagpu/a100-80gb:mig=1g/2 x torchvision/vgg16:batch_size=1,image_size=224,mode=inference,precision=tf32"
    ]
    assert pair["throughput_ratio"].tolist() == pytest.approx([66.415 / 123.337] * 2)


def test_rapp(imported: Any) -> None:
    result, tables = imported("rapp")
    entries = [
        (body["model_name"], entry)
        for path in shared_data("rapp").rglob("graph_features_all_models/*.json")
        for body in [json.loads(path.read_text())]
        for entry in body["profiling_result"]
    ]
    clean = [(name, entry) for name, entry in entries if entry["quota"] == 100]
    solo = tables["solo"]
    assert (result.read, len(solo)) == (len(entries), len(clean))
    assert sum(result.dropped.values()) == len(entries) - len(clean)
    assert solo["step_time_s"].sum() == pytest.approx(sum(e["latency"] for _, e in clean) / 1e3)
    assert (solo["sm_share_ratio"] < 1).sum() == sum(e["sm"] < 100 for _, e in clean)
    assert math.isclose(solo["sm_share_ratio"].min(), 0.05)


def test_timm_names_of_merged_networks_state_what_their_graphs_have(imported: Any) -> None:
    _, tables = imported("timm")
    rows = tables["workloads"]
    merged = rows[rows["architecture"].str.startswith("timm-reparameterized/")]
    assert set(merged["campaign"].str.extract("(pt[0-9]+)")[0]) == {"pt291"}
    one_each = merged.drop_duplicates("architecture")
    assert len(one_each) > 30
    for workload, stated in zip(one_each["workload"], one_each["parameter_count"], strict=True):
        graph = graph_for(Workload.parse(workload).captured())
        # Millions with two digits.
        assert graph.parameter_bytes / 4 == pytest.approx(stated, rel=0.01, abs=6e3), workload


def test_timm_networks_are_those_that_ran(imported: Any) -> None:
    _, tables = imported("timm")
    rows = tables["solo"]
    rows = rows[(rows["mode"] == "inference") & (rows["precision"] == "amp")]
    ran = {
        (architecture.partition("/")[2], version): architecture.partition("/")[0]
        for architecture, version in zip(rows["architecture"], rows["framework_version"], strict=True)
    }
    # Attention was not fused; group norms were in half precision from the start, transformers' layer norms later.
    assert ran["vit_base_patch16_224", "1.13"] == "timm-0.6"
    assert ran["vit_base_patch16_224", "2.4.0"] == "timm"
    assert ran["vit_base_patch16_224", "2.9.1"] == "timm-fast-norm"
    assert {ran["resnet50_gn", version] for version in ("1.13", "2.4.0", "2.9.1")} == {"timm-fast-norm"}
    assert ran["resnet50", "2.9.1"] == "timm"
    assert ran["repvgg_a0", "2.9.1"] == "timm-reparameterized"
