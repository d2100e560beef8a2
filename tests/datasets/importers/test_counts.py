"""Imported rows agree with counts made here from the raw files, independently of the importers' code."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from datasets.importers import import_source, read_source, write_source
from datasets.tables import available_tables, read_table
from tests.once import gavel_tables
from tests.shared import shared_data

FILES = {
    "gavel-2020": "simulation_throughputs.json",
    "gavel-2019": "oracle_throughputs.json",
}


def _pairs(campaign: str) -> dict[tuple[str, frozenset[str]], tuple[list[float], list[float]]]:
    """(gpu, both jobs) -> rates of both by name, and their solo rates; no failed or multi-GPU pairs."""
    body = json.loads(shared_data("gavel", FILES[campaign]).read_text())
    measured = {}
    for gpu, jobs in body.items():
        if gpu.endswith("unconsolidated"):
            continue
        for a, row in jobs.items():
            for b, rates in row.items():
                if b == "null" or 0 in rates or (a.startswith("(") and not a.endswith(", 1)")):
                    continue
                pair = sorted([(a, rates[0]), (b, rates[1])])
                measured[gpu, frozenset((a, b))] = ([r for _, r in pair], [jobs[j]["null"] for j, _ in pair])
    return measured


@pytest.fixture(scope="module")
def gavel() -> Path:
    return gavel_tables()


@pytest.mark.parametrize("campaign", sorted(FILES))
def test_gavel_pairs_agree_with_a_hand_count(gavel: Path, campaign: str) -> None:
    expected = _pairs(campaign)
    table = read_table(gavel, "colocation")
    table = table[table["campaign"] == campaign]
    assert table["set_id"].nunique() == len(expected)
    assert len(table) == 2 * len(expected)
    ratios = sorted(r / s for rates, alone in expected.values() for r, s in zip(rates, alone, strict=True))
    assert table["throughput_ratio"].sort_values().to_numpy() == pytest.approx(ratios)
    capped = sum(r == s for rates, alone in expected.values() for r, s in zip(rates, alone, strict=True))
    assert table["censored"].sum() == capped
    # Only a campaign's capped values equal the solo rate, and no ratio is above it.
    assert (table["throughput_ratio"] <= 1).all()


def test_gavel_solo_and_scaling_agree_with_a_hand_count(gavel: Path) -> None:
    solo, scaling = read_table(gavel, "solo"), read_table(gavel, "scaling")
    single, several = 0, 0
    for name in FILES.values():
        for gpu, jobs in json.loads(shared_data("gavel", name).read_text()).items():
            for job, row in jobs.items():
                gpus = int(job.rsplit(",", 1)[1].strip(" )")) if job.startswith("(") else 1
                if row["null"] > 0 and gpus > 1:
                    several += 1
                elif row["null"] > 0 and "unconsolidated" not in gpu:
                    single += 1
    assert (len(solo), len(scaling)) == (single, several)


def test_gavel_sharing_and_one_known_pair(gavel: Path) -> None:
    table = read_table(gavel, "colocation")
    mps = table[table["sharing"] == "mps"]
    assert set(zip(mps["campaign"], mps["device"], strict=True)) == {("gavel-2020", "v100")}
    body = json.loads(shared_data("gavel", "simulation_throughputs.json").read_text())["k80"]
    a, b = "('ResNet-18 (batch size 16)', 1)", "('ResNet-18 (batch size 32)', 1)"
    rows = table[
        table["set_id"] == "gavel-2020/k80/resnet18-cifar:batch_size=16 + resnet18-cifar:batch_size=32"
    ].set_index("workload")
    row = rows.loc["resnet18-cifar:batch_size=16"]
    assert row["throughput_ratio"] == pytest.approx(body[a][b][0] / body[a]["null"])
    assert row["step_time_s"] == pytest.approx(1 / body[a][b][0])


def test_lucid_agrees_with_a_hand_count(tmp_path: Path) -> None:
    import_source("lucid", shared_data("lucid"), tmp_path)
    with shared_data("lucid", "colocate_info.csv").open() as stream:
        raw = list(csv.DictReader(stream))
    table = read_table(tmp_path, "colocation")
    assert table["set_id"].nunique() == len(raw)
    assert len(table) == 2 * len(raw)
    hard_coded = sum(row[f"model{n}"] in ("PPO", "TD3") for row in raw for n in "12")
    assert (~table["is_target"]).sum() == hard_coded
    assert (table.loc[~table["is_target"], "throughput_ratio"] == 1).all()
    assert table["throughput_ratio"].sum() == pytest.approx(
        sum(float(row[f"speed{n}"]) for row in raw for n in "12")
    )
    assert table["set_memory_bytes"].max() == max(float(row["gmem"]) for row in raw) * 2**20
    assert table["set_utilization_ratio"].mean() == pytest.approx(
        sum(float(row["gpu_util"]) for row in raw) / len(raw) / 100
    )
    with shared_data("lucid", "single_data.csv").open() as stream:
        singles = list(csv.DictReader(stream))
    solo = read_table(tmp_path, "solo")
    assert len(solo) == len(singles)
    assert solo["step_time_s"].isna().sum() == sum(row["model"] in ("PPO", "TD3") for row in singles)
    vgg = solo[solo["workload"] == "vgg11-cifar:batch_size=128,precision=amp"].iloc[0]
    assert vgg["step_time_s"] == pytest.approx(128 / 7009.529)


def test_sia_agrees_with_a_hand_count(tmp_path: Path) -> None:
    import_source("sia", shared_data("sia"), tmp_path)
    expected = set()
    kind = {
        "aws": "t4",
        "rtx": "rtx-2080-ti",
        "quad": "quadro-rtx-6000",
        "dgx": "a100",
        "dgx-ext": "a100",
        "azure": "v100",
    }
    for path in shared_data("sia", "traces").glob("*/placements-*.csv"):
        if path.parent.name == "gpt_pmp":
            continue
        with path.open() as stream:
            for row in csv.DictReader(stream):
                device = kind[path.stem.removeprefix("placements-")]
                expected.add(
                    (path.parent.name, device, row["placement"], row["local_bsz"], float(row["step_time"]))
                )
    table = read_table(tmp_path, "scaling")
    assert len(table) == len(expected)
    assert table["step_time_s"].sum() == pytest.approx(sum(e[-1] for e in expected))
    assert (table["sync_time_s"] <= table["step_time_s"]).all()
    largest = table.loc[table["gpus"].idxmax()]
    assert largest["gpus"] == sum(map(int, largest["placement"].split("-")))


def test_freezing_agrees_with_a_hand_count(tmp_path: Path) -> None:
    import_source("freezing", shared_data("freezing"), tmp_path)
    table = read_table(tmp_path, "freezing")
    with shared_data("freezing", "throughput.csv").open() as stream:
        steps = list(csv.DictReader(stream))
    with shared_data("freezing", "memory.csv").open() as stream:
        memory = list(csv.DictReader(stream))
    assert table["step_time_s"].notna().sum() == len(steps)
    assert table["memory_bytes"].notna().sum() == len(memory)
    assert table["step_time_s"].sum() == pytest.approx(sum(float(row["step_time_s"]) for row in steps))
    warm = sum(
        r["model"] == "yolov3-voc" and r["frozen_layers"] == "0" and r["local_bsz"] in ("4", "24")
        for r in steps
    )
    assert (table["note"] == "warm-up").sum() == warm
    assert (table["note"] == "cudnn-workspace").sum() == sum(row["frozen_layers"] == "0" for row in memory)


def test_pipedream_agrees_with_a_hand_count(tmp_path: Path) -> None:
    import_source("pipedream", shared_data("pipedream"), tmp_path)
    table = read_table(tmp_path, "graphs")
    lines, forward = 0, 0.0
    for path in shared_data("pipedream").glob("*.graph.txt"):
        for line in path.read_text().splitlines():
            if match := re.search(r"forward_compute_time=([\d.]+)", line):
                lines += 1
                forward += float(match[1])
    assert len(table) == lines
    assert table["forward_time_s"].sum() == pytest.approx(forward / 1000)
    assert table["architecture"].nunique() == 11


def test_sources_share_a_folder_and_reimporting_one_changes_nothing(tmp_path: Path) -> None:
    imports = {name: read_source(name, shared_data(name)) for name in ("lucid", "pipedream", "gavel")}
    written = []
    for names in (tuple(imports), ("lucid",)):
        for name in names:
            write_source(name, imports[name].tables(), tmp_path)
        written.append({table: read_table(tmp_path, table) for table in available_tables(tmp_path)})
    counts = written[0]["colocation"]["source"].value_counts().to_dict()
    assert counts == {name: len(imports[name].rows["colocation"]) for name in ("gavel", "lucid")}
    assert written[0].keys() == written[1].keys()
    for table, first in written[0].items():
        order = list(first.columns)
        again = written[1][table].sort_values(order, ignore_index=True)
        pd.testing.assert_frame_equal(first.sort_values(order, ignore_index=True), again)
