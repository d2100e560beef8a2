"""Reads Slurm's jobs (`squeue --json`), and the requests in their comments.

JSON instead of the one-line text, because a job's comment is user input and could contain anything that looks
like a field.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiling.errors import InputError
from scheduling.clusters.importers.slurm import (
    gpus_of,
    host_names,
)
from serving.job_ranges import SPEC_LENGTH, check_range, parse_job

log = logging.getLogger("cotenant.slurm")

MARK = "cotenant:"
HELD = "cotenant:held"
PLACED = "cotenant:placed"
LEFT = "cotenant:left"
# Mark of a held job that waits for another one.
DEPENDENT = f"{HELD} dependency"
# While a job's request is replaced in Slurm, which takes two commands: the request, so that it is never lost.
CLEARED = f"{HELD} gres="
# A job in these states still has its GPUs and their memory, but nothing can be predicted for one beside it: it may
# continue at any time, or is about to end. Its GPUs are therefore no candidates.
PAUSED = ("COMPLETING", "SUSPENDED", "STOPPED", "RESIZING")


@dataclass(frozen=True, slots=True)
class Request:
    """A request made with `--comment=cotenant:SPEC,iterations=N`."""

    job: str
    iterations: float | None


def read_comment(comment: str) -> Request | None:
    """The request in a job's comment; None if it has no mark.

    Raises:
        InputError: the mark is followed by an invalid SPEC or invalid `iterations`.
    """
    if not comment.startswith(MARK):
        return None
    head, *parts = comment[len(MARK) :].strip().split(",")
    model, colon, first = head.rpartition(":") if "=" in head else (head, "", "")
    options = [part for part in ((first, *parts) if colon else parts) if part]
    given = [o.partition("=")[2] for o in options if o.partition("=")[0].strip() == "iterations"]
    rest = [o for o in options if o.partition("=")[0].strip() != "iterations"]
    spec = f"{model}:{','.join(rest)}" if rest else model
    # Check what the service would refuse, because one bad comment would otherwise block all other jobs.
    if len(spec) > SPEC_LENGTH:
        raise InputError("SPEC is too long", expected=f"at most {SPEC_LENGTH} characters", got=len(spec))
    parse_job(spec)
    if len(given) > 1:
        raise InputError("iterations is given twice", expected="one number above 0", got=given)
    try:
        iterations = check_range("iterations", float(given[0])) if given else None
    except ValueError:
        raise InputError("iterations is not a number", expected="a number above 0", got=given[0]) from None
    return Request(spec, iterations)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job of `squeue --json`, with the fields that the integration needs.

    Attributes:
        partition: those that it may run in, joined by commas.
        shards: requested shards; 1 if it requests a whole GPU.
        constrained: it limits its nodes itself, is in a reservation, requests several nodes or GPUs, or is part of a
            heterogeneous job, of which `scontrol update` changes all parts at once.
        whole: it requests a whole GPU instead of shards.
        gpu_type: requested type; empty for any.
        gres: its request for GPUs per node (`--gres`), which `scontrol update` can narrow down to a type; empty if
            it requests them otherwise.
        dependent: it waits for another job.
        never_starts: the job that it waits for failed.
        on_hold: its user or an operator holds it (`scontrol hold`).
        restarts: how often Slurm has requeued it.
        cleared: that request is gone from Slurm, because it was being narrowed down when the controller or Slurm
            stopped; it must be restored before the job starts.
    """

    id: int
    state: str
    comment: str
    admin_comment: str
    submitted_s: float
    started_s: float
    partition: str
    cpus: int
    shards: int
    constrained: bool
    pinned: bool
    whole: bool = False
    gpu_type: str = ""
    gres: str = ""
    dependent: bool = False
    never_starts: bool = False
    on_hold: bool = False
    restarts: int = 0
    cleared: bool = False
    holds: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> SlurmJob:
        state = raw.get("job_state", "")
        states = state if isinstance(state, list) else [state]
        nodes = (raw.get("job_resources") or {}).get("allocated_nodes")
        names = (
            [n.get("nodename", "") for n in nodes]
            if isinstance(nodes, list)
            else host_names(str(raw.get("nodes") or ""))
        )
        admin_comment = str(raw.get("admin_comment") or "")
        cleared = admin_comment.startswith(CLEARED) and not raw.get("tres_per_node")
        gres = admin_comment.removeprefix(CLEARED) if cleared else str(raw.get("tres_per_node") or "")
        asked = re.search(r"\b(gpu|shard)(?::(?!\d+(?:,|$))([^:,=]+))?(?:[:=](\d+))?(?:,|$)", gres)
        name, gpu_type, count = asked.groups() if asked else ("shard", "", "1")
        amount, whole = int(count or 1), name == "gpu"
        dependency = str(raw.get("dependency") or "")
        return cls(
            id=int(raw["job_id"]),
            state=_state([str(word) for word in states]),
            comment=str(raw.get("comment") or ""),
            admin_comment=admin_comment,
            submitted_s=number(raw.get("submit_time")),
            started_s=number(raw.get("start_time")),
            partition=str(raw.get("partition") or ""),
            cpus=int(number(raw.get("cpus"))),
            shards=1 if whole else amount,
            constrained=any(
                raw.get(key) for key in ("required_nodes", "excluded_nodes", "features", "resv_name")
            )
            or number(raw.get("node_count")) > 1
            or number(raw.get("het_job_id")) > 0
            or (whole and amount > 1),
            pinned=bool(raw.get("required_nodes")),
            whole=whole,
            gpu_type=gpu_type or "",
            gres=gres if asked else "",
            # Not its `state_reason`, which every change of the job resets.
            dependent="(unfulfilled)" in dependency,
            never_starts="(failed)" in dependency and "(unfulfilled)" not in dependency,
            on_hold=number(raw.get("priority"), unset=1) == 0,
            restarts=int(number(raw.get("restart_cnt"))),
            cleared=cleared,
            holds={n: used_gpus(d) for n, d in zip(names, raw.get("gres_detail") or [], strict=False)},
        )

    @property
    def has_gpus(self) -> bool:
        """Whether its GPUs are allocated to it."""
        return self.state == "RUNNING" or self.state in PAUSED

    @property
    def outdated(self) -> bool:
        """Whether its mark is from before Slurm requeued it."""
        told = re.search(r" restarts=(\d+)$", self.admin_comment)
        return self.admin_comment.startswith((PLACED, LEFT)) and self.restarts > int(told[1] if told else 0)


