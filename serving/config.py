"""`ServiceConfig`: everything an operator can set, validated when built."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from profiling.checked_fields import check_range
from profiling.errors import InputError
from profiling.names import one_of
from scheduling.core.limits import CLUSTER_GPUS
from serving.hosts import Hosts, Proxies

#: Worker processes are new interpreters; the settings reach them through this variable.
ENVIRONMENT_VARIABLE = "COTENANT_SERVICE_CONFIG"
AUTH_MODES = ("auto", "on", "off")
# Numbers that are no limits, and the option of each.
_OPTIONS = {
    "port": "--port",
    "workers": "--workers",
    "poll_s": "--poll",
    "request_timeout_s": "--timeout",
    "rate_per_s": "--rate",
    "drain_s": "--drain",
}


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of one service.

    Attributes:
        host, port: address to listen on.
        workers: number of processes; each has its own predictor.
        model: `default`, a model directory, `models:/NAME@ALIAS` or `models:/NAME/VERSION` of an MLflow
            registry, or `registry:NAME`, short for `models:/NAME@champion`; an alias is followed when it
            moves.
        policy: chooses the GPU of a placement: a name in `scheduling.policies` or `module:POLICY`; None for
            the ranking of `cotenant place`.
        tracking_uri: MLflow tracking and registry address; None for MLflow's own setting.
        database_url: SQLAlchemy address of the store.
        auth: `auto` requires bearer tokens except on a loopback address without `trusted_proxies` and
            `allowed_hosts`; `on` always; `off` never, loopback only.
        poll_s: seconds between checks of the registry or the model directory.
        request_timeout_s: longest that a request may take; callers can ask for less with `X-Timeout-S`.
        body_bytes, upload_bytes: largest JSON body, largest uploaded file.
        graph_operators: most operators in a registered graph.
        batch_sets: most co-location sets in a batch, and jobs in a queue.
        set_jobs: most jobs in a co-location set.
        cluster_gpus: most GPUs in a cluster.
        requests_in_flight: concurrent requests in one process; more are refused with 503.
        open_in_flight: the same for routes without a token, counted separately.
        buffer_bytes: total size of request bodies in memory in one process; also of answers that wait to be read.
        header_bytes, header_s: size of a request's head and seconds to send it.
        body_s: seconds to send a request's body.
        idle_s: seconds that a connection may be idle between requests.
        connections, connections_per_address: open connections of one process, in total and from one address.
        queue_delay_s: target for the longest wait of an accepted request for the event loop; beyond it,
            requests are shed.
        shed_delay_s: delay of the response to a shed request, so that retries do not add to the load.
        spare_ratio: share of a core for new workloads while requests are shed.
        queue_length, queue_wait_s: how many calls may wait for a lane (new workloads, decisions, large
            bodies), and how long.
        new_workloads: most new workloads in one request.
        capture_processes, capture_s, capture_memory_bytes: number of capture processes, and time and memory
            limits of one capture.
        stuck_s: a lane whose call runs longer is stuck; the service is then not ready, and the process exits
            after twice that time.
        model_jobs: number of distinct jobs that a loaded model may remember before a fresh copy replaces it.
        rate_per_s: requests per second and caller in one process; 0 for no limit.
        rate_burst: requests that a caller may send in a burst.
        parse_s, parse_memory_bytes: limits on processor time and address space of the process that
            parses an upload.
        token_check_s, token_grace_s: longest lookup of a token, and how long a token stays valid while the
            store does not respond.
        retention_s: how long ended, expired and waiting placements, observations, events and audit entries
            are kept.
        stale_s: a confirmed job is shown as stale if neither it nor its node has reported for this long.
        allowed_hosts: names accepted in the Host header besides addresses, loopback names and `host`.
        trusted_proxies: addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are trusted.
        reservation_s: how long a decided placement holds its GPU without confirmation.
        drain_s: how long to wait for running requests after SIGTERM.
        log_level: `debug`, `info`, `warning` or `error`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    model: str = "default"
    policy: str | None = None
    tracking_uri: str | None = None
    database_url: str = "sqlite:///cotenant.db"
    auth: str = "auto"
    poll_s: float = 15.0
    request_timeout_s: float = 30.0
    body_bytes: int = 16 * 2**20
    upload_bytes: int = 256 * 2**20
    graph_operators: int = 200_000
    batch_sets: int = 10_000
    set_jobs: int = 16
    cluster_gpus: int = CLUSTER_GPUS
    requests_in_flight: int = 512
    open_in_flight: int = 32
    buffer_bytes: int = 512 * 2**20
    header_bytes: int = 32 * 2**10
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 60.0
    connections: int = 4096
    connections_per_address: int = 2048
    queue_delay_s: float = 0.05
    shed_delay_s: float = 0.5
    spare_ratio: float = 0.03
    queue_length: int = 64
    queue_wait_s: float = 5.0
    new_workloads: int = 256
    capture_processes: int = 1
    capture_s: float = 60.0
    capture_memory_bytes: int = 3 * 2**29
    stuck_s: float = 30.0
    model_jobs: int = 50_000
    rate_per_s: float = 0.0
    rate_burst: int = 100
    parse_s: float = 60.0
    parse_memory_bytes: int = 2**30
    token_check_s: float = 1.0
    token_grace_s: float = 300.0
    retention_s: float = 90 * 86_400.0
    stale_s: float = 900.0
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    reservation_s: float = 600.0
    drain_s: float = 30.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        if self.auth not in AUTH_MODES:
            raise InputError("unknown auth mode", expected="one of " + ", ".join(AUTH_MODES), got=self.auth)
        if self.auth == "off" and not self.on_loopback:
            raise InputError(
                "a service without tokens may only listen on a loopback address",
                expected="--host 127.0.0.1, or --auth on",
                got=f"--host {self.host} --auth off",
            )
        Proxies(self.trusted_proxies)
        Hosts(self.host, self.on_loopback, self.allowed_hosts)
        check_range(self, lambda value: 0 <= value <= 65535, "0 to 65535", "port")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InputError("unknown log level", expected="debug, info, warning, error", got=self.log_level)
        check_range(
            self, lambda value: 1 <= value <= 256, "an integer from 1 to 256", "workers", "capture_processes"
        )
        counts = ("body_bytes", "upload_bytes", "graph_operators", "batch_sets", "set_jobs",
                  "cluster_gpus", "requests_in_flight", "open_in_flight", "buffer_bytes", "header_bytes", "connections",
                  "connections_per_address", "queue_length", "new_workloads", "capture_memory_bytes",
                  "model_jobs", "rate_burst", "parse_memory_bytes")  # fmt: skip
        check_range(self, lambda value: value >= 1, "an integer from 1", *counts)
        seconds = ("poll_s", "request_timeout_s", "parse_s", "reservation_s", "drain_s", "header_s", "body_s",
                   "idle_s", "queue_delay_s", "shed_delay_s", "queue_wait_s", "capture_s", "stuck_s", "token_check_s",
                   "token_grace_s", "retention_s", "stale_s")  # fmt: skip
        check_range(self, lambda value: 0 < value < float("inf"), "seconds above 0", *seconds)
        check_range(self, lambda value: 0 < value <= 1, "above 0, at most 1", "spare_ratio")
        check_range(self, lambda value: value >= 0, "a number from 0", "rate_per_s")

    def with_limits(self, pairs: list[str]) -> ServiceConfig:
        """A copy of these settings with `NAME=NUMBER` applied. Raises `InputError`."""
        numbers = limit_types()
        values: dict[str, Any] = {}
        for pair in pairs:
            name, _, text = pair.partition("=")
            if name not in numbers:
                hint = f"{_OPTIONS[name]} sets it" if name in _OPTIONS else "docs/operations.md lists all"
                raise InputError("unknown limit", expected=one_of(name, sorted(numbers)), got=name, hint=hint)
            try:
                values[name] = int(text) if numbers[name] == "int" else float(text)
            except ValueError:
                raise InputError(f"limit {name} is not a number", expected="NAME=NUMBER", got=pair) from None
        return replace(self, **values)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def tokens_required(self) -> bool:
        # A proxy on this machine takes requests from elsewhere to the loopback address.
        is_local = self.on_loopback and not self.trusted_proxies and not self.allowed_hosts
        return self.auth == "on" or (self.auth == "auto" and not is_local)

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries these settings to worker processes."""
        return {ENVIRONMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ServiceConfig:
        """Read the settings written by `to_environment`; the defaults if there are none."""
        text = os.environ.get(ENVIRONMENT_VARIABLE)
        values: dict[str, Any] = json.loads(text) if text else {}
        for name in ("allowed_hosts", "trusted_proxies"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def limit_types() -> dict[str, str]:
    """Names of the limits (`--limit`), each with its type: `int` or `float`."""
    return {
        f.name: str(f.type)
        for f in fields(ServiceConfig)
        if f.type in ("int", "float") and f.name not in _OPTIONS
    }
