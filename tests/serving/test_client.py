"""`cotenant-client`: its OpenAPI document is current, its wheel builds, and it talks to a running service."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clients.openapi import document
from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.live import serve
from tests.serving.table import TableSource

SOURCES = Path(__file__).parents[2] / "clients" / "python"


def test_openapi_document_is_current() -> None:
    assert json.loads((SOURCES / "openapi.json").read_text()) == document(), "run `make client`"


def test_wheel_talks_to_the_service(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=SOURCES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (licence,) = (tmp_path / "site").glob("*.dist-info/licenses/LICENSE")
    assert licence.read_text() == (SOURCES.parents[1] / "LICENSE").read_text()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    client_module = importlib.import_module("cotenant_client")
    models = importlib.import_module("cotenant_client.models")
    predict = importlib.import_module("cotenant_client.api.predict.post_predict")
    place = importlib.import_module("cotenant_client.api.place.post_place")
    metrics = importlib.import_module("cotenant_client.api.health.get_metrics")
    app = create_app(
        ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error"), TableSource()
    )
    examples = re.findall(r"```python\n(.*?)```", (SOURCES / "README.md").read_text(), re.DOTALL)
    with (
        serve(app) as port,
        client_module.Client(f"http://127.0.0.1:{port}", httpx_args={"trust_env": False}) as client,
    ):
        answer = predict.sync(
            client=client, body=models.SetBody(device="v100", jobs=["resnet18-cifar", "resnet18-cifar"])
        )
        assert [m.slowdown.value for m in answer.members] == pytest.approx([1.4, 1.4])
        predicts, trains = (example.replace("127.0.0.1:8080", f"127.0.0.1:{port}") for example in examples)
        exec(predicts, {})
        assert capsys.readouterr().out.count("resnet18-cifar") == 1
        trained: list[int] = []
        exec(trains, {"batches": range(3), "train": trained.append})
        assert trained == [0, 1, 2]
        assert "no such job runs on the stored cluster" in caplog.text
        problem = predict.sync(client=client, body=models.SetBody(device="abacus", jobs=["resnet18-cifar"]))
        assert isinstance(problem, models.Problem)
        assert problem.status == 404
        node = models.NodeBody(name="a", gpus=[models.GpuBody(device="v100")])
        body = models.PlaceBody(job="resnet18-cifar", cluster=models.ClusterBody(nodes=[node]))
        decision = place.sync(client=client, body=body)
        assert decision.decision == "place"
        assert "cotenant_placements_total" in metrics.sync(client=client)