def _state(words: list[str]) -> str:
    """The state among a job's states and flags. A job whose node is still booting or runs its prolog has its GPUs."""
    paused = [word for word in PAUSED if word in words]
    if paused:
        return paused[0]
    return "RUNNING" if {"CONFIGURING", "SIGNALING"} & set(words) else next(iter(words), "")


def number(value: Any, unset: float = 0) -> float:
    """A number as written by any Slurm version; `unset` if there is none.

    It is plain, null, or (from 23.02) `{"set": true, "number": n}`.
    """
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return unset if value is None else float(value or 0)


def used_gpus(detail: str) -> dict[int, tuple[str, int]]:
    """`gres_detail` of one node: GPU index to (`gpu`, `shard` or `mps`, how many).

    >>> used_gpus("shard:2(IDX:1)")
    {1: ('shard', 2)}
    >>> used_gpus("shard:v100:1(0/4,1/4)")
    {1: ('shard', 1)}
    >>> used_gpus("mps:50(IDX:0)")
    {0: ('mps', 50)}
    """
    used: dict[int, tuple[str, int]] = {}
    for kind, count, inner in re.findall(r"\b(gpu|shard|mps)(?::[^:,()]+)*?:(\d+)\(([^)]*)\)", detail):
        if inner.startswith("IDX:"):
            indices = _indices(inner[4:])
            each = int(count) if len(indices) == 1 else 1
            used |= dict.fromkeys(indices, (kind, each))
        else:
            shares = [int(part.partition("/")[0]) for part in inner.split(",") if "/" in part]
            used |= {i: (kind, share) for i, share in enumerate(shares) if share}
    return used


def _indices(text: str) -> list[int]:
    indices: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if low.isdigit():
            indices += range(int(low), int(high if dash else low) + 1)
    return indices


def type_of(node: Mapping[str, Any], index: int) -> str | None:
    """Type of one GPU on a node with several types (slices of a card, say); None if all are equal."""
    types, _ = gpus_of(str(node.get("gres") or ""))
    return types[index] if len(set(types)) > 1 else None


def of_type(gres: str, kind: str) -> str:
    """A request for GPUs per node narrowed down to a type; other resources in it are kept.

    >>> of_type("gres:nvme:1,gres:gpu:1", "a100_3g.20gb")
    'gres:nvme:1,gres:gpu:a100_3g.20gb:1'
    """
    return re.sub(r"\b(gpu|shard)(?=[:=]\d+(?:,|$)|,|$)", rf"\1:{kind}", gres)


def iterations_left(job: SlurmJob, request: Request, now_s: float) -> float | None:
    """Iterations left according to the end predicted at placement; at least 1 % while it runs. All of them if it was
    requeued and Slurm has placed it since.

    None if it names no iterations: the service then assumes an hour's worth, however long the job has run.
    """
    told = re.search(r"\bfinish_s=([0-9.]+)", job.admin_comment)
    finish_s = float(told.group(1)) if told else 0.0
    if request.iterations is None or not finish_s or job.outdated:
        return request.iterations
    return request.iterations * max(0.01, 1 - max(0.0, now_s - job.started_s) / finish_s)
