"""Reading Slurm's state: job comments, and the JSON recorded from Slurm 22.05."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiling.errors import InputError
from scheduling.clusters.importers.pod_tenants import MOST_TENANTS
from scheduling.clusters.importers.slurm import gpus_of
from serving.integrations.slurm_cluster import cluster_for
from serving.integrations.slurm_state import (
    Request,
    SlurmJob,
    iterations_left,
    number,
    read_comment,
    type_of,
    used_gpus,
)

HERE = Path(__file__).parent
DEVICES = {"v100": "v100", "k80": "k80"}


def recorded() -> tuple[list[SlurmJob], list[dict[str, Any]]]:
    jobs = [SlurmJob.read(j) for j in json.loads((HERE / "squeue.json").read_text())["jobs"]]
    return jobs, json.loads((HERE / "sinfo.json").read_text())["nodes"]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("", None),
        ("notes", None),
        ("cotenant:resnet18-cifar", Request("resnet18-cifar", None)),
        ("cotenant:resnet18-cifar,iterations=20", Request("resnet18-cifar", 20.0)),
        ("cotenant:resnet18-cifar:iterations=20", Request("resnet18-cifar", 20.0)),
        (
            "cotenant:resnet18-cifar:batch_size=64,iterations=2e4",
            Request("resnet18-cifar:batch_size=64", 2e4),
        ),
        ("cotenant:a:batch_size=8,iterations=9,precision=amp", Request("a:batch_size=8,precision=amp", 9.0)),
        ("cotenant:graph:abc:batch_size=8", Request("graph:abc:batch_size=8", None)),
    ],
)
def test_comments(comment: str, expected: Request | None) -> None:
    assert read_comment(comment) == expected


@pytest.mark.parametrize(
    "comment",
    ["cotenant:", "cotenant:a:what=1", "cotenant:a,iterations=0", "cotenant:a,iterations=x",
     "cotenant:a,iterations=inf", "cotenant:a,iterations=1,iterations=2", "cotenant:a; scancel 1:b=2",
     # Fine as a SPEC, but the service would refuse the whole cluster of such a tenant.
     "cotenant:a:batch_size=2000000", "cotenant:a,iterations=1e13", "cotenant:a,iterations=nan", "cotenant:" + "a" * 501],
)  # fmt: skip
def test_bad_comments(comment: str) -> None:
    with pytest.raises(InputError):
        read_comment(comment)


def test_gres() -> None:
    assert used_gpus("shard:1(IDX:1)") == {1: ("shard", 1)}
    assert used_gpus("gpu:v100:2(IDX:0-1)") == {0: ("gpu", 1), 1: ("gpu", 1)}
    assert used_gpus("shard:v100:3(1/4,2/4)") == {0: ("shard", 1), 1: ("shard", 2)}
    assert used_gpus("") == {}
    assert gpus_of("gpu:v100_0:1,gpu:v100_1:1,shard:v100_0:4,shard:v100_1:4") == (["v100_0", "v100_1"], 4)
    assert gpus_of("") == ([], 0)


def test_numbers_of_newer_versions() -> None:
    assert number({"set": True, "infinite": False, "number": 7}) == 7
    assert number({"set": False, "number": 7}) == number(None) == 0


def test_recorded_state() -> None:
    """A running job with a comment is a tenant of the GPU whose index Slurm states."""
    jobs, nodes = recorded()
    running = next(j for j in jobs if j.state == "RUNNING")
    waiting = next(j for j in jobs if j.state == "PENDING")
    assert running.holds == {"node-a": {0: ("shard", 1)}}
    cluster = cluster_for(waiting, jobs, nodes, DEVICES, running.started_s)
    assert [(n["name"], [(g["id"], g["device"]) for g in n["gpus"]]) for n in cluster["nodes"]] == [
        ("node-a", [("0", "v100"), ("1", "v100")]), ("node-b", [("0", "k80"), ("1", "k80")]),
    ]  # fmt: skip
    tenants = [t for n in cluster["nodes"] for g in n["gpus"] for t in g["tenants"]]
    assert tenants == [{"job": "resnet18-cifar", "iterations_left": 20000.0, "job_id": str(running.id)}]


def test_excluded_jobs_and_gpus() -> None:
    jobs, nodes = recorded()
    running = next(j for j in jobs if j.state == "RUNNING")
    job = next(j for j in jobs if j.state == "PENDING")

    def left(jobs: list[SlurmJob], nodes: list[Any], job: SlurmJob = job) -> list[tuple[str, str]]:
        cluster = cluster_for(job, jobs, nodes, DEVICES, 0)
        return [(n["name"], g["id"]) for n in cluster["nodes"] for g in n["gpus"]]

    assert ("node-a", "0") not in left([replace(running, comment="")], nodes)  # says nothing about itself
    assert ("node-a", "0") not in left([replace(running, holds={"node-a": {0: ("gpu", 1)}})], nodes)
    assert ("node-a", "0") not in left([replace(running, holds={"node-a": {0: ("shard", 4)}})], nodes)
    assert ("node-a", "0") not in left(
        [replace(running, holds={"node-a": used_gpus("mps:50(IDX:0)")})], nodes
    )
    assert (
        left([], [nodes[0] | {"state": "draining"}])
        == left([], [nodes[0] | {"state_flags": ["DRAIN"]}])
        == []
    )
    assert (
        left([], [nodes[0] | {"state": ["IDLE", "DRAIN"]}]) == left([], [nodes[0] | {"partitions": []}]) == []
    )
    assert (
        left([], [nodes[0] | {"alloc_cpus": 4}]) == left([], [nodes[0] | {"gres": "gpu:odd:1,shard:4"}]) == []
    )
    assert left([], nodes, replace(job, shards=5)) == []


def test_a_gpu_with_more_jobs_than_the_service_accepts_is_left_out() -> None:
    """The service would refuse the whole cluster."""
    jobs, nodes = recorded()
    running = next(j for j in jobs if j.state == "RUNNING")
    job = next(j for j in jobs if j.state == "PENDING")
    many = [nodes[0] | {"gres": "gpu:v100:1,shard:64"}]

    def tenants(number: int) -> list[int]:
        cluster = cluster_for(job, [replace(running, id=k) for k in range(number)], many, DEVICES, 0)
        return [len(gpu["tenants"]) for node in cluster["nodes"] for gpu in node["gpus"]]

    assert tenants(MOST_TENANTS) == [MOST_TENANTS]
    assert tenants(MOST_TENANTS + 1) == []


@pytest.mark.parametrize(
    ("state", "flags", "usable"),
    [
        ("idle", ["CLOUD", "POWERED_DOWN"], True),
        (["IDLE", "POWER_DOWN"], None, True),
        (["MIXED", "CLOUD", "NOT_RESPONDING", "POWERING_UP"], None, True),
        (["IDLE", "PLANNED"], None, True),
        (["IDLE", "POWERING_DOWN"], None, False),
        (["IDLE", "NOT_RESPONDING"], None, False),
        (["DOWN", "POWERED_DOWN"], None, False),
        (["DOWN*"], None, False),
        ("IDLE+DRAIN", None, False),
        ("draining", [], False),
        ("failing", [], False),
        (["IDLE", "MAINT", "RESERVED"], None, False),
        (["IDLE", "INVALID_REG"], None, False),
    ],
)
def test_states_of_nodes(state: Any, flags: list[str] | None, usable: bool) -> None:
    """Slurm wakes nodes that are powered down to save energy."""
    jobs, nodes = recorded()
    job = next(j for j in jobs if j.state == "PENDING")
    cluster = cluster_for(job, [], [nodes[0] | {"state": state, "state_flags": flags}], DEVICES, 0)
    assert bool(cluster["nodes"]) == usable


def test_jobs_for_several_partitions() -> None:
    jobs, nodes = recorded()
    job = replace(next(j for j in jobs if j.state == "PENDING"), partition="gpu,long")
    apart = [nodes[0], nodes[1] | {"partitions": ["debug", "long"]}, nodes[1] | {"partitions": ["longer"]}]
    assert [n["name"] for n in cluster_for(job, [], apart, DEVICES, 0)["nodes"]] == ["node-a", "node-b"]


@pytest.mark.parametrize("key", ["required_nodes", "excluded_nodes", "features", "resv_name"])
def test_constrained_jobs(key: str) -> None:
    assert SlurmJob.read({"job_id": 1, key: "a"}).constrained
    assert not SlurmJob.read({"job_id": 1, key: ""}).constrained


@pytest.mark.parametrize(
    ("het_job_id", "constrained"),
    [(6, True), (0, False), ({"set": True, "number": 6}, True), ({"set": False, "number": 0}, False)],
)
def test_parts_of_a_heterogeneous_job_are_constrained(het_job_id: Any, constrained: bool) -> None:
    """A change of its first part changes all."""
    assert SlurmJob.read({"job_id": 6, "het_job_id": het_job_id}).constrained is constrained


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:a100_3g.20gb:1,gpu:a100_1g.5gb:2,shard:6", ["a100:mig=3g", "a100:mig=1g", "a100:mig=1g"]),
        ("gpu:a100_4g.20gb_0:1,gpu:a100_3g.20gb_1:1,shard:4", ["a100:mig=4g", "a100:mig=3g"]),
        ("gpu:2g.10gb:1,shard:2", ["a100:mig=2g"]),
        ("gpu:v100_3g.20gb:1,gpu:odd_3g.20gb:1,gpu:a100_5g.1gb:1,gpu:1g.5gb:1,shard:8", []),
    ],
)
def test_mig_types(gres: str, expected: list[str]) -> None:
    jobs, nodes = recorded()
    job = next(j for j in jobs if j.state == "PENDING")
    devices = DEVICES | {"a100": "a100", "2g.10gb": "a100:mig=2g"}
    cluster = cluster_for(job, [], [nodes[0] | {"gres": gres}], devices, 0)
    assert [g["device"] for n in cluster["nodes"] for g in n["gpus"]] == expected


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("nvidia_a100-sxm4-40gb", "a100"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("nvidia_l40s", "l40s"),
        ("tesla_t4", "t4"),
        ("rtx_a6000", "rtx-a6000"),
        ("nvidia_a100-sxm4-40gb_3g.20gb", "a100:mig=3g"),
        ("a100_80gb", "a100-80gb"),
        ("v100_32gb", "v100-32gb"),
        ("h100_nvl", "h100-nvl"),
        ("v100_1", "v100"),
        ("tesla", "p100"),
        ("tesla_v100", None),  # two memory sizes
        ("odd", None),
        ("", None),
    ],
)
def test_types_are_recognised_as_on_import(kind: str, device: str | None) -> None:
    """The names of `AutoDetect=nvml` and of sites. What stands before an underscore does not name the card."""
    jobs, nodes = recorded()
    job = next(j for j in jobs if j.state == "PENDING")
    node = nodes[0] | {"gres": f"gpu:{kind}:1,shard:4" if kind else "gpu:1,shard:4"}
    cluster = cluster_for(job, [], [node], {"tesla": "p100"}, 0)
    assert [g["device"] for n in cluster["nodes"] for g in n["gpus"]] == ([device] if device else [])


def test_gpus_without_a_type_have_that_of_a_feature_or_of_the_option() -> None:
    jobs, nodes = recorded()
    job = next(j for j in jobs if j.state == "PENDING")
    node = nodes[0] | {"gres": "gpu:1,shard:4"}
    for changed, devices in (({"active_features": "ib,p100"}, {}), ({"features": ["ib"]}, {"gpu": "p100"})):
        cluster = cluster_for(job, [], [node | changed], devices, 0)
        assert [g["device"] for n in cluster["nodes"] for g in n["gpus"]] == ["p100"]


def test_a_node_whose_gres_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    jobs, nodes = recorded()
    job = next(j for j in jobs if j.state == "PENDING")
    strange = [
        nodes[0] | {"name": f"strange-{k}", "gres": gres} for k, gres in enumerate(("gpu:a:b:c", "gpu:1P"))
    ]
    for _ in range(2):
        cluster = cluster_for(job, [], [*strange, nodes[1]], {}, 0)
        assert [n["name"] for n in cluster["nodes"]] == ["node-b"]
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert logged[0].startswith("node strange-0 is left out: Gres is not understood")


@pytest.mark.parametrize(
    ("asked", "whole", "gpu_type", "shards", "constrained"),
    [
        ("gres:shard:1", False, "", 1, False),
        ("gres:shard:a100_3g.20gb:2", False, "a100_3g.20gb", 2, False),
        ("gres:gpu:1", True, "", 1, False),
        ("gres:gpu", True, "", 1, False),
        ("gres/gpu:a100_1g.5gb=1", True, "a100_1g.5gb", 1, False),
        ("gres:gpu:a100_1g.5gb", True, "a100_1g.5gb", 1, False),
        ("gres:gpu:2", True, "", 1, True),
    ],
)
def test_requests_of_a_job(asked: str, whole: bool, gpu_type: str, shards: int, constrained: bool) -> None:
    job = SlurmJob.read({"job_id": 1, "tres_per_node": asked})
    assert (job.whole, job.gpu_type, job.shards, job.constrained) == (whole, gpu_type, shards, constrained)
    assert job.gres
    assert not SlurmJob.read({"job_id": 1, "tres_per_job": "gres:gpu:1"}).gres


def test_a_whole_slice_is_empty_and_of_the_requested_type() -> None:
    jobs, nodes = recorded()
    job = replace(next(j for j in jobs if j.state == "PENDING"), whole=True)
    node = nodes[0] | {"gres": "gpu:a100_3g.20gb:1,gpu:a100_1g.5gb:2,shard:6"}
    running = replace(
        next(j for j in jobs if j.state == "RUNNING"), holds={str(node["name"]): {1: ("shard", 1)}}
    )

    def free(job: SlurmJob) -> list[str]:
        cluster = cluster_for(job, [running], [node], {"a100": "a100"}, 0)
        return [g["id"] for n in cluster["nodes"] for g in n["gpus"]]

    assert free(job) == ["0", "2"]
    assert free(replace(job, gpu_type="a100_1g.5gb")) == ["2"]
    assert free(replace(job, whole=False, gpu_type="a100_1g.5gb")) == ["1", "2"]
    assert (type_of(node, 0), type_of(node, 2)) == ("a100_3g.20gb", "a100_1g.5gb")
    assert type_of(nodes[1], 0) is None


def test_iterations_left() -> None:
    job = SlurmJob.read(
        {"job_id": 1, "start_time": 100, "admin_comment": "cotenant:placed finish_s=50.0 at_s=9"}
    )
    request = Request("a", 1000.0)
    assert iterations_left(job, request, 125) == 500
    assert iterations_left(job, request, 9999) == 10
    assert iterations_left(replace(job, admin_comment=""), request, 125) == 1000


@pytest.mark.parametrize("mark", ["", "cotenant:placed finish_s=50.0 iterations=36000 at_s=9"])
def test_a_tenant_of_unknown_length_states_none(mark: str) -> None:
    """Also if an earlier version marked it with the number assumed at placement."""
    jobs, nodes = recorded()
    running = replace(
        next(j for j in jobs if j.state == "RUNNING"), comment="cotenant:resnet18-cifar", admin_comment=mark
    )
    asked = next(j for j in jobs if j.state == "PENDING")
    cluster = cluster_for(asked, [running], nodes, {"v100": "v100", "k80": "k80"}, 0)
    tenants = [t for n in cluster["nodes"] for g in n["gpus"] for t in g["tenants"]]
    assert tenants == [{"job": "resnet18-cifar", "job_id": str(running.id)}]


def test_jobs_on_several_nodes_of_newer_versions() -> None:
    """From Slurm 23.11 on, nodes are a host list."""
    raw = {
        "job_id": 9,
        "job_state": ["RUNNING"],
        "nodes": "gpu[01-02],gpu07",
        "gres_detail": ["gpu:v100:1(IDX:0)"] * 3,
    }
    job = SlurmJob.read(raw)
    assert list(job.holds) == ["gpu01", "gpu02", "gpu07"]
    nodes = [
        {"name": "gpu02", "state": ["MIXED"], "gres": "gpu:v100:1,shard:4", "cpus": 8, "partitions": ["gpu"]}
    ]
    asking = SlurmJob.read({"job_id": 10, "partition": "gpu", "tres_per_node": "gres/shard:1"})
    assert cluster_for(asking, [job], nodes, DEVICES) == {"nodes": []}


@pytest.mark.parametrize(
    "state",
    [
        "CONFIGURING",
        ["RUNNING", "CONFIGURING"],
        ["CONFIGURING", "RUNNING"],
        "SIGNALING",
        ["RUNNING", "SIGNALING"],
    ],
)
def test_a_job_whose_node_is_booting_has_its_gpu(state: Any) -> None:
    assert SlurmJob.read({"job_id": 9, "job_state": state}).state == "RUNNING"


@pytest.mark.parametrize(
    "state",
    [
        "SUSPENDED",
        ["SUSPENDED", "SIGNALING"],
        ["RUNNING", "STOPPED"],
        ["RUNNING", "RESIZING"],
        "COMPLETING",
        ["COMPLETED", "COMPLETING"],
        ["PENDING", "COMPLETING", "REQUEUED"],
    ],
)
@pytest.mark.parametrize("detail", ["shard:v100_0:1(1/4)", "gpu:v100_0:1(IDX:0)"])
def test_a_job_that_does_not_run_keeps_its_gpu(state: Any, detail: str) -> None:
    """Its memory is taken, and it may continue at any time: the GPU is no candidate."""
    jobs, nodes = recorded()
    paused = SlurmJob.read(
        {
            "job_id": 9,
            "job_state": state,
            "comment": "cotenant:resnet18-cifar",
            "nodes": "node-a",
            "gres_detail": [detail],
        }
    )
    assert paused.has_gpus
    for asking in (
        next(j for j in jobs if j.state == "PENDING"),
        SlurmJob.read({"job_id": 10, "partition": "gpu", "tres_per_node": "gres:gpu:1"}),
    ):
        cluster = cluster_for(asking, [paused], nodes[:1], DEVICES, 0)
        assert [g["id"] for n in cluster["nodes"] for g in n["gpus"]] == ["1"]


@pytest.mark.parametrize(
    "state", ["PENDING", "COMPLETED", "CANCELLED", ["FAILED"], ["COMPLETED", "STAGE_OUT"]]
)
def test_a_job_that_ended_has_no_gpu(state: Any) -> None:
    assert not SlurmJob.read({"job_id": 9, "job_state": state}).has_gpus


def test_a_dependency() -> None:
    assert SlurmJob.read({"job_id": 9, "dependency": "afterok:3(unfulfilled)"}).dependent
    failed = SlurmJob.read({"job_id": 9, "dependency": "afterok:3(failed)"})
    assert failed.never_starts
    assert not failed.dependent
    assert not SlurmJob.read(
        {"job_id": 9, "dependency": "afterok:3(failed)?afterok:4(unfulfilled)"}
    ).never_starts
    assert not SlurmJob.read({"job_id": 9, "dependency": ""}).dependent
