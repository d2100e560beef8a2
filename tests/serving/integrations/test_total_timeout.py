"""Servers that never finish an answer: one byte at a time, each well within what a client waits for the next."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client as kubernetes_client

from profiling.errors import UnavailableError
from serving.integrations import api_server
from serving.integrations.api_server import ApiServer
from serving.integrations.ask import ServiceClient
from serving.integrations.total_timeout import TotalTimeout
from tests.waiting import LONG_S, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
TRICKLES = {
    "status line": b"",
    "headers": HEAD,
    "body": HEAD + b"content-length: 100000\r\n\r\n{",
    "body without a length": HEAD + b"connection: close\r\n\r\n{",
}


@contextmanager
def trickling(first: bytes, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that sends `first` and then a byte every 50 ms."""
    stop = threading.Event()

    def answer(plain: socket.socket) -> None:
        try:
            with context.wrap_socket(plain, server_side=True) if context else plain as connection:
                connection.recv(65536)
                connection.sendall(first)
                while not stop.wait(0.05):
                    connection.sendall(b"x")
        except OSError:
            pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("part", TRICKLES)
def test_the_services_client_gives_up(part: str) -> None:
    with trickling(TRICKLES[part]) as port:
        started = time.monotonic()
        assert ServiceClient(f"http://127.0.0.1:{port}", timeout_s=0.5).place("a", 1, {"nodes": []}) is None
        assert 0.4 < time.monotonic() - started < 5


@pytest.mark.parametrize("part", TRICKLES)
def test_the_list_of_pods_is_given_up(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_PAGE_S", 0.5)
    with trickling(TRICKLES[part]) as port:
        configuration = kubernetes_client.Configuration(host=f"http://127.0.0.1:{port}")
        api = ApiServer(kubernetes_client.CoreV1Api(kubernetes_client.ApiClient(configuration)))
        started = time.monotonic()
        with pytest.raises(UnavailableError, match="the API server did not answer"):
            api.pods()
        assert 0.4 < time.monotonic() - started < 5


def test_over_tls(tmp_path: Path) -> None:
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem")]
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    try:
        subprocess.run(["openssl", *made.split(), *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with (
        trickling(TRICKLES["headers"], context) as port,
        httpx.Client(transport=TotalTimeout(0.5, verify=False), trust_env=False) as client,
        pytest.raises(httpx.ReadTimeout, match=r"no complete answer within 0\.5 s"),
    ):
        client.get(f"https://127.0.0.1:{port}")


def test_a_lookup_of_a_name_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    end, real = threading.Event(), socket.getaddrinfo

    def hang(*arguments: Any, **options: Any) -> Any:
        end.wait(30)
        return real(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    before, started = threading.active_count(), time.monotonic()
    with trickling(TRICKLES["headers"]) as port:
        assert ServiceClient(f"http://localhost:{port}", timeout_s=0.3).cluster() is None
        assert time.monotonic() - started < 5
        end.set()
        until(lambda: threading.active_count() <= before + 2, "the thread ends with the look-up")


def test_no_timer_is_left() -> None:
    before = threading.active_count()
    client = ServiceClient("http://127.0.0.1:1", timeout_s=600)
    for _ in range(3):
        assert client.cluster() is None
    until(lambda: threading.active_count() <= before, "the timers end")


def test_ctrl_c_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[httpx.Response]):
        def result(self, timeout: float | None = None) -> httpx.Response:
            until(lambda: asked, "the server is asked")
            raise KeyboardInterrupt

    asked: list[bytes] = []
    monkeypatch.setattr("serving.integrations.total_timeout.Future", Interrupted)
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> bytes:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(LONG_S)
                asked.append(connection.recv(65536))
                return connection.recv(65536)

        told, started = pool.submit(serve), time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ServiceClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=60).cluster()
        until(told.done, "the server learns that nobody waits any more")
        assert told.result() == b""
        assert time.monotonic() - started < 40
    until(lambda: threading.active_count() <= before, "its threads end")
