"""Slurm integration on a real Slurm: a controller, three slurmd with one made-up GPU each, the service.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge; says so and ends well where they are absent. Looks at: where
Slurm alone puts a job; where it goes with the integration; what happens without the service, and without the controller too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.record import record

NODES = {"node-a": "k80", "node-b": "v100", "node-c": "v100"}
PLUGIN = Path(__file__).parents[1] / "deploy" / "slurm" / "job_submit.lua"


def main() -> None:
    missing = [c for c in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(c) is None]
    if missing or os.geteuid() != 0:
        print("skipped: needs root and " + ", ".join(missing or ["nothing else"]))
        return
    with tempfile.TemporaryDirectory(prefix="cotenant-slurm-") as folder, ExitStack() as stack:
        figures = prove(Path(folder), stack)
    record("slurm_integration", figures)


def prove(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Everything that is looked at; all daemons end with `stack`."""
    start_slurm(folder, stack)
    figures: dict[str, Any] = {"slurm": _out("sinfo", "--version"), "nodes": NODES}
    figures["slurm alone"] = [job("")]
    url, service = start_service(folder, stack)
    door = _start(stack, sys.executable, "-m", "serving.cli.main", "door", "slurm", "--service", url)
    time.sleep(8)
    figures["with the integration"] = [
        job("cotenant:resnet18-cifar:batch_size=64,iterations=20000"),
        job("cotenant:resnet50-imagenet:batch_size=64,iterations=20000"),
        job("cotenant:lstm-wikitext2:batch_size=20,iterations=20000"),
    ]
    _end(service)
    figures["service down"] = [job("cotenant:resnet18-cifar:batch_size=64,iterations=20000")]
    _end(door)
    figures["service and controller down"] = [job("cotenant:resnet18-cifar:batch_size=64,iterations=20000")]
    print(json.dumps(figures, indent=1))
    return figures


def start_slurm(folder: Path, stack: ExitStack) -> None:
    """munged, slurmctld, and one slurmd per node of `NODES`, in the foreground, as children."""
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "munge.seed").touch(0o600)
    shutil.copy(PLUGIN, folder)
    lines = [
        "ClusterName=cotenant", f"SlurmctldHost={socket.gethostname()}(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
        f"AuthInfo=socket={folder}/munge.sock", f"SlurmctldPort={_port()}", f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/%n.pid", f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldLogFile={folder}/slurmctld.log", f"SlurmdLogFile={folder}/%n.log", "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none", "ReturnToService=2", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
        "JobSubmitPlugins=lua", "GresTypes=gpu,shard", "MpiDefault=none", "MailProg=/bin/true",
        "SlurmdParameters=config_overrides",
    ]  # fmt: skip
    gres = []
    for number, (name, kind) in enumerate(NODES.items()):
        (folder / f"spool-{name}").mkdir()
        device = folder / f"gpu-{number}"
        os.mknod(device, 0o20666, os.makedev(1, 3 if number == 0 else 4 + number))
        lines.append(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={_port()} CPUs=8 "
            f"RealMemory=1000 Gres=gpu:{kind}:1,shard:4"
        )
        gres += [f"NodeName={name} Name=gpu Type={kind} File={device}", f"NodeName={name} Name=shard Count=4 File={device}"]  # fmt: skip
    lines.append(f"PartitionName=gpu Nodes={','.join(NODES)} Default=YES State=UP")
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    _start(stack, "munged", "-F", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key",
           f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")  # fmt: skip
    time.sleep(1)
    _start(stack, "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
    time.sleep(1)
    for name in NODES:
        _start(stack, "slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", name)
    stack.callback(subprocess.run, ["scancel", "--user=root"], capture_output=True)
    deadline = time.monotonic() + 60
    while _out("sinfo", "-h", "-N", "-o", "%t").split() != ["idle"] * len(NODES):
        if time.monotonic() > deadline:
            raise RuntimeError("Slurm did not start: " + (folder / "slurmctld.log").read_text()[-2000:])
        time.sleep(0.5)


def start_service(folder: Path, stack: ExitStack) -> tuple[str, subprocess.Popen[bytes]]:
    """`cotenant serve` with the default model, ready."""
    port = _port()
    service = _start(stack, sys.executable, "-m", "serving.cli.main", "serve", "--port", str(port), "--database",
                     f"sqlite:///{folder}/store.db")  # fmt: skip
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/health/ready", trust_env=False).status_code == 200:
                return url, service
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError("the service did not get ready")


def job(comment: str) -> dict[str, Any]:
    """Submit a job that sleeps; where it started, after how long, and what the door told of it."""
    started = time.monotonic()
    extra = [f"--comment={comment}"] if comment else []
    number = _out(
        "sbatch", "--parsable", "-n1", "--gres=shard:1", "-o", "/dev/null", *extra, "--wrap", "sleep 600"
    )
    while time.monotonic() - started < 90:
        job = next(j for j in json.loads(_out("squeue", "--json"))["jobs"] if str(j["job_id"]) == number)
        if job["job_state"] == "RUNNING":
            seconds = round(time.monotonic() - started, 1)
            if not comment:
                _out("scancel", number)
            return {"comment": comment, "node": job["nodes"], "gres": job["gres_detail"], "told": job["admin_comment"],
                    "start_after_s": seconds}  # fmt: skip
        time.sleep(0.2)
    raise RuntimeError(f"job {number} did not start")


def _start(stack: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _out(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
