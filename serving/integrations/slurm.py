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
from serving.integrations.slurm_state import HELD, Job, cluster_for, read_comment

log = logging.getLogger("cotenant.slurm")


@dataclass(frozen=True, slots=True)
class SlurmConfig:
    """Settings of the controller.

    Attributes:
        period_s: seconds between looks at the queue.
        recheck_s: longest that a job is told to wait before the service is asked again.
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

    def jobs(self) -> list[Job]:
        return [Job.read(raw) for raw in _json("squeue")["jobs"]]

    def nodes(self) -> list[Mapping[str, Any]]:
        return list(_json("sinfo")["nodes"])

    def update(self, job: int, changes: Mapping[str, str]) -> None:
        """One `scontrol update`: all of `changes`, or none. Raises `subprocess.SubprocessError`."""
        _run("scontrol", "update", f"JobId={job}", *(f"{k}={v}" for k, v in changes.items()))


def decide(
    job: Job, jobs: list[Job], nodes: list[Mapping[str, Any]], service: ServiceClient, config: SlurmConfig, now_s: float
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
    if not cluster["nodes"]:
        return free | {"AdminComment": "cotenant:left no GPU to share now"}
    answer = service.place(request.job, request.iterations, cluster)
    if answer is None:
        return free | {"AdminComment": "cotenant:left no answer"}
    waited = now_s - job.submitted_s
    if answer["decision"] == "wait" and (waited < config.longest_wait_s or not answer["ranked"]):
        wait_s = max(1, round(min(answer.get("wait_s") or config.recheck_s, config.recheck_s)))
        if waited < config.longest_wait_s:
            return {"StartTime": f"now+{wait_s}", "AdminComment": f"{HELD} ask_s={now_s + wait_s - 1:.0f}"}
        return free | {"AdminComment": "cotenant:left waited long enough"}
    best = answer["ranked"][0]
    if best["node"] not in {n["name"] for n in cluster["nodes"]}:
        return free | {"AdminComment": "cotenant:left node is not one of ours"}
    told = f"cotenant:placed node={best['node']} gpu={best['gpu']} finish_s={best['finish_s']:.1f} at_s={now_s:.0f}"
    return free | {"ReqNodeList": str(best["node"]), "AdminComment": told}


def stale_pin(job: Job, config: SlurmConfig, now_s: float) -> bool:
    """Whether a job that we sent to a node still waits for it."""
    if job.state != "PENDING" or not job.pinned or not job.admin_comment.startswith("cotenant:placed"):
        return False
    return now_s - float(job.admin_comment.rpartition("at_s=")[2] or 0) > config.pin_s


def asked_later(job: Job, now_s: float) -> bool:
    """Whether a job that was told to wait need not be asked about yet."""
    _, told, at_s = job.admin_comment.partition("ask_s=")
    return bool(told) and now_s < float(at_s)


def step(slurm: Slurm, service: ServiceClient, config: SlurmConfig) -> dict[int, dict[str, str]]:
    """Look once; job number to what was changed of it. One job is placed per look at its tenants.

    Raises:
        subprocess.SubprocessError, OSError, ValueError: Slurm does not answer.
    """
    done: dict[int, dict[str, str]] = {}
    jobs, now_s = slurm.jobs(), time.time()
    for job in jobs:
        if stale_pin(job, config, now_s):
            done[job.id] = {"ReqNodeList": "", "AdminComment": "cotenant:left node did not become free"}
            slurm.update(job.id, done[job.id])
    held = [
        j
        for j in jobs
        if j.state == "PENDING" and j.admin_comment.startswith(HELD) and not asked_later(j, now_s)
    ]
    if held:
        job = min(held, key=lambda j: j.id)
        # Who was sent to a node but has not started holds nothing yet: the next one waits for a second.
        sent = any(
            j.state == "PENDING" and j.pinned and j.admin_comment.startswith("cotenant:placed") for j in jobs
        )
        if sent and now_s - job.submitted_s < 5 * config.period_s:
            return done
        done[job.id] = decide(job, jobs, slurm.nodes(), service, config, now_s)
        slurm.update(job.id, done[job.id])
        log.info("job %d: %s", job.id, done[job.id])
    return done


def run(service: ServiceClient, config: SlurmConfig) -> None:
    """Until it is stopped."""
    slurm = Slurm()
    while True:
        try:
            done = step(slurm, service, config)
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            log.warning("Slurm does not answer as expected: %s", error)
            done = {}
        if not done:
            time.sleep(config.period_s)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def _json(command: str) -> dict[str, Any]:
    body = json.loads(_run(command, "--json"))
    if not isinstance(body, dict):
        raise ValueError(f"{command} --json is not an object")
    return body
