"""`deploy/kubernetes/sync.sh` against a running service, with a stand-in for kubectl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.app import create_app
from serving.config import ServiceConfig
from tests.scheduling.clusters.test_pod_tenants import node, train
from tests.serving.live import serve
from tests.serving.table import TableSource

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "sync.sh"


def sync(folder: Path, port: int, *items: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "items.json").write_text(json.dumps({"kind": "List", "items": items}) if items else "")
    for name, command in {
        "kubectl": f'[ "$*" = "get nodes,pods -A -o json" ] && cat {folder}/items.json',
        "cotenant": f"exec {sys.executable} -c 'from serving.cli.main import main; main()' \"$@\"",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "COTENANT_SERVICE": f"http://127.0.0.1:{port}",
    }
    return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_running_pods_become_tenants_and_leave_again(tmp_path: Path) -> None:
    nodes = [node("a", gpu="1"), node("b", gpu="1")]
    args = {"Pod": train("new", where=None, iterations="1000"), "NodeNames": ["a", "b"]}
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db"), TableSource())) as port:
        service = f"http://127.0.0.1:{port}"

        def best() -> str:
            answer = httpx.post(f"{service}/extender/prioritize", json=args).json()
            return "".join(p["Host"] for p in answer if p["Score"] == 10)

        for pods, expected in (
            ([], "ab"),
            ([train("1", where="a", iterations="100000")], "b"),
            ([train("2", where="b")], "a"),
            ([], "ab"),
        ):
            done = sync(tmp_path, port, *nodes, *pods)
            assert done.returncode == 0, done.stderr + done.stdout
            assert best() == expected
        failed = sync(tmp_path, port)
        assert failed.returncode != 0
        assert len(httpx.get(f"{service}/v1/cluster").json()["cluster"]["nodes"]) == 2, "kept as it was"
