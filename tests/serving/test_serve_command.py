"""`cotenant serve` and its tokens, as processes and as a command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from serving.cli.main import main


def nothing(folder: Path) -> Path:
    """A model folder without a model: the service starts, and is not ready."""
    (folder / "none").mkdir()
    return folder / "none"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code in (0, None)
    return capsys.readouterr().out


def test_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = f"sqlite:///{tmp_path}/s.db"
    token = run(capsys, "serve", "token", "add", "ops", "--scope", "read", "--database", database).strip()
    assert token.startswith("ct_")
    listed = run(capsys, "serve", "token", "list", "--json", "--database", database)
    assert token not in listed
    assert json.loads(listed)[0]["scopes"] == ["read"]
    run(capsys, "serve", "token", "revoke", "ops", "--database", database)
    assert json.loads(run(capsys, "serve", "token", "list", "--json", "--database", database))[0][
        "revoked_at"
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0", "--auth", "off"], "loopback"),
        (["--workers", "0"], "workers"),
        (["--database", "nonsense"], "sqlite:///FILE"),
        (["--model", "nosuch"], "no such model"),
        (["--policy", "nosuch"], "unknown policy"),
    ],
)
def test_bad_settings_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *arguments])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_starts_answers_and_drains(tmp_path: Path, workers: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        service = subprocess.Popen(
            [sys.executable, "-m", "serving.cli.main", "serve", "--port", str(port), "--workers", str(workers),
             "--model", str(nothing(tmp_path)), "--database", f"sqlite:///{tmp_path}/s.db"],
            stderr=stream, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=30
    ) as client:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert client.get("/v1/health/live").status_code == 200
                break
            except httpx.HTTPError:
                assert service.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert client.put("/v1/cluster/nodes/a", json={"gpus": [{"device": "v100"}]}).status_code == 201
        assert client.get("/v1/health/ready").status_code == 503
        # Both processes count into one exposition.
        text = client.get("/metrics").text
        assert (
            'cotenant_request_duration_seconds_count{method="PUT",route="/v1/cluster/nodes/{name}",status="201"} 1.0'
            in text
        )
    service.send_signal(signal.SIGTERM)
    assert service.wait(30) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line["event"] == "service stopped" for line in lines) == workers


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_parent_leaves_no_orphans(tmp_path: Path) -> None:
    import psutil

    service = subprocess.Popen(
        [sys.executable, "-m", "serving.cli.main", "serve", "--port", "0", "--workers", "2",
         "--model", str(nothing(tmp_path)), "--database", f"sqlite:///{tmp_path}/s.db"],
        stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    parent, deadline = psutil.Process(service.pid), time.monotonic() + 60
    while len(parent.children(recursive=True)) < 3:  # two workers, and the tracker of shared resources
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)
    children = parent.children(recursive=True)
    service.kill()
    service.wait()
    _, alive = psutil.wait_procs(children, 30)
    assert alive == []
