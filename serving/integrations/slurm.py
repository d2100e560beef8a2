"""Slurm integration: releases jobs held by `job_submit.lua` to the node that the service ranks first.

A held job has a begin time in the near future, which passes by itself. So jobs run even if nothing here works: when
the service or this controller is down, Slurm schedules them as it would otherwise.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiling.errors import CotenantError
from profiling.workload import REGISTERED
from profiling.zoo import zoo_names
from serving.integrations.ask import ServiceClient
from serving.integrations.settings import check_settings
from serving.integrations.slurm_cluster import cluster_for, has_unreported_shards
from serving.integrations.slurm_state import (
    CLEARED,
    DEPENDENT,
    HELD,
    LEFT,
    PLACED,
    SlurmJob,
    of_type,
    read_comment,
    type_of,
)
from serving.integrations.slurm_upload import SlurmUpload
from serving.job_ranges import parse_job

log = logging.getLogger("cotenant.slurm")

TYPE = "TresPerNode"
NOT_UNDERSTOOD = f"{LEFT} comment is not understood"
NO_ANSWER = f"{LEFT} no answer"
# Longest wait of a job before the service is asked again.
RECHECK_S = 60.0
# After this long in the queue, a job takes the best available GPU, even if waiting is predicted to be better.
LONGEST_WAIT_S = 600.0
# After a restart of slurmctld, its nodes take seconds to report their shards.
_REPORT_S = 5.0
# A job that has not started this long after it was assigned a node may go to any other.
PIN_S = 60.0
# Seconds between asking again about a waiting job and its hold expiring by itself.
MARGIN_S = 10
# Hold of a requeued job until the service is asked again, as in `job_submit.lua`.
HOLD_S = 20
# Hold of a job without its request for GPUs: time to put it back if Slurm or this controller fails meanwhile.
CLEARED_S = 300


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """Settings of the controller.

    Attributes:
        period_s: seconds between checks of the queue.
        devices: GPU type in Slurm to catalogue name, for types that are not recognised.
        upload: whether to keep the service's stored cluster in step, too.
    """

    period_s: float = 1.0
    devices: Mapping[str, str] = field(default_factory=dict)
    upload: bool = False

    def __post_init__(self) -> None:
        check_settings(self, "period_s")


class Slurm:
    """Slurm through its command-line tools; `SLURM_CONF` selects the cluster."""

    def jobs(self) -> list[SlurmJob]:
        return [SlurmJob.read(raw) for raw in _json("squeue")["jobs"]]

    def nodes(self) -> list[Mapping[str, Any]]:
        # From Slurm 23.02 on, sinfo groups equal nodes, and scontrol, which cannot write JSON before, lists each.
        body = _json("sinfo")
        return list((body if "nodes" in body else _json("scontrol", "show", "nodes"))["nodes"])

    def update(self, job: SlurmJob, changes: Mapping[str, str]) -> None:
        """Apply all of `changes` in one `scontrol update`, or none. Raises `subprocess.SubprocessError`.

        `TresPerNode`, the GPU type, is the exception: Slurm accepts it only over an empty value, which takes a command
        of its own. If the type is refused, the rest is applied with the request as it was; if that is refused too,
        the request is put back. Without it, the job would start without a GPU.
        """
        if TYPE not in changes:
            _update(job.id, changes)
            return
        cleared = {TYPE: "", "StartTime": f"now+{CLEARED_S}", "AdminComment": f"{CLEARED}{job.gres}"}
        _update(job.id, cleared)
        as_before = {TYPE: job.gres}
        try:
            _update(job.id, changes)
        except subprocess.CalledProcessError as error:
            log.warning("job %d: GPU type left unset: %s", job.id, _told(error))
            try:
                _update(job.id, {**changes, **as_before})
            except subprocess.CalledProcessError:
                _update(job.id, as_before | {"StartTime": f"now+{MARGIN_S}", "AdminComment": HELD})
                raise


def decide(
    job: SlurmJob, jobs: list[SlurmJob], nodes: list[Mapping[str, Any]], service: ServiceClient, config: SlurmConfig, now_s: float
) -> dict[str, str]:  # fmt: skip
    """The changes to make to a held job; without an answer from the service, only its begin time and mark."""
    free = {"StartTime": "now"}
    try:
        request = read_comment(job.comment)
    except CotenantError as error:
        log.warning("job %d: %s", job.id, error)
        return free | {"AdminComment": NOT_UNDERSTOOD}
    if request is None or job.constrained:
        return free | {"AdminComment": f"{LEFT} names its own nodes"}
    if job.never_starts:
        return free | {"AdminComment": f"{LEFT} its dependency failed"}
    if job.dependent:  # which GPUs are free then is not known yet
        return _wait(RECHECK_S, now_s, DEPENDENT)
    cluster = cluster_for(job, jobs, nodes, config.devices, now_s)
    waited = now_s - job.submitted_s
    if not cluster["nodes"]:
        # Wait if all GPUs are full: Slurm alone would give the job the first free shard, whatever runs beside
        # it.
        if waited < LONGEST_WAIT_S and cluster_for(job, [], nodes, config.devices, now_s)["nodes"]:
            return _wait(RECHECK_S, now_s)
        if waited < LONGEST_WAIT_S and has_unreported_shards(job, nodes):
            return _wait(_REPORT_S, now_s)
        return free | {"AdminComment": f"{LEFT} no GPU to share now"}
    answer = service.place(request.job, request.iterations, cluster)
    if answer is not None and answer["decision"] == "infeasible":
        # Wait for the GPUs on which it fits: Slurm alone would start it on one of these.
        every = cluster_for(job, [], nodes, config.devices, now_s)
        if not _types(every) <= _types(cluster):
            answer = service.place(request.job, request.iterations, every)
            if answer is not None and answer["decision"] != "infeasible":
                answer = {"decision": "wait", "ranked": []}
    if answer is None:
        return free | {"AdminComment": _without_answer(request.job, service)}
    if answer["decision"] == "infeasible":
        return free | {"AdminComment": f"{LEFT} fits on no GPU"}
    if answer["decision"] == "wait" and (waited < LONGEST_WAIT_S or not answer["ranked"]):
        if waited < LONGEST_WAIT_S:
            return _wait(min(answer.get("wait_s") or RECHECK_S, RECHECK_S), now_s)
        return free | {"AdminComment": f"{LEFT} waited long enough"}
    best = answer["ranked"][0]
    if (best["node"], best["gpu"]) not in {
        (n["name"], gpu["id"]) for n in cluster["nodes"] for gpu in n["gpus"]
    }:
        return free | {"AdminComment": f"{LEFT} GPU is not one of ours"}
    told = f"{PLACED} node={best['node']} gpu={best['gpu']} finish_s={best['finish_s']:.1f} at_s={now_s:.0f}"
    changes = free | {"ReqNodeList": str(best["node"]), "AdminComment": told}
    # Slurm chooses among the GPUs of a node; if they are of several types, tell it which.
    kind = next(type_of(node, int(best["gpu"])) for node in nodes if str(node["name"]) == best["node"])
    if kind and job.gres and not job.gpu_type:
        changes[TYPE] = of_type(job.gres, kind)
    return changes


def _types(cluster: dict[str, Any]) -> set[str]:
    return {gpu["device"] for node in cluster["nodes"] for gpu in node["gpus"]}


def _without_answer(spec: str, service: ServiceClient) -> str:
    """The mark of a job for which the service gave no answer, perhaps because it does not know the job's model."""
    model = parse_job(spec).model
    if model.startswith(REGISTERED):
        return f"{LEFT} {model[:80]} is not registered" if service.lacks(model) else NO_ANSWER
    return NO_ANSWER if model in zoo_names() else NOT_UNDERSTOOD


