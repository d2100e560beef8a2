"""A Python client generated from the OpenAPI document talks to the running service."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.live import serve
from tests.serving.table import TableSource


def test_generated_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), TableSource()
    )
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(app.openapi()))
    done = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(document), "--meta", "none",
         "--output-path", str(tmp_path / "cotenant_client"), "--fail-on-warning"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    client_module = importlib.import_module("cotenant_client")
    models = importlib.import_module("cotenant_client.models")
    predict = importlib.import_module("cotenant_client.api.predict.post_predict")
    place = importlib.import_module("cotenant_client.api.place.post_place")
    with (
        serve(app) as port,
        client_module.Client(f"http://127.0.0.1:{port}", httpx_args={"trust_env": False}) as client,
    ):
        answer = predict.sync(
            client=client, body=models.SetBody(device="v100", jobs=["resnet18-cifar", "resnet18-cifar"])
        )
        assert [m.slowdown.value for m in answer.members] == pytest.approx([1.4, 1.4])
        problem = predict.sync(client=client, body=models.SetBody(device="abacus", jobs=["resnet18-cifar"]))
        assert isinstance(problem, models.Problem)
        assert problem.status == 404
        node = models.NodeBody(name="a", gpus=[models.GpuBody(device="v100")])
        body = models.PlaceBody(job="resnet18-cifar", cluster=models.ClusterBody(nodes=[node]))
        decision = place.sync(client=client, body=body)
        assert decision.decision == "place"
