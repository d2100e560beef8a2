"""Stored values that earlier versions accepted and this one refuses are ignored, reported and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, select, update
from structlog.testing import capture_logs
from typer.testing import CliRunner

from serving.cli.main import app
from serving.store import Store
from serving.store.tables import NodeRow, ObservationRow, TenantRow
from tests.serving.conftest import Start
from tests.serving.problems import problem

JOB = "resnet18-cifar:batch_size=32"
NODES = {
    "nodes": [
        {"name": "a", "gpus": [{"id": "0", "device": "v100"}]},
        {
            "name": "b",
            "gpus": [{"id": "0", "device": "v100", "tenants": [{"job": JOB, "iterations_left": 100.0}]}],
        },
    ]
}
REFUSED = f"{JOB},step_time_s=1e-30"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/store.db")


def test_a_tenant_that_is_no_longer_valid(start: Start, store: Store) -> None:
    """It keeps its GPU, which gets no other job; other nodes do, and the cluster can be read."""
    start().put("/v1/cluster", json=NODES)
    with store.write() as session:
        session.execute(update(TenantRow).values(job=REFUSED))
    client = start()
    body = client.get("/v1/cluster").json()
    tenant = body["cluster"]["nodes"][1]["gpus"][0]["tenants"][0]
    assert tenant == {"job": {"workload": REFUSED}, "iterations_left": 100.0}
    placed = client.post("/v1/placements", json={"job": JOB, "iterations": 10})
    assert (placed.status_code, placed.json()["node"]) == (201, "a")
    page = client.get("/").text
    assert "step_time_s=1e-30" in page
    assert "1.00x slowdown" in page, "of the other GPU's job"
    assert page.count("unknown model") == 1
    with store.read() as session:
        assert {t.job for t in session.query(TenantRow)} == {REFUSED, JOB}
    empty = {"gpus": [{"id": "0", "device": "v100"}]}
    assert client.put("/v1/cluster/nodes/b?replace_tenants=true", json=empty).status_code == 200
    assert client.post("/v1/placements", json={"job": JOB, "iterations": 10}).json()["node"] == "b"


def test_a_gpu_with_more_tenants_than_a_set_may_have(start: Start, store: Store) -> None:
    """It gets no job and is not predicted; the others are."""
    start().put("/v1/cluster", json=NODES)
    with store.write() as session:
        row = session.scalars(select(TenantRow)).one()
        values = {c.name: getattr(row, c.name) for c in TenantRow.__table__.columns if c.name != "id"}
        session.execute(insert(TenantRow), [values] * 16)
    client = start()
    cluster = client.get("/v1/cluster").json()["cluster"]
    node = cluster["nodes"][1]
    tenants = node["gpus"][0]["tenants"]
    assert len(tenants) == 17
    for query in ("", "?replace_tenants=true"):
        assert client.put(f"/v1/cluster{query}", json=cluster).status_code == 200
        assert client.put(f"/v1/cluster/nodes/b{query}", json=node).status_code == 200
    assert client.get("/v1/cluster").json()["cluster"] == cluster, "it can be put back as it is"
    more = {"gpus": [node["gpus"][0] | {"tenants": [*tenants, {"job": JOB, "iterations_left": 1}]}]}
    problem(client.put("/v1/cluster/nodes/b?replace_tenants=true", json=more), 413)
    answer = client.post("/v1/place", json={"job": JOB, "iterations": 10}).json()
    assert ([one["node"] for one in answer["ranked"]], answer["decision"]) == (["a"], "place")
    pod = {"metadata": {"annotations": {"cotenant.dev/workload": JOB}}}
    scores = client.post("/extender/prioritize", json={"Pod": pod, "NodeNames": ["a", "b"]}).json()
    assert [one["Score"] for one in scores] == [10, 0]
    assert client.get("/").text.count("a GPU has too many tenants") == 1
    assert client.delete("/v1/cluster/nodes/a").status_code == 200
    body = problem(client.post("/v1/place", json={"job": JOB}), 413)
    assert "every GPU has too many tenants" in body["detail"]


def test_a_card_without_mig_stored_with_sharing_mig(start: Start, store: Store) -> None:
    start().put("/v1/cluster", json=NODES)
    with store.write() as session:
        session.execute(update(NodeRow).values(gpus=[{"id": "0", "device": "v100", "sharing": "mig"}]))
    with capture_logs() as logs:
        client = start()
        body = client.get("/v1/cluster").json()
    assert any(line["event"] == "stored GPU without MIG is time-sliced" for line in logs)
    assert [node["gpus"][0]["sharing"] for node in body["cluster"]["nodes"]] == ["time-slice"] * 2
    for job_id in ("t-1", "t-2"):
        placed = client.post("/v1/placements", json={"job": JOB, "iterations": 10, "job_id": job_id})
        assert placed.status_code == 201
    node = client.get("/v1/cluster").json()["cluster"]["nodes"][1]
    put = client.put("/v1/cluster/nodes/b", json={"gpus": node["gpus"]})
    assert put.status_code == 200, "its tenants are not in the way"


def test_a_gpu_type_stored_in_another_spelling(start: Start, store: Store) -> None:
    start().put("/v1/cluster", json=NODES)
    with store.write() as session:
        spelt = [{"id": "0", "device": "V100-16GB", "sharing": "time-slice"}]
        session.execute(update(NodeRow).values(gpus=spelt))
    client = start()
    body = client.get("/v1/cluster").json()
    assert [node["gpus"][0]["device"] for node in body["cluster"]["nodes"]] == ["v100"] * 2
    node = {"gpus": [{"id": "0", "device": "v100"}]}
    assert client.put("/v1/cluster/nodes/b", json=node).status_code == 200, "its tenant is not in the way"


def test_a_gpu_type_whose_device_file_is_missing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPUs get no jobs; decisions, the extender and the dashboard continue with the others."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "my-gpu: {sm_count: 58, clock_hz: 2e+9, fp32_flops: 3e+13, memory_bytes: 2.4e+10,"
        " memory_bandwidth_bytes_per_s: 3e+11}"
    )
    monkeypatch.setenv("COTENANT_DEVICES", str(mine))
    tenant = {"job": JOB, "iterations_left": 100.0}
    strange = {"name": "c", "gpus": [{"device": "my-gpu", "tenants": [tenant]}, {"device": "my-gpu"}]}
    body = {"nodes": [*NODES["nodes"], strange]}
    first = start()
    assert first.put("/v1/cluster", json=body).status_code == 200
    first.__exit__(None, None, None)
    monkeypatch.delenv("COTENANT_DEVICES")
    with capture_logs() as logs:
        client = start()
        stored = client.get("/v1/cluster").json()["cluster"]["nodes"][2]["gpus"]
        assert [gpu["device"] for gpu in stored] == ["my-gpu"] * 2
        placed = client.post("/v1/placements", json={"job": JOB, "iterations": 10})
    assert any(line["event"] == "GPUs of an unknown type" for line in logs)
    assert (placed.status_code, placed.json()["node"]) == (201, "a")
    ranked = client.post("/v1/place", json={"job": JOB, "iterations": 10}).json()["ranked"]
    assert {gpu["node"] for gpu in ranked} == {"a", "b"}
    told = client.post("/v1/place", json={"job": JOB, "cluster": {"nodes": [strange]}})
    assert told.status_code == 404, "a cluster that is given now is to be right"
    page = client.get("/")
    assert page.status_code == 200
    assert "device &#39;my-gpu&#39; is not in the catalogue" in page.text
    names = ["a", "b", "c"]
    for wanted in ("nvidia.com/gpu", "nvidia.com/mig-3g.20gb"):
        limits = {"containers": [{"resources": {"limits": {wanted: "1"}}}]}
        pod = {"metadata": {"annotations": {"cotenant.dev/workload": JOB}}, "spec": limits}
        asked = {"Pod": pod, "NodeNames": names}
        kept = client.post("/extender/filter", json=asked).json()
        assert kept["Error"] == ""
        assert kept["NodeNames"] == (names if wanted == "nvidia.com/gpu" else ["c"])
        scores = client.post("/extender/prioritize", json=asked).json()
        assert {s["Host"]: s["Score"] > 0 for s in scores}["c"] is False
    gone = [node for node in body["nodes"] if node["name"] == "c"]
    assert (
        client.put("/v1/cluster?replace_tenants=true", json={"nodes": NODES["nodes"][:1]}).status_code == 200
    )
    assert client.put("/v1/cluster", json={"nodes": gone}).status_code == 404
    assert client.delete("/v1/cluster/nodes/a?replace_tenants=true").status_code == 200


def test_a_cluster_of_unknown_gpu_types_only(start: Start, store: Store) -> None:
    start().put("/v1/cluster", json=NODES)
    with store.write() as session:
        session.execute(
            update(NodeRow).values(gpus=[{"id": "0", "device": "my-gpu", "sharing": "time-slice"}])
        )
    told = start().post("/v1/placements", json={"job": JOB, "iterations": 10})
    assert told.status_code == 404
    assert "'my-gpu'" in told.json()["detail"]
    assert "COTENANT_DEVICES" in told.json()["detail"]


def row(**changes: Any) -> ObservationRow:
    values = {
        "device": "v100", "sharing": "time-slice", "jobs": [JOB], "member": 0, "step_time_s": 0.13,
        "predicted_step_time_s": 0.1, "predicted_lower_s": 0.09, "predicted_upper_s": 0.11, "error_ratio": 0.23,
        "model_version": "table-1", "observed_at": 1.8e9,
    }  # fmt: skip
    return ObservationRow(**values | changes)


def test_observations_that_are_now_refused(start: Start, store: Store, tmp_path: Path) -> None:
    with store.write() as session:
        session.add_all(row() for _ in range(10))
        session.add(row(step_time_s=1e-30, error_ratio=1e29))
        session.add(row(step_time_s=1e-6, error_ratio=1e5))
        session.add(row(jobs=[REFUSED]))
    with capture_logs() as logs:
        client = start(retention_s=1e10)
    left_out = [line for line in logs if line["event"] == "stored observations ignored"]
    assert [line["count"] for line in left_out] == [3]
    assert "implausible" in left_out[0]["first"]
    asked = {"device": "v100", "jobs": [JOB]}
    assert step_time(client, asked) == pytest.approx(0.13, rel=0.03)
    new = client.post("/v1/observations", json={"observations": [{"of": asked, "step_time_s": 0.13}]})
    assert new.status_code == 201
    assert len(client.get("/v1/observations").json()["items"]) == 14
    page = client.get("/").text
    assert "23.1 %" in page, "the mean error"
    database = f"sqlite:///{tmp_path}/store.db"
    told = CliRunner().invoke(
        app, ["data", "export-observations", "--database", database, "-o", str(tmp_path)]
    )
    assert "note: 3 of 14 were skipped, the first: step_time_s is implausible" in told.stderr
    assert "11 observations" in told.stdout


def step_time(client: TestClient, asked: dict[str, Any]) -> float:
    return float(client.post("/v1/predict", json=asked).json()["members"][0]["step_time_s"]["value"])
