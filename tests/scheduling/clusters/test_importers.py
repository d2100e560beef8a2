"""Clusters read from the output of nvidia-smi, Slurm and Kubernetes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError, LimitError, UnknownNameError
from scheduling.clusters.importers import import_cluster
from scheduling.clusters.importers.kubernetes import nodes_of
from scheduling.clusters.importers.slurm import gpus_of, host_names
from scheduling.clusters.importers.titles import device_of
from scheduling.clusters.writing import to_yaml
from scheduling.core.snapshot import ClusterSnapshot
from tests.scheduling.clusters.test_nvidia_smi import CSV, LISTED, gpu_rows

SLURM = Path(__file__).parents[2] / "serving" / "integrations" / "sinfo.json"
SCONTROL = """NodeName=gpu01 Arch=x86_64 CoresPerSocket=16
   Gres=gpu:a100:4(S:0-1)
   State=IDLE ThreadsPerCore=2
NodeName=login CPUTot=8
   Gres=(null)
"""


@pytest.mark.parametrize("source", ["sinfo", "scontrol"])
def test_slurm_json(source: str) -> None:
    cluster = import_cluster(source, SLURM.read_text())
    expected = {
        node["name"]: gpus_of(node["gres"])[0]
        for node in json.loads(SLURM.read_text())["nodes"]
        if node["gres"]
    }
    assert {node.name: len(node.gpus) for node in cluster.nodes} == {n: len(k) for n, k in expected.items()}
    grouped = {"sinfo": [{"nodes": {"nodes": ["a", "b"]}, "gres": {"total": "gpu:v100:2"}}]}
    assert [row[:3] for row in gpu_rows(import_cluster(source, json.dumps(grouped)))] == [
        (node, gpu, "v100") for node in "ab" for gpu in "01"
    ]


@pytest.mark.parametrize(
    ("features", "devices", "expected"),
    [
        ("ib,a100", {}, "a100"),
        ("cpu,tesla_t4", {}, "t4"),
        ("ib", {"gpu": "v100"}, "v100"),
        ("big", {"gpu": "v100", "big": "h100"}, "h100"),
        ("a100", {"gpu": "a100-80gb"}, "a100-80gb"),
    ],
)
@pytest.mark.parametrize("form", ["sinfo", "scontrol", "json", "grouped"])
def test_slurm_gpus_without_a_type(form: str, features: str, devices: dict[str, str], expected: str) -> None:
    text = {
        "sinfo": f"NODELIST GRES AVAIL_FEATURES\nn gpu:2 {features}\nm gpu:k80:1 (null)\n",
        "scontrol": f"NodeName=n ActiveFeatures={features} Gres=gpu:2\nNodeName=m Gres=gpu:k80:1\n",
        "json": json.dumps(
            {
                "nodes": [
                    {"name": "n", "gres": "gpu:2", "features": features.split(",")},
                    {"name": "m", "gres": "gpu:k80:1"},
                ]
            }
        ),
        "grouped": json.dumps(
            {
                "sinfo": [
                    {"nodes": {"nodes": ["n"]}, "gres": {"total": "gpu:2"}, "features": {"total": features}},
                    {"nodes": {"nodes": ["m"]}, "gres": {"total": "gpu:k80:1"}},
                ]
            }
        ),
    }[form]
    cluster = import_cluster("sinfo", text, devices)
    assert [row[2] for row in gpu_rows(cluster)] == [expected, expected, "k80"]


def test_slurm_mig_types() -> None:
    text = "NODELIST GRES\ndgx gpu:nvidia_a100-sxm4-40gb_3g.20gb:1,gpu:a100_1g.5gb_0:1,gpu:2g.10gb:1\n"
    cluster = import_cluster("sinfo", text, {"2g.10gb": "a100:mig=2g"})
    assert [row[2] for row in gpu_rows(cluster)] == ["a100:mig=3g", "a100:mig=1g", "a100:mig=2g"]
    with pytest.raises(InputError, match="does not name the card"):
        import_cluster("sinfo", "NODELIST GRES\nn gpu:3g.20gb:1\n")
    with pytest.raises(UnknownNameError, match="MIG"):
        import_cluster("sinfo", "NODELIST GRES\nn gpu:v100_3g.20gb:1\n", {"v100": "v100"})
    # A 1g of one card, or a 1g with twice the memory of the other.
    with pytest.raises(UnknownNameError, match=r"with 10 GiB \(rtx-3080\), got 12.0 GiB"):
        device_of("NVIDIA GeForce RTX 3080", {}, 12 * 2**30)
    with pytest.raises(UnknownNameError, match="ambiguous"):
        import_cluster("sinfo", "NODELIST GRES\nn gpu:nvidia_a100_1g.10gb:1\n")
    with pytest.raises(InputError, match=r"another kind of MIG slice.*whole slice"):
        import_cluster("sinfo", "NODELIST GRES\nn gpu:nvidia_h100_80gb_hbm3_1c.3g.40gb:1\n")


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("nvidia_gh200_480gb", "gh200"),
        ("nvidia_gh200_144g_hbm3e", "gh200-144gb"),
        ("nvidia_h100_nvl", "h100-nvl"),
        ("nvidia_h100_nvl_3g.47gb", "h100-nvl:mig=3g"),
        ("nvidia_gh200_480gb_1g.12gb", "gh200:mig=1g"),
        # The memory of the slice, which the vendor's name rounds otherwise.
        ("nvidia_a100-sxm4-80gb_3g.39gb", "a100-80gb:mig=3g"),
        ("nvidia_a100_3g.39gb", "a100-80gb:mig=3g"),
        ("a100_3g.39gb", "a100-80gb:mig=3g"),
        ("nvidia_a100_3g.20gb", "a100:mig=3g"),
        ("nvidia_h200_1g.16gb", "h200:mig=1g"),
        ("nvidia_h200_1g.33gb", "h200:mig=1g.35gb"),
        ("nvidia_h200_3g.70gb", "h200:mig=3g"),
        ("nvidia_rtx_a6000", "rtx-a6000"),
        ("nvidia_rtx_a5000", "rtx-a5000"),
        ("nvidia_rtx_6000_ada_generation", "rtx-6000-ada"),
        ("nvidia_a800_40gb_active", "a800-40gb-active"),
        ("nvidia_geforce_rtx_3090", "rtx-3090"),
        ("nvidia_geforce_rtx_3090_1", "rtx-3090"),
        ("quadro_rtx_6000", "quadro-rtx-6000"),
        ("nvidia_geforce_rtx_3080", "rtx-3080"),
        ("nvidia_geforce_rtx_3080_ti", "rtx-3080-ti"),
        ("nvidia_geforce_rtx_4070_ti", "rtx-4070-ti"),
        ("nvidia_geforce_rtx_4080", "rtx-4080"),
        ("nvidia_geforce_rtx_5080", "rtx-5080"),
    ],
)
def test_slurm_types_detected_by_the_driver(kind: str, device: str) -> None:
    """`AutoDetect=nvml` makes a type of the product's title."""
    cluster = import_cluster("sinfo", f"NODELIST GRES\nn gpu:{kind}:1\n")
    assert [row[2] for row in gpu_rows(cluster)] == [device]


