"""Who changed what."""

from __future__ import annotations

from pathlib import Path

from serving.auth import create_token
from serving.store import Store
from tests.serving.conftest import Start
from tests.serving.test_access import NODE, bearer


def test_audit_log(start: Start, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    ops, client = bearer(create_token(store, "ops", ["admin"])), start(auth="on")
    client.put("/v1/cluster", json=NODE, headers=ops)
    client.put("/v1/cluster", json={"nodes": 1}, headers=ops)
    client.put("/v1/cluster?replace_tenants=perhaps", json=NODE, headers=ops)
    client.put("/v1/cluster", json=NODE)
    items = client.get("/v1/audit", headers=ops).json()["items"]
    assert [(i["caller"], i["action"], i["status"]) for i in items] == [
        ("unknown", "PUT /v1/cluster", 401),
        ("ops", "PUT /v1/cluster", 422),
        ("ops", "PUT /v1/cluster", 422),
        ("ops", "PUT /v1/cluster", 200),
    ]


def test_a_path_that_no_database_could_store_is_recorded(start: Start) -> None:
    client = start()
    assert client.put("/v1/cluster/nodes/%00", json={"gpus": []}).status_code == 422
    assert client.delete("/v1/workloads/a%00b").status_code == 404
    actions = [item["action"] for item in client.get("/v1/audit").json()["items"]]
    assert actions == ["DELETE /v1/workloads/a%00b", "PUT /v1/cluster/nodes/%00"]
