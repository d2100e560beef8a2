"""A service that is killed repeatedly in the middle of writes; acknowledged writes must survive."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from serving.store import Store
from tests.serving.postgres import Server
from tests.waiting import LONG_S, until


def serve(port: int, url: str) -> None:
    """In the child process: one service on `port` with its store at `url`."""
    import uvicorn

    from serving import logs
    from serving.app import create_app
    from serving.config import ServiceConfig
    from serving.listener import BoundedProtocol
    from tests.serving.table import TableSource

    logs.configure("error")
    # Reservations that expire meanwhile would be unrequested changes.
    config = ServiceConfig(database_url=url, log_level="error", reservation_s=30 * 86_400.0)
    app = create_app(config, TableSource())
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, access_log=False, http=BoundedProtocol)


class Writer(threading.Thread):
    """Places jobs and puts nodes as fast as it gets responses; remembers what was acknowledged."""

    def __init__(self, port: int, number: int, acknowledged: dict[str, set[str]]) -> None:
        super().__init__(daemon=True)
        self.base, self.number, self.acknowledged = f"http://127.0.0.1:{port}", number, acknowledged
        self.count = 0
        self.statuses: Counter[int] = Counter()
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
                self.statuses[answer.status_code] += 1
                if answer.status_code == 201:
                    self.acknowledged[kind].add(name)


def run(folder: Path, kills: int, seed: int = 0, writers: int = 4) -> dict[str, int]:
    """Start, write, SIGKILL, `kills` times; then check the store.

    Returns:
        how many writes were acknowledged, lost (must be 0) and half there (must be 0).
    """
    chance, url = random.Random(seed), f"sqlite:///{folder}/store.db"
    acknowledged: dict[str, set[str]] = {"placements": set(), "nodes": set()}
    for round_number in range(kills):
        child, port = _start(url)
        if round_number == 0:
            _put_first_node(port)
        threads = [Writer(port, number, acknowledged) for number in range(writers)]
        for thread in threads:
            thread.start()
        # The kill falls after so many acknowledged writes, and then at any point of the next ones.
        _wait_for_writes(acknowledged, _count(acknowledged) + chance.randint(1, 12))
        time.sleep(chance.uniform(0.0, 0.02))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        _stop(threads)
    return _check(url, acknowledged)


def run_database_faults(server: Server, faults: int, seed: int = 0, writers: int = 4) -> dict[str, Any]:
    """Let a service write while its PostgreSQL server is killed and frozen (up to eight seconds) in turn.

    Returns:
        as `run`, and how often writes, and predictions during faults, were answered with each status.
    """
    chance = random.Random(seed)
    acknowledged: dict[str, set[str]] = {"placements": set(), "nodes": set()}
    predictions: Counter[int] = Counter()
    child, port = _start(server.url)
    _put_first_node(port)
    threads = [Writer(port, number, acknowledged) for number in range(writers)]
    for thread in threads:
        thread.start()
    for number in range(faults):
        _wait_for_writes(acknowledged, _count(acknowledged) + chance.randint(5, 30))
        if number % 2:
            server.send(signal.SIGSTOP)
        else:
            server.stop()
        until_s = time.monotonic() + chance.uniform(0.2, 8.0)
        while time.monotonic() < until_s:
            predictions[_predict(port)] += 1
            time.sleep(0.05)
        if number % 2:
            server.send(signal.SIGCONT)
        else:
            server.start()
    _wait_for_writes(acknowledged, _count(acknowledged) + 10)
    _stop(threads)
    child.terminate()
    child.join()
    statuses = sum((thread.statuses for thread in threads), Counter[int]())
    return _check(server.url, acknowledged) | {
        "statuses_of_writes": dict(statuses),
        "statuses_of_predictions_during_faults": dict(predictions),
    }


def _predict(port: int) -> int:
    body = {"device": "v100", "jobs": ["resnet18-cifar"]}
    try:
        return httpx.post(
            f"http://127.0.0.1:{port}/v1/predict", json=body, trust_env=False, timeout=LONG_S
        ).status_code
    except httpx.HTTPError:
        return 0


def _start(url: str) -> tuple[Any, int]:
    """A service in a process of its own; the process, and the port that it answers on."""
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
    port = _free_port()
    child = context.Process(target=serve, args=(port, url), daemon=True)
    child.start()
    _wait_ready(port)
    return child, port


def _put_first_node(port: int) -> None:
    node, address = (
        {"gpus": [{"device": "v100", "count": 8}]},
        f"http://127.0.0.1:{port}/v1/cluster/nodes/first",
    )
    httpx.put(address, json=node, trust_env=False, verify=False, timeout=LONG_S).raise_for_status()


def _stop(threads: list[Writer]) -> None:
    for thread in threads:
        thread.stopped = True
    for thread in threads:
        thread.join(LONG_S)


def _check(url: str, acknowledged: dict[str, set[str]]) -> dict[str, int]:
    from sqlalchemy import select, text

    from serving.store.tables import ClusterRow, NodeRow, PlacementRow, TenantRow

    store = Store(url)
    with store.read() as session:
        sound = session.execute(text("PRAGMA integrity_check")).scalar() if store.sqlite else "ok"
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