@pytest.mark.parametrize(
    ("gres", "types", "shards"),
    [
        ("gpu:a100", ["a100"], 0),
        ("gpu", [""], 0),
        ("gpu:2", ["", ""], 0),
        ("gpu:v100:no_consume:2(S:0-1)", ["v100", "v100"], 0),
        ("gpu:no_consume:2", ["", ""], 0),
        ("gpu:1g.5gb:2,nvme:fast:x:1", ["1g.5gb", "1g.5gb"], 0),
        ("gpu:v100:2,shard:1K", ["v100", "v100"], 512),
        ("gpu:v100:1,shard:v100:1k", ["v100"], 1024),
    ],
)
def test_slurm_gres(gres: str, types: list[str], shards: int) -> None:
    """`name[:type][:no_consume][:count]`, where the count is 1 if omitted and may have a unit."""
    assert gpus_of(gres) == (types, shards)


def test_slurm_text() -> None:
    assert gpu_rows(import_cluster("scontrol", SCONTROL))[0][:3] == ("gpu01", "0", "a100")
    text = "NODELIST GRES\nn[01-02] gpu:tesla:1\nn[01-02] gpu:tesla:1\nlogin (null)\n"
    cluster = import_cluster("sinfo", text, {"tesla": "p100"})
    assert [row[:3] for row in gpu_rows(cluster)] == [("n01", "0", "p100"), ("n02", "0", "p100")]
    assert host_names("a[1-2,08],b") == ["a1", "a2", "a08", "b"]


