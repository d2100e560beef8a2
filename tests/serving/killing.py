"""A service that is killed in the middle of writes, again and again; what was acknowledged must be there afterwards."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from serving.store import Store
from tests.serving.waiting import LONG_S, until


def serve(port: int, folder: str) -> None:
    """The child: one service on `port`, its store in `folder`."""
    import uvicorn

    from serving import logs
    from serving.app import create_app
    from serving.config import ServiceConfig
    from serving.listener import BoundedProtocol
    from tests.serving.table import TableSource

    logs.configure("error")
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{folder}/store.db", log_level="error"), TableSource()
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, access_log=False, http=BoundedProtocol)


class Writer(threading.Thread):
    """Places jobs and puts nodes as fast as it is answered; remembers what was acknowledged."""

    def __init__(self, port: int, number: int, acknowledged: dict[str, set[str]]) -> None:
        super().__init__(daemon=True)
        self.base, self.number, self.acknowledged = f"http://127.0.0.1:{port}", number, acknowledged
        self.count = 0
        self.stopped = False

    def run(self) -> None:
        unique = f"{self.number}-{time.monotonic_ns()}"
        with httpx.Client(base_url=self.base, timeout=30, trust_env=False, verify=False) as client:
            while not self.stopped:
                self.count += 1
                name = f"w{unique}-{self.count}"
                try:
                    if self.count % 2:
                        body = {
                            "job": "resnet18-cifar",
                            "job_id": name,
                            "iterations": 100,
                            "max_slowdown": 1000.0,
                        }
                        answer = client.post("/v1/placements", json=body, headers={"Idempotency-Key": name})
                        kind = "placements"
                    else:
                        gpus = [{"device": "v100", "count": 4}]
                        answer = client.put(f"/v1/cluster/nodes/{name}", json={"gpus": gpus})
                        kind = "nodes"
                except httpx.HTTPError:
                    time.sleep(0.01)
                    continue
                if answer.status_code == 201:
                    self.acknowledged[kind].add(name)


def run(folder: Path, kills: int, seed: int = 0, writers: int = 4) -> dict[str, int]:
    """Start, write, SIGKILL, `kills` times; then check the store.

    Returns:
        how many writes were acknowledged, lost (must be 0) and half there (must be 0).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "serving.app",
            "serving.store",
            "uvicorn",
            "profiling.zoo",
            "alembic.command",
            "tests.serving.killing",
            "scheduling.placement.place",
        ]
    )
    chance = random.Random(seed)
    acknowledged: dict[str, set[str]] = {"placements": set(), "nodes": set()}
    for round_number in range(kills):
        port = _free_port()
        child = context.Process(target=serve, args=(port, str(folder)), daemon=True)
        child.start()
        _wait_ready(port)
        if round_number == 0:
            node = {"gpus": [{"device": "v100", "count": 8}]}
            httpx.put(
                f"http://127.0.0.1:{port}/v1/cluster/nodes/first",
                json=node,
                trust_env=False,
                verify=False,
                timeout=LONG_S,
            ).raise_for_status()
        threads = [Writer(port, number, acknowledged) for number in range(writers)]
        for thread in threads:
            thread.start()
        # The kill falls after so many acknowledged writes, and then at any point of the next ones.
        _wait_for_writes(acknowledged, _count(acknowledged) + chance.randint(1, 12))
        time.sleep(chance.uniform(0.0, 0.02))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        for thread in threads:
            thread.stopped = True
        for thread in threads:
            thread.join(LONG_S)
    return _check(folder, acknowledged)


def _check(folder: Path, acknowledged: dict[str, set[str]]) -> dict[str, int]:
    from sqlalchemy import select, text

    from serving.store.tables import ClusterRow, NodeRow, PlacementRow, TenantRow

    store = Store(f"sqlite:///{folder}/store.db")
    with store.read() as session:
        sound = session.execute(text("PRAGMA integrity_check")).scalar()
        placements: dict[str, Any] = {p.job_id: p for p in session.scalars(select(PlacementRow))}
        nodes = set(session.scalars(select(NodeRow.name)))
        tenants = {t.placement_id for t in session.scalars(select(TenantRow))}
        version = session.scalars(select(ClusterRow.version)).one()
    decided = {p.id for p in placements.values() if p.state == "decided"}
    store.close()
    assert sound == "ok"
    # Every change of the cluster is one version: nodes put, and placements decided.
    assert version == len(nodes) + len(decided)
    lost = len(acknowledged["placements"] - set(placements)) + len(acknowledged["nodes"] - nodes)
    return {
        "acknowledged": _count(acknowledged),
        "lost": lost,
        "half": len(decided ^ tenants),
    }


def _count(acknowledged: dict[str, set[str]]) -> int:
    return sum(map(len, acknowledged.values()))


def _wait_for_writes(acknowledged: dict[str, set[str]], number: int) -> None:
    until(lambda: _count(acknowledged) >= number, "writes are acknowledged", 0.001)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(port: int) -> None:
    def ready() -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/v1/health/ready", trust_env=False, verify=False)
            return answer.status_code == 200
        except httpx.HTTPError:
            return False

    until(ready, "the service starts again")
