"""A client of the service for other schedulers. It logs what goes wrong instead of raising."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import httpx

from profiling.errors import InputError

log = logging.getLogger("cotenant.integrations")


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """A client of the service.

    Attributes:
        url: base URL, such as `http://127.0.0.1:8080`.
        token: bearer token with scope `place`, or `admin` for `put_cluster`; None if the service requires none.
        timeout_s: seconds after which to give up.
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

    def place(self, job: str, iterations: float | None, cluster: dict[str, Any]) -> dict[str, Any] | None:
        """The response of `POST /v1/place`; None if there is no usable one.

        The service may be down or busy, or return an error or something malformed.
        """
        body: dict[str, Any] = {"job": job, "cluster": cluster}
        if iterations is not None:
            body["iterations"] = iterations
        answer = self._answer("POST", "/v1/place", body)
        return answer if _usable(answer) else None

    def put_cluster(self, cluster: dict[str, Any]) -> bool:
        """Replace the stored cluster and its tenants; returns whether the service did."""
        return self._answer("PUT", "/v1/cluster?replace_tenants=true", cluster) is not None

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        address = self.url.rstrip("/") + path
        try:
            response = httpx.request(
                method, address, json=body, headers=headers, timeout=self.timeout_s, trust_env=False
            )
            answer = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError) as error:
            log.warning("the service does not respond: %s", error)
            return None
        if answer is None:
            log.warning("the service returned %d: %s", response.status_code, response.text[:300])
        return answer


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