@pytest.mark.parametrize(
    "text", ["a[²]", "a[5-3]", "a[1-2", "a[]", "a[0-999][0-999]", "a[0-99999],b[0-99999]"]
)
def test_bad_or_endless_host_lists(text: str) -> None:
    with pytest.raises((InputError, LimitError), match=r"host list|too large"):
        host_names(text)


def node_json(labels: dict[str, str], capacity: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}


@pytest.mark.parametrize(
    ("labels", "capacity", "expected"),
    [
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"},
            {"nvidia.com/gpu": "2"},
            {("a100-80gb", "time-slice"): 2},
        ),
        (
            {
                "nvidia.com/gpu.product": "Tesla-T4-SHARED",
                "nvidia.com/gpu.memory": "15360",
                "nvidia.com/gpu.replicas": "4",
                "nvidia.com/gpu.sharing-strategy": "mps",
            },
            {"nvidia.com/gpu": "4"},
            {("t4", "mps"): 1},
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "1"},
            {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-3g.20gb": "1", "nvidia.com/gpu": "0"},
            {("a100:mig=1g", "time-slice"): 2, ("a100:mig=3g", "time-slice"): 1},
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.count": "7"},
            {"nvidia.com/gpu": "7"},
            {("a100:mig=1g", "time-slice"): 7},
        ),
        (  # Four cards, of which two have slices; one slice with media engines.
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "4"},
            {
                "nvidia.com/gpu": "2",
                "nvidia.com/mig-3g.20gb": "3",
                "nvidia.com/mig-1g.5gb": "3",
                "nvidia.com/mig-1g.5gb.me": "1",
            },
            {
                ("a100", "time-slice"): 2,
                ("a100:mig=3g", "time-slice"): 3,
                ("a100:mig=1g", "time-slice"): 4,
            },
        ),
        *(  # Two slices shared by four pods each, under their own name or another.
            (
                {
                    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
                    "nvidia.com/gpu.count": "1",
                    "nvidia.com/mig-3g.20gb.replicas": "4",
                    **count,
                },
                {f"nvidia.com/mig-3g.20gb{renamed}": "8"},
                {("a100:mig=3g", "time-slice"): 2},
            )
            for renamed in ("", ".shared")
            for count in ({}, {"nvidia.com/mig-3g.20gb.count": "2"})
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", "nvidia.com/gpu.count": "1"},
            {"nvidia.com/gpu": "1"},
            {("a100:mig=1g", "time-slice"): 1},
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition"},
            {f"nvidia.com/mig-1g.24gb{variant}": "1" for variant in (".gfx", "-me", ".me.all", "")},
            {("rtx-pro-6000:mig=1g", "time-slice"): 4},
        ),
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition-MIG-2g.48gb.gfx",
                "nvidia.com/gpu.count": "2",
            },
            {"nvidia.com/gpu": "2"},
            {("rtx-pro-6000:mig=2g", "time-slice"): 2},
        ),
        (
            {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "4"},
            {"nvidia.com/gpu.shared": "8", "nvidia.com/gpu": "0"},
            {("t4", "time-slice"): 2},
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            },
            {"nvidia.com/gpu": "7"},
            {("a100:mig=1g", "time-slice"): 7},
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "cloud.google.com/gke-gpu-sharing-strategy": "mps",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
            },
            {"nvidia.com/gpu": "32"},
            {("h100", "mps"): 8},
        ),
        *(  # The label of a GH200 gives the memory of its CPU.
            (
                {"nvidia.com/gpu.product": product, **memory},
                {"nvidia.com/gpu": "1"},
                {(name, "time-slice"): 1},
            )
            for product, mib, name in (
                ("NVIDIA-GH200-480GB", "97871", "gh200"),
                ("NVIDIA-GH200-144G-HBM3e", "146831", "gh200-144gb"),
                ("NVIDIA-H100-NVL", "95830", "h100-nvl"),
                ("NVIDIA-H100-NVL-MIG-3g.47gb", "47488", "h100-nvl:mig=3g"),
                ("NVIDIA-RTX-A6000", "49140", "rtx-a6000"),
                ("NVIDIA-RTX-A5000", "24564", "rtx-a5000"),
                ("NVIDIA-RTX-6000-Ada-Generation-SHARED", "49140", "rtx-6000-ada"),
                ("NVIDIA-A800-40GB-Active", "40960", "a800-40gb-active"),
                ("NVIDIA-GeForce-RTX-3080", "10240", "rtx-3080"),
                ("NVIDIA-GeForce-RTX-3080-Ti", "12288", "rtx-3080-ti"),
                ("NVIDIA-GeForce-RTX-4070-Ti", "12282", "rtx-4070-ti"),
                ("NVIDIA-GeForce-RTX-4080", "16376", "rtx-4080"),
                ("NVIDIA-GeForce-RTX-5080", "16303", "rtx-5080"),
            )
            for memory in ({}, {"nvidia.com/gpu.memory": mib})
        ),
        (
            {"cloud.google.com/gke-accelerator": "nvidia-tesla-p4"},
            {"nvidia.com/gpu": "1"},
            {("p4", "time-slice"): 1},
        ),
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
            {"amd.com/gpu": "8"},
            {("mi300x", "time-slice"): 8},
        ),
    ],
)
def test_kubernetes(
    labels: dict[str, str], capacity: dict[str, str], expected: dict[tuple[str, str], int]
) -> None:
    items = [node_json(labels, capacity), {"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "4"}}}]
    cluster = import_cluster("kubectl", json.dumps({"items": items}))
    assert len(cluster.nodes) == 1
    assert Counter((gpu.device, gpu.sharing) for _, gpu in cluster.gpus()) == expected


def test_each_type_in_a_cluster_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds, and a controller reads thousands of nodes every few seconds."""
    asked, skipped = list[str](), list[str]()

    def counted(title: str, *given: Any) -> str:
        asked.append(title)
        return device_of(title, *given)

    monkeypatch.setattr("scheduling.clusters.importers.kubernetes.device_of", counted)
    titles = ["Tesla-K80", "Abacus-9000"] * 3
    items = [node_json({"nvidia.com/gpu.product": title}, {"nvidia.com/gpu": "1"}) for title in titles]
    assert len(nodes_of(items, [], {}, lambda name, error: skipped.append(str(error)))) == 3
    assert asked == ["Tesla-K80", "Abacus-9000"]
    assert len(skipped) == 3


def test_titles() -> None:
    assert device_of("NVIDIA H200", {}) == "h200"
    assert device_of("a100_80gb", {}) == "a100-80gb"
    assert (
        device_of("NVIDIA RTX PRO 6000 Blackwell Max-Q", {"NVIDIA RTX PRO 6000 Blackwell Max-Q": "l4"})
        == "l4"
    )
    with pytest.raises(UnknownNameError, match="not recognised"):
        device_of("Abacus 9000", {})
    with pytest.raises(UnknownNameError, match="ambiguous"):
        device_of("Tesla V100 SXM2", {})
    with pytest.raises(UnknownNameError, match="catalogue"):
        device_of("tesla", {"tesla": "abacus"})


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("docker", "", "unknown source"),
        ("nvidia-smi", "", "nvidia-smi"),
        ("nvidia-smi", "No devices were found", "nvidia-smi"),
        ("sinfo", "PARTITION AVAIL\nall up\n", "NODELIST|%N %G"),
        ("sinfo", "{", "JSON"),
        ("sinfo", '{"partitions": []}', "a list"),
        ("sinfo", '{"nodes": [' + "9" * 5000 + "]}", "JSON"),
        ("scontrol", '{"nodes": [null]}', "does not match its format"),
        ("sinfo", "NODELIST GRES\na gpu:a100:99999999\n", "too large.*at most 100000 GPUs"),
        ("sinfo", "NODELIST GRES\na[1-9999] gpu:a100:64\n", "too large.*at most 100000 GPUs"),
        ("sinfo", "NODELIST GRES\na[1-99999999] gpu:a100:1\n", "too large.*at most 100000 nodes"),
        (
            "kubectl",
            json.dumps(
                node_json({"nvidia.com/gpu.product": "A100-SXM4-40GB"}, {"nvidia.com/gpu": "99999999"})
            ),
            "too large",
        ),
        (
            "sinfo",
            "NODELIST GRES\nn1 gpu:2\n",
            "node n1: Gres names no GPU type.* --device gpu=CATALOGUE_NAME",
        ),
        (
            "sinfo",
            "NODELIST GRES AVAIL_FEATURES\nn1 gpu:2 ib,t4,k80\n",
            "no GPU type.*feature t4, feature k80",
        ),
        ("sinfo", "NODELIST GRES\nn1 gpu:v100:x:2\n", "node n1: Gres is not understood.*got gpu:v100:x:2"),
        ("sinfo", "NODELIST GRES\nn1 gpu:v100:\n", "Gres is not understood"),
        ("sinfo", "NODELIST GRES\nn1 gpu:v100:1P\n", "too large"),
        ("sinfo", "NODELIST GRES\nn1 (null)\n", "no GPU"),
        ("kubectl", "{", "JSON"),
        ("kubectl", "[" * 100_000, "JSON.*nested too deeply"),
        ("kubectl", "[]", "list of nodes"),
        ("kubectl", json.dumps(node_json({}, {"nvidia.com/gpu": "two"})), "does not match its format"),
        ("kubectl", json.dumps(node_json({}, {"nvidia.com/gpu": "1"})), "of unknown type"),
        ("kubectl", json.dumps(node_json({}, {"amd.com/gpu": "1"})), "of unknown type"),
        ("kubectl", '{"items": []}', "no GPU"),
        (
            "kubectl",
            json.dumps(node_json({}, {"nvidia.com/gpu": "0", "nvidia.com/mig-1c.3g.20gb": "3"})),
            r"expected slices, such as nvidia.com/mig-3g.20gb, got nvidia.com/mig-1c.3g.20gb; .*nvidia-smi -L",
        ),
    ],
)
def test_unreadable_input(source: str, text: str, message: str) -> None:
    with pytest.raises((InputError, LimitError), match=message):
        import_cluster(source, text)


def test_round_trip(tmp_path: Path) -> None:
    for cluster in (import_cluster("nvidia-smi", CSV), import_cluster("nvidia-smi", LISTED)):
        (tmp_path / "c.yaml").write_text(to_yaml(cluster))
        assert ClusterSnapshot.load(tmp_path / "c.yaml") == cluster