def _wait(wait_s: float, now_s: float, mark: str = HELD) -> dict[str, str]:
    """Hold the job and ask again after `wait_s` or when a job ends; a few seconds later the hold expires."""
    # An overdue job may end at any moment, which is noticed anyway; asking every second would load Slurm.
    seconds = max(5, round(wait_s))
    return {"StartTime": f"now+{seconds + MARGIN_S}", "AdminComment": f"{mark} ask_s={now_s + seconds:.0f}"}


def stale_pin(job: SlurmJob, now_s: float) -> bool:
    """Whether a job that we assigned to a node still waits for it."""
    if job.state != "PENDING" or not job.pinned or not job.admin_comment.startswith(PLACED):
        return False
    return now_s - _sent_s(job) > PIN_S


def just_sent(job: SlurmJob, config: SlurmConfig, now_s: float) -> bool:
    """Whether a job was just assigned to a node and has not started yet."""
    if job.state != "PENDING" or not job.admin_comment.startswith(PLACED):
        return False
    return now_s - _sent_s(job) < 5 * config.period_s


def _sent_s(job: SlurmJob) -> float:
    """When a job was assigned to its node."""
    told = re.search(r"\bat_s=(\d+)", job.admin_comment)
    return float(told[1]) if told else 0.0


def held_again(job: SlurmJob) -> dict[str, str]:
    """The changes to a job that Slurm requeued: as when it was submitted, without the node of the last answer.

    Its begin time may be earlier than the one that Slurm gave it: Slurm issues a new credential for each start.
    """
    pin = {"ReqNodeList": ""} if job.admin_comment.startswith(PLACED) else {}
    return pin | {"StartTime": f"now+{HOLD_S}", "AdminComment": HELD}


def asked_later(job: SlurmJob, now_s: float) -> bool:
    """Whether it is too early to ask about a waiting job again; never once the job that it waited for has ended."""
    if job.admin_comment.startswith(DEPENDENT) and not job.dependent:
        return False
    _, told, at_s = job.admin_comment.partition("ask_s=")
    return bool(told) and now_s < float(at_s)


