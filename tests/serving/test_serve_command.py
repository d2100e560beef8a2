"""`cotenant serve` and its tokens, as processes and as a command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer

from serving.cli import serve
from serving.config import ServiceConfig
from tests.commands import printed, refused
from tests.waiting import LONG_S, until


def nothing(folder: Path) -> Path:
    """A model folder without a model: the service starts but is not ready."""
    (folder / "none").mkdir()
    return folder / "none"


def test_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = f"sqlite:///{tmp_path}/s.db"
    token = printed(capsys, "serve", "token", "add", "ops", "--scope", "read", "--database", database).strip()
    assert token.startswith("ct_")
    listed = printed(capsys, "serve", "token", "list", "--json", "--database", database)
    assert token not in listed
    assert json.loads(listed)[0]["scopes"] == ["read"]
    printed(capsys, "serve", "token", "revoke", "ops", "--database", database)
    assert json.loads(printed(capsys, "serve", "token", "list", "--json", "--database", database))[0][
        "revoked_at"
    ]


def test_a_token_that_is_valid_no_more_gives_up_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--database", f"sqlite:///{tmp_path}/s.db")
    add = ("serve", "token", "add", "ops", "--scope")
    first = printed(capsys, *add, "admin", *options)
    assert "a token with that name exists" in refused(capsys, *add, "read", *options)
    printed(capsys, "serve", "token", "revoke", "ops", *options)
    assert printed(capsys, *add, "read", *options) != first
    (listed,) = json.loads(printed(capsys, "serve", "token", "list", "--json", *options))
    assert (listed["scopes"], listed["revoked_at"]) == (["read"], None)


def test_the_service_needs_linux(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "the service needs Linux: got darwin" in refused(capsys, "serve", "--port", "0")


@pytest.mark.parametrize("command", [("list",), ("revoke", "ops")])
def test_tokens_of_a_missing_database_are_an_error(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--database", f"sqlite:///{tmp_path}/nope/s.db")
    assert "no database at" in refused(capsys, "serve", "token", *command, *options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0", "--auth", "off"], "loopback"),
        (["--workers", "0"], "workers"),
        (["--workers", "100000"], "workers"),
        (["--trusted-proxy", "proxy.example"], "not an address"),
        (["--database", "nonsense.db"], "the file is sqlite:///nonsense.db"),
        (["--model", "nosuch"], "no such model"),
        (["--policy", "nosuch"], "unknown policy"),
        (["--policy", "os:system"], "is not a policy"),
    ],
)
def test_bad_settings_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "serve", *arguments)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "as it was for whoever goes on in this process"
    assert words in message
    assert message.count("\n") == 1


def test_a_missing_device_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COTENANT_DEVICES", str(tmp_path / "none.yaml"))
    monkeypatch.setattr("serving.cli.serve.run", lambda _: pytest.fail("it starts"))
    assert "none.yaml cannot be read" in refused(capsys, "serve")


def test_a_token_needs_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--scope", "read", "--database", f"sqlite:///{tmp_path}/s.db")
    message = refused(capsys, "serve", "token", "add", "", *options)
    assert "needs a name: expected the name of its user" in message


@pytest.mark.parametrize("workers", [1, 2])
def test_starts_serves_and_drains(tmp_path: Path, workers: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    # Of sockets only: any other warning would be a line that is not JSON, and differs between versions of Python.
    variables = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default:unclosed <socket:ResourceWarning"}
    with log.open("wb") as stream:
        service = subprocess.Popen(
            [sys.executable, "-m", "serving.cli.main", "serve", "--port", str(port), "--workers", str(workers),
             "--model", str(nothing(tmp_path)), "--database", f"sqlite:///{tmp_path}/s.db"],
            stderr=stream, env=os.environ | variables,
        )  # fmt: skip
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=LONG_S
    ) as client:

        def live() -> bool:
            assert service.poll() is None, log.read_text()
            try:
                return client.get("/v1/health/live").status_code == 200
            except httpx.HTTPError:
                return False

        until(live, "the service answers")
        assert client.put("/v1/cluster/nodes/a", json={"gpus": [{"device": "v100"}]}).status_code == 201
        assert client.get("/v1/health/ready").status_code == 503
        # Both processes count into one exposition.
        text = client.get("/metrics").text
        assert (
            'cotenant_request_duration_seconds_count{method="PUT",route="/v1/cluster/nodes/{name}",status="201"} 1.0'
            in text
        )
    service.send_signal(signal.SIGTERM)
    assert service.wait(LONG_S) == 0
    written = log.read_text()
    assert "unclosed <socket" not in written
    lines = [json.loads(line) for line in written.splitlines()]
    assert sum(line["event"] == "service stopped" for line in lines) == workers


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_parent_leaves_no_orphans(tmp_path: Path) -> None:
    import psutil

    log = tmp_path / "log"
    with log.open("wb") as stream:
        service = subprocess.Popen(
            [sys.executable, "-m", "serving.cli.main", "serve", "--port", "0", "--workers", "2",
             "--model", str(nothing(tmp_path)), "--database", f"sqlite:///{tmp_path}/s.db"],
            stderr=stream, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    until(lambda: log.read_text().count('"service starts"') == 2, "both workers start")
    children = psutil.Process(service.pid).children(recursive=True)
    assert len(children) >= 3, "two workers, and the tracker of shared resources"
    service.kill()
    service.wait()
    _, alive = psutil.wait_procs(children, LONG_S)
    assert alive == []


def test_a_worker_that_cannot_use_the_store_says_so_in_one_line_of_the_log(tmp_path: Path) -> None:
    """The parent of several starts one whenever another has died, also while the store is down."""
    (tmp_path / "s.db").write_bytes(b"x" * 4096)
    start = (
        "import multiprocessing, serving.app\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=serving.app.from_environment)\n"
        "    worker.start(); worker.join(); print(worker.exitcode)\n"
    )
    (tmp_path / "start.py").write_text(start)
    settings = ServiceConfig(workers=2, database_url=f"sqlite:///{tmp_path}/s.db").to_environment()
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "start.py")], capture_output=True, text=True, check=True,
        env=os.environ | settings | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert ended.stdout == "1\n", "not the status with which uvicorn would stop the others"
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert line["event"] == "worker cannot start"
    assert "s.db is not SQLite's, or is damaged" in line["error"]


def test_every_setting_is_in_the_table_of_settings() -> None:
    """The options of `serve`, and the environment variables that set them."""
    table = (Path(__file__).parents[2] / "docs" / "operations.md").read_text().partition("## Tokens")[0]
    for option in typer.main.get_command(serve.app).params:
        if isinstance(option.envvar, str):  # the others are Typer's own
            assert f"`{option.opts[0]}" in table, option.opts[0]
            assert f"`{option.envvar}`" in table, option.envvar
