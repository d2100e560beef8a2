"""Slurm integration: jobs held back by `job_submit.lua` get the node that the service ranks first, and go.

A hold is a begin time that passes by itself, so nothing here has to work for a job to run: where the service or this
controller is away, Slurm schedules the job as if both were not there.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiling.devices import get_device, list_devices
from profiling.errors import CotenantError, InputError
from serving.integrations.ask import ServiceClient
from serving.integrations.slurm_state import HELD, SlurmJob, cluster_for, read_comment, type_of

log = logging.getLogger("cotenant.slurm")

TYPE = "TresPerNode"
# Seconds between when a job that waits is asked about again and when it would go by itself.
MARGIN_S = 10


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """Settings of the controller.

    Attributes:
        period_s: seconds between looks at the queue.
        recheck_s: longest that a job waits before the service is asked again.
        longest_wait_s: after so long in the queue a job takes the best GPU there is, though waiting is predicted better.
        pin_s: a job that has not started so long after it got its node may go to any other.
        devices: GPU type in Slurm to catalogue name, beside the catalogue's own names.
    """

    period_s: float = 1.0
    recheck_s: float = 60.0
    longest_wait_s: float = 600.0
    pin_s: float = 60.0
    devices: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("period_s", "recheck_s", "longest_wait_s", "pin_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is out of range", expected="a number above 0", got=getattr(self, name))  # fmt: skip
        for device in self.devices.values():
            get_device(device)


class Slurm:
    """Slurm by its own commands; `SLURM_CONF` says which."""

    def jobs(self) -> list[SlurmJob]:
        return [SlurmJob.read(raw) for raw in _json("squeue")["jobs"]]

    def nodes(self) -> list[Mapping[str, Any]]:
        return list(_json("sinfo")["nodes"])

    def update(self, job: int, changes: Mapping[str, str]) -> None:
        """One `scontrol update`: all of `changes`, or none. Raises `subprocess.SubprocessError`.

        `TresPerNode`, which says the type of GPU, is the exception: Slurm takes it over an empty text only, so that is a
        command before; and where it is refused, the rest is changed without.
        """
        if TYPE in changes:
            try:
                _update(job, {TYPE: ""})
                _update(job, changes)
            except subprocess.CalledProcessError as error:
                log.warning("job %d: the type of GPU stays open: %s", job, error.stderr)
            else:
                return
        _update(job, {key: value for key, value in changes.items() if key != TYPE})


def decide(
    job: SlurmJob, jobs: list[SlurmJob], nodes: list[Mapping[str, Any]], service: ServiceClient, config: SlurmConfig, now_s: float
) -> dict[str, str]:  # fmt: skip
    """What to change of a held job. Where there is no answer, only its begin time and the mark."""
    free = {"StartTime": "now"}
    try:
        request = read_comment(job.comment)
    except CotenantError as error:
        log.warning("job %d: %s", job.id, error)
        return free | {"AdminComment": "cotenant:left comment is not understood"}
    if request is None or job.constrained:
        return free | {"AdminComment": "cotenant:left names its own nodes"}
    known = {d.name: d.name for d in list_devices()} | dict(config.devices)
    cluster = cluster_for(job, jobs, nodes, known, now_s)
    waited = now_s - job.submitted_s
    if not cluster["nodes"]:
        # Full GPUs are worth waiting for: Slurm alone would give the job the first shard that becomes free, whoever is beside it.
        if waited < config.longest_wait_s and cluster_for(job, [], nodes, known, now_s)["nodes"]:
            return _wait(config.recheck_s, now_s)
        return free | {"AdminComment": "cotenant:left no GPU to share now"}
    answer = service.place(request.job, request.iterations, cluster)
    if answer is None:
        return free | {"AdminComment": "cotenant:left no answer"}
    if answer["decision"] == "wait" and (waited < config.longest_wait_s or not answer["ranked"]):
        if waited < config.longest_wait_s:
            return _wait(min(answer.get("wait_s") or config.recheck_s, config.recheck_s), now_s)
        return free | {"AdminComment": "cotenant:left waited long enough"}
    best = answer["ranked"][0]
    if best["node"] not in {n["name"] for n in cluster["nodes"]}:
        return free | {"AdminComment": "cotenant:left node is not one of ours"}
    told = f"cotenant:placed node={best['node']} gpu={best['gpu']} finish_s={best['finish_s']:.1f}"
    if request.iterations is None and answer.get("iterations"):
        told += f" iterations={answer['iterations']:.0f}"  # when it is a tenant, it is as long as it was taken to be
    told += f" at_s={now_s:.0f}"
    changes = free | {"ReqNodeList": str(best["node"]), "AdminComment": told}
    # Slurm chooses among the GPUs of a node; where they are of several types, it is told which.
    kind = next(type_of(node, int(best["gpu"])) for node in nodes if str(node["name"]) == best["node"])
    if kind and job.by_node and not job.gpu_type:
        changes[TYPE] = f"gres:gpu:{kind}:1" if job.whole else f"gres:shard:{kind}:{job.shards}"
    return changes


def _wait(wait_s: float, now_s: float) -> dict[str, str]:
    """Asked about again after `wait_s`, or when a job ends; a few seconds later it goes by itself."""
    # A job that is late may end at any moment, which is seen; asking every second would load Slurm.
    seconds = max(5, round(wait_s))
    return {"StartTime": f"now+{seconds + MARGIN_S}", "AdminComment": f"{HELD} ask_s={now_s + seconds:.0f}"}


def stale_pin(job: SlurmJob, config: SlurmConfig, now_s: float) -> bool:
    """Whether a job that we sent to a node still waits for it."""
    if job.state != "PENDING" or not job.pinned or not job.admin_comment.startswith("cotenant:placed"):
        return False
    return now_s - _sent_s(job) > config.pin_s


def just_sent(job: SlurmJob, config: SlurmConfig, now_s: float) -> bool:
    """Whether a job was sent to a node a moment ago and has not started yet."""
    if job.state != "PENDING" or not job.admin_comment.startswith("cotenant:placed"):
        return False
    return now_s - _sent_s(job) < 5 * config.period_s


def _sent_s(job: SlurmJob) -> float:
    """When a job was sent to its node."""
    return float(job.admin_comment.rpartition("at_s=")[2] or 0)


def asked_later(job: SlurmJob, now_s: float) -> bool:
    """Whether a waiting job need not be asked about yet."""
    _, told, at_s = job.admin_comment.partition("ask_s=")
    return bool(told) and now_s < float(at_s)


@dataclass(slots=True)
class SlurmBridge:
    """Looks at the queue again and again.

    Attributes:
        running: jobs that ran at the last look.
        ask_all: a job has ended, or one was placed, since all held jobs were last asked about.
    """

    slurm: Slurm
    service: ServiceClient
    config: SlurmConfig
    running: set[int] = field(default_factory=set)
    ask_all: bool = False

    def step(self) -> dict[int, dict[str, str]]:
        """Look once; job number to what was changed of it. Held jobs are asked about in their order until one is placed; the
        next one when that one runs and can be seen beside the others.

        Raises:
            subprocess.SubprocessError, OSError, ValueError: Slurm does not answer.
        """
        done: dict[int, dict[str, str]] = {}
        jobs, now_s = self.slurm.jobs(), time.time()
        running = {job.id for job in jobs if job.state == "RUNNING"}
        self.ask_all |= bool(self.running - running)
        self.running = running
        for job in jobs:
            if stale_pin(job, self.config, now_s):
                done[job.id] = {"ReqNodeList": "", "AdminComment": "cotenant:left node did not become free"}
                self.slurm.update(job.id, done[job.id])
        held = [
            j
            for j in jobs
            if j.state == "PENDING"
            and j.admin_comment.startswith(HELD)
            and (self.ask_all or not asked_later(j, now_s))
        ]
        # Who was sent to a node but has not started holds nothing yet: the next one waits a little.
        if not held or any(just_sent(j, self.config, now_s) for j in jobs):
            return done
        nodes = self.slurm.nodes()
        for job in sorted(held, key=lambda j: j.id):
            changes = decide(job, jobs, nodes, self.service, self.config, now_s)
            if changes["AdminComment"].startswith(HELD) and asked_later(job, now_s + MARGIN_S / 2):
                continue  # it waits already
            done[job.id] = changes
            self.slurm.update(job.id, changes)
            log.info("job %d: %s", job.id, changes)
            if "ReqNodeList" in changes:
                self.ask_all = True
                return done
        self.ask_all = False
        return done


def run(service: ServiceClient, config: SlurmConfig) -> None:
    """Until it is stopped."""
    bridge, said = SlurmBridge(Slurm(), service, config), ""
    while True:
        done, fault = {}, ""
        try:
            done = bridge.step()
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            fault = _told(error)
        if fault != said:  # once, and not at every look
            if fault:
                log.warning("Slurm does not answer as expected, asking on: %s", fault)
            else:
                log.info("Slurm answers again")
            said = fault
        if not done:
            time.sleep(config.period_s)


def _told(error: Exception) -> str:
    """What a command that failed said on stderr, in one line; else the error itself."""
    stderr = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    if stderr:
        return f"{' '.join(error.cmd)}: {' '.join(stderr.split())}"  # type: ignore[attr-defined]
    if isinstance(error, FileNotFoundError):
        return f"there is no command {error.filename}; run this where Slurm's commands are"
    return str(error)


def _update(job: int, changes: Mapping[str, str]) -> None:
    _run("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in changes.items()))


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def _json(command: str) -> dict[str, Any]:
    body = json.loads(_run(command, "--json"))
    if not isinstance(body, dict):
        raise ValueError(f"{command} --json is not an object")
    return body
