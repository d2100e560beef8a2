"""A ring case in JSON: cluster, jobs and, if they are already running, their placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from profiling.errors import InputError
from scheduling.ring.fabric import SERVER_UPLINKS, Fabric, Placement
from scheduling.ring.model import RingCluster, RingJob, check_placement

_CLUSTER = tuple(f.name for f in fields(RingCluster))
_JOB = tuple(f.name for f in fields(RingJob) if f.name != "name")
_FABRIC = tuple(f.name for f in fields(Fabric))
_ARRIVAL = "arrival_s"


@dataclass(frozen=True, slots=True)
class RingCase:
    """A case: cluster, jobs and optional placement.

    Attributes:
        placement: by job name, server index → GPUs; None if a scheduler chooses it.
        arrivals_s: by job name, seconds; only jobs for which the case gives a time.
    """

    cluster: RingCluster
    jobs: Mapping[str, RingJob]
    placement: Mapping[str, Placement] | None
    fabric: Fabric = SERVER_UPLINKS
    arrivals_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, body: Any) -> RingCase:
        """Read `{"cluster": {...}, "jobs": {name: {...}}, "placement": {name: {server index: gpus}}}`.

        `cluster.fabric` (`servers_per_leaf`, `oversubscription`, `rails`) is optional; without it, links are
        server uplinks. A job's `arrival_s`, in seconds, is optional, too.

        Raises:
            InputError: a field is missing, unknown or out of range; a gang is not placed completely; a server
                overflows.
        """
        body = _object(body, "the case", ("cluster", "jobs"), ("placement",))
        raw = _object(body["cluster"], "cluster", _CLUSTER, ("fabric",))
        servers = raw["servers"]
        if not isinstance(servers, list) or not all(_is_count(count) for count in servers):
            raise InputError("cluster.servers", expected="a list of GPU counts, each 1 or more", got=servers)
        values = {key: _number(raw[key], f"cluster.{key}") for key in _CLUSTER if key != "servers"}
        cluster = RingCluster(servers=tuple(servers), **values)
        fabric = SERVER_UPLINKS
        if "fabric" in raw:
            given = _object(raw["fabric"], "cluster.fabric", (), _FABRIC)
            fabric = Fabric(
                None
                if given.get("servers_per_leaf") is None
                else _count(given["servers_per_leaf"], "cluster.fabric.servers_per_leaf"),
                _number(given.get("oversubscription", 1.0), "cluster.fabric.oversubscription"),
                _count(given.get("rails", 1), "cluster.fabric.rails"),
            )
        jobs, arrivals_s = {}, {}
        for name, item in _object(body["jobs"], "jobs").items():
            where = f"jobs.{name}"
            job = _object(item, where, _JOB, (_ARRIVAL,))
            _count(job["gpus"], f"{where}.gpus")
            values = {key: _number(job[key], f"{where}.{key}") for key in _JOB if key != "gpus"}
            jobs[name] = RingJob(name=name, gpus=job["gpus"], **values)
            if _ARRIVAL in job:
                arrivals_s[name] = arrival_s = _number(job[_ARRIVAL], f"{where}.{_ARRIVAL}")
                if not 0 <= arrival_s < float("inf"):
                    raise InputError(f"{where}.{_ARRIVAL}", expected="a number from 0", got=arrival_s)
        if not jobs:
            raise InputError("jobs is empty", expected="at least one job")
        placement = None
        if "placement" in body:
            placement = {
                name: _placement(item, f"placement.{name}")
                for name, item in _object(body["placement"], "placement").items()
            }
            check_placement(cluster, jobs, placement)
            if missing := [name for name in jobs if name not in placement]:
                raise InputError(
                    f"job {missing[0]!r} is not in placement", expected="server index → GPUs for every job"
                )
        return cls(cluster, jobs, placement, fabric, arrivals_s)


def _placement(raw: Any, where: str) -> Placement:
    placed: dict[int, int] = {}
    for key, gpus in _object(raw, where).items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 9):
            raise InputError(f"{where} names a server", expected='its index, such as "0"', got=repr(key))
        if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
            raise InputError(f"{where}.{key}", expected="a number of GPUs", got=repr(gpus))
        if gpus:
            placed[int(key)] = placed.get(int(key), 0) + gpus
    return placed


def _object(
    raw: Any, where: str, needed: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InputError(f"{where} is not an object", expected="a JSON object", got=type(raw).__name__)
    known = needed + optional
    for key in needed:
        if key not in raw:
            raise InputError(f"{where} lacks {key!r}", expected=", ".join(needed))
    for key in raw if known else ():
        if key not in known:
            raise InputError(f"{where} has an unknown field", expected=", ".join(known), got=repr(key))
    return raw


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(where, expected="a number", got=repr(value))
    try:
        return float(value)
    except OverflowError:
        raise InputError(where, expected="a number that fits in a float", got="a larger one") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000


def _count(value: Any, where: str) -> int:
    if not _is_count(value):
        raise InputError(where, expected="an integer from 1 to 1000000", got=repr(value))
    return int(value)
