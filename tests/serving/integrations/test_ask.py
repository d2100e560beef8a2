"""The schedulers' client: TLS, tokens, and requests that cannot be sent."""

from __future__ import annotations

import math
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from profiling.errors import InputError
from serving.integrations.ask import ServiceClient


class Waits(BaseHTTPRequestHandler):
    """Tells every job to wait."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"decision": "wait", "ranked": []}')


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a service behind TLS, and the certificate of the site's own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *made.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = HTTPServer(("127.0.0.1", 0), Waits)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", certificate
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_authority_of_the_site(proxy: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, certificate = proxy
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert ServiceClient(url).place("resnet18-cifar", 1, {"nodes": []}) is None
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert ServiceClient(url).place("resnet18-cifar", 1, {"nodes": []}) == {"decision": "wait", "ranked": []}


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "authority.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(InputError, match="the certificates of SSL_CERT_FILE cannot be read"):
        ServiceClient("https://cotenant.example.com")


def test_white_space_around_a_token_does_not_count() -> None:
    """A Secret made from a file ends with a line break, which no header may have."""
    assert ServiceClient(token="abc\n").token == "abc"


@pytest.mark.parametrize("token", ["a\nb", "\u00e9", "a\0"])
def test_an_invalid_token_is_not_shown(token: str) -> None:
    with pytest.raises(InputError, match=r"^the token is invalid: expected printable ASCII characters\.$"):
        ServiceClient(token=token)


@pytest.mark.parametrize(("job", "iterations"), [("resnet18-cifar", math.inf), ("\udcff", 1.0)])
def test_a_request_that_is_not_json_has_no_answer(job: str, iterations: float) -> None:
    """The scheduler goes on without one."""
    assert ServiceClient().place(job, iterations, {"nodes": []}) is None