@dataclass(slots=True)
class SlurmBridge:
    """Checks the queue periodically.

    Attributes:
        running: jobs that had GPUs at the last check.
        ask_all: a job has ended or was placed since the service was last asked about all held jobs.
        refused: jobs of which Slurm refused a change, and when to try again.
        upload: keeps the service's stored cluster in step; None to leave that alone.
    """

    slurm: Slurm
    service: ServiceClient
    config: SlurmConfig
    running: set[int] = field(default_factory=set)
    ask_all: bool = False
    refused: dict[int, float] = field(default_factory=dict)
    upload: SlurmUpload | None = None

    def step(self) -> dict[int, dict[str, str]]:
        """Check once; returns the changes by job number.

        The service is asked about held jobs in order until one is placed; the next is asked about once that one runs
        and counts as a tenant, or, after seconds without an answer, once the queue has been read again. A job of which
        Slurm refuses a change (it has just been cancelled, say) does not keep the others waiting: its hold expires by
        itself.

        Raises:
            subprocess.SubprocessError, OSError, ValueError: Slurm does not respond.
        """
        done: dict[int, dict[str, str]] = {}
        jobs, now_s = self.slurm.jobs(), time.time()
        running = {job.id for job in jobs if job.has_gpus}
        self.ask_all |= bool(self.running - running)
        self.running = running
        if self.upload is not None:
            self.upload.look(self.slurm.nodes, jobs, now_s)
        self.refused = {j.id: self.refused[j.id] for j in jobs if now_s < self.refused.get(j.id, 0)}
        for job in jobs:
            if job.id in self.refused:
                continue
            if job.state == "PENDING" and job.outdated:
                self._change(job, held_again(job), done, now_s)
            elif stale_pin(job, now_s):
                changes = {"ReqNodeList": "", "AdminComment": f"{LEFT} node did not become free"}
                self._change(job, changes, done, now_s)
        held = [
            j
            for j in jobs
            if j.state == "PENDING"
            and j.admin_comment.startswith(HELD)
            and not j.on_hold
            and j.id not in self.refused
            and (self.ask_all or not asked_later(j, now_s))
        ]
        # A job that was assigned but has not started holds no GPU yet, so the next one waits a little.
        if not held or any(just_sent(j, self.config, now_s) for j in jobs):
            return done
        nodes = self.slurm.nodes()
        for job in sorted(held, key=lambda j: j.id):
            changes = decide(job, jobs, nodes, self.service, self.config, now_s)
            if changes["AdminComment"].startswith(HELD) and asked_later(job, now_s + MARGIN_S / 2):
                continue  # already held
            changed = self._change(job, changes, done, now_s)
            if (changed and "ReqNodeList" in changes) or changes["AdminComment"].startswith(NO_ANSWER):
                self.ask_all = True
                return done
        self.ask_all = False
        return done

    def _change(
        self, job: SlurmJob, changes: dict[str, str], done: dict[int, dict[str, str]], now_s: float
    ) -> bool:
        """Make the changes and note them in `done`; False if Slurm refuses them."""
        if job.cleared:
            changes.setdefault(TYPE, job.gres)
        if job.restarts and changes["AdminComment"].startswith((PLACED, LEFT)):
            changes["AdminComment"] += f" restarts={job.restarts}"
        try:
            self.slurm.update(job, changes)
        except subprocess.CalledProcessError as error:
            log.warning("job %d: changes refused: %s", job.id, _told(error))
            self.refused[job.id] = now_s + RECHECK_S
            return False
        log.info("job %d: %s", job.id, changes)
        done[job.id] = changes
        return True


def run(service: ServiceClient, config: SlurmConfig) -> None:
    """Run until stopped."""
    bridge, said = SlurmBridge(Slurm(), service, config), ""
    if config.upload:
        bridge.upload = SlurmUpload(service, config.devices, config.period_s)
    while True:
        done, fault = {}, ""
        try:
            done = bridge.step()
        except (subprocess.SubprocessError, OSError, ValueError, KeyError, CotenantError) as error:
            fault = _told(error)
        if fault != said:  # log once, not at every check
            if fault:
                log.warning("unexpected response from Slurm, retrying: %s", fault)
            else:
                log.info("Slurm responds again")
            said = fault
        if not done:
            time.sleep(config.period_s)


def _told(error: Exception) -> str:
    """A failed command's stderr in one line, or the error itself."""
    stderr = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    if stderr:
        return f"{' '.join(error.cmd)}: {' '.join(stderr.split())}"  # type: ignore[attr-defined]
    if isinstance(error, FileNotFoundError):
        return f"command {error.filename} not found; run this on a machine with Slurm's commands"
    return str(error)


def _update(job: int, changes: Mapping[str, str]) -> None:
    _run("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in changes.items()))


def _run(*command: str) -> str:
    # A job's name or comment may hold any bytes; those of one job must not hide the others.
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=30
    )
    return done.stdout


def _json(*command: str) -> dict[str, Any]:
    body = json.loads(_run(*command, "--json"))
    if not isinstance(body, dict):
        raise ValueError(f"{' '.join(command)} --json is not an object")
    return body
