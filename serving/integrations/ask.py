"""A client of the service for schedulers, which go on without an answer if there is no usable one."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import httpx

from profiling.errors import CotenantError, InfeasibleError, InputError, UnavailableError, UnknownNameError
from profiling.workload import REGISTERED
from serving.integrations.total_timeout import TotalTimeout

log = logging.getLogger("cotenant.integrations")


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """A client of the service.

    Attributes:
        url: base URL, such as `http://127.0.0.1:8080`. Over https the authorities of `SSL_CERT_FILE` or `SSL_CERT_DIR`
            are trusted, without either those of `certifi`.
        token: bearer token with scope `place`, or `admin` for `put_cluster`; None if the service requires none. White
            space around it, such as a file's last line break, does not count.
        timeout_s: seconds after which to give up, from looking up its host's name to the last byte of the answer.
    """

    url: str = "http://127.0.0.1:8080"
    token: str | None = None
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        try:
            usable = httpx.URL(self.url).scheme in ("http", "https") and bool(httpx.URL(self.url).host)
        except httpx.InvalidURL:
            usable = False
        if not usable:
            raise InputError(
                "the address of the service is invalid",
                expected="http://HOST:PORT or https://...",
                got=self.url,
            )
        _authorities()
        if self.token is not None:
            token = self.token.strip()
            if not (token.isascii() and token.isprintable()):  # the message does not show it
                raise InputError("the token is invalid", expected="printable ASCII characters")
            object.__setattr__(self, "token", token)

    def place(self, job: str, iterations: float | None, cluster: dict[str, Any]) -> dict[str, Any] | None:
        """The response of `POST /v1/place`; None if there is no usable one.

        The service may be down or busy, or return an error or something malformed. If it says that the job fits on no
        GPU of the cluster, `decision` is `infeasible`, as in a queue.
        """
        body: dict[str, Any] = {"job": job, "cluster": cluster}
        if iterations is not None:
            body["iterations"] = iterations
        status, answer = self._send("POST", "/v1/place", body)
        if status == InfeasibleError.status and _is(InfeasibleError, answer):
            return {"decision": "infeasible", "ranked": [], "reasons": [str(answer.get("detail", ""))]}
        answer = _good(status, answer)
        return answer if _usable(answer) else None

    def cluster(self) -> dict[str, Any] | None:
        """The stored `cluster` and its `version`; None if the service does not say."""
        answer = self._answer("GET", "/v1/cluster")
        return answer if isinstance(answer, dict) and {"cluster", "version"} <= answer.keys() else None

    def put_cluster(self, cluster: dict[str, Any], valid_s: float | None = None) -> int | None:
        """Replace the stored cluster and its tenants; returns its version, None if the service did not.

        Args:
            valid_s: seconds within which it will be stored again; None if perhaps never.
        """
        query = "replace_tenants=true" + ("" if valid_s is None else f"&valid_s={valid_s:g}")
        answer = self._answer("PUT", f"/v1/cluster?{query}", cluster)
        return answer.get("version") if isinstance(answer, dict) else None

    def step_times_s(self, device: str, sharing: str, jobs: Sequence[Any]) -> list[float] | None:
        """Predicted seconds per step of jobs that run together; None if the service cannot say.

        Raises:
            UnavailableError: it does not respond.
        """
        status, answer = self._send(
            "POST", "/v1/predict", {"device": device, "sharing": sharing, "jobs": list(jobs)}
        )
        if status is None:
            raise UnavailableError("the service does not respond", got=self.url)
        try:
            steps = [float(member["step_time_s"]["value"]) for member in answer["members"]]
        except (KeyError, TypeError, ValueError):
            log.warning("the service returned %d: %.300s", status, answer)
            return None
        return steps if len(steps) == len(jobs) and min(steps) > 0 else None

    def lacks(self, graph: str) -> bool:
        """Whether the service says that `graph:HASH` is not registered; False if it does not respond."""
        status, answer = self._send("GET", f"/v1/workloads/{quote(graph.removeprefix(REGISTERED), safe='')}")
        # A proxy's own 404 says nothing about the graph.
        return status == 404 and _is(UnknownNameError, answer)

    def _answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of the answer; None, with a warning, if there is none or it is not of status 200."""
        return _good(*self._send(method, path, body))

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int | None, Any]:
        """Status and JSON of the answer, its text if it is no JSON; a status of None if there is no answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            transport = TotalTimeout(self.timeout_s, verify=_authorities())
            with httpx.Client(transport=transport, timeout=self.timeout_s, trust_env=False) as client:
                response = client.request(method, self.url.rstrip("/") + path, json=body, headers=headers)
        except httpx.HTTPError as error:
            log.warning("the service does not respond: %s", error)
            return None, None
        except ValueError as error:  # infinite iterations, say
            log.warning("the request is not JSON: %s", error)
            return None, None
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text


def _authorities() -> ssl.SSLContext:
    """Those that sign the service's certificate. Raises `InputError`."""
    paths = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        return _context(paths)
    except OSError as error:
        raise InputError(
            "the certificates of SSL_CERT_FILE cannot be read",
            expected="a PEM file",
            got=f"{paths[0]}: {error}",
        ) from None


@lru_cache(maxsize=1)  # reading them takes longer than asking the service
def _context(_paths: tuple[str | None, str | None]) -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _good(status: int | None, answer: Any) -> Any:
    """The answer if its status is 200; else None, with a warning unless there was no answer at all."""
    if status not in (None, 200):
        log.warning("the service returned %d: %.300s", status, answer)
    return answer if status == 200 else None


def _is(error: type[CotenantError], answer: Any) -> bool:
    """Whether an answer is the problem of this error: a proxy may send the same status."""
    return isinstance(answer, dict) and answer.get("type") == error.urn()


def _usable(answer: Any) -> bool:
    """Whether it is a response of `POST /v1/place` that names a GPU, or tells to wait."""
    if not isinstance(answer, dict) or answer.get("decision") not in ("place", "wait"):
        return False
    ranked = answer.get("ranked")
    if not isinstance(ranked, list) or (answer["decision"] == "place" and not ranked):
        return False
    return all(
        isinstance(gpu, dict)
        and isinstance(gpu.get("node"), str)
        and isinstance(gpu.get("gpu"), str)
        and isinstance(gpu.get("finish_s"), int | float)
        for gpu in ranked[:1]
    )
