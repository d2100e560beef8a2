"""A real Slurm on one machine with synthetic GPUs: munged, slurmctld and one slurmd per node, as child
processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import free_port, output, start

PLUGIN = Path(__file__).parents[1] / "deploy" / "slurm" / "job_submit.lua"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of the synthetic cluster.

    Attributes:
        gpus: GPU types as in `gres.conf` (`v100`, `a100_3g.20gb`); equal ones must be adjacent.
        shards: shards per GPU.
    """

    name: str
    gpus: tuple[str, ...]
    shards: int = 4


def missing() -> list[str]:
    """Whatever is missing to run Slurm; empty if nothing is."""
    absent = [c for c in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(c) is None]
    return [*(["root"] if os.geteuid() != 0 else []), *absent]


def start_slurm(folder: Path, stack: ExitStack, nodes: list[SlurmNode]) -> None:
    """Start every daemon in the foreground, to be ended by `stack`, and set `SLURM_CONF`. One partition has
    all nodes."""
    folder.chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "munge.seed").touch(0o600)
    shutil.copy(PLUGIN, folder)
    lines = [
        "ClusterName=cotenant", f"SlurmctldHost={socket.gethostname()}(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
        f"AuthInfo=socket={folder}/munge.sock", f"SlurmctldPort={free_port()}", f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/%n.pid", f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldLogFile={folder}/slurmctld.log", f"SlurmdLogFile={folder}/%n.log", "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none", "ReturnToService=2", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core",
        "JobSubmitPlugins=lua", "GresTypes=gpu,shard", "MpiDefault=none", "MailProg=/bin/true",
        "SlurmdParameters=config_overrides",
    ]  # fmt: skip
    gres, minor = [], 0
    for node in nodes:
        (folder / f"spool-{node.name}").mkdir()
        count = {kind: node.gpus.count(kind) for kind in dict.fromkeys(node.gpus)}
        held = ",".join(f"gpu:{kind}:{n}" for kind, n in count.items())
        lines.append(
            f"NodeName={node.name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={free_port()} CPUs=8 "
            f"RealMemory=1000 Gres={held},shard:{node.shards * len(node.gpus)}"
        )
        for kind in node.gpus:
            device = folder / f"gpu-{minor}"
            os.mknod(device, 0o20666, os.makedev(1, 3 if minor == 0 else 4 + minor))
            minor += 1
            gres += [
                f"NodeName={node.name} Name=gpu Type={kind} File={device}",
                f"NodeName={node.name} Name=shard Count={node.shards} File={device}",
            ]
    names = [node.name for node in nodes]
    lines.append(f"PartitionName=gpu Nodes={','.join(names)} Default=YES State=UP")
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    start(stack, "munged", "-F", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key",
          f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")  # fmt: skip
    time.sleep(1)
    start(stack, "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
    time.sleep(1)
    for name in names:
        start(stack, "slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", name)
    stack.callback(subprocess.run, ["scancel", "--user=root"], capture_output=True)
    deadline = time.monotonic() + 60
    while output("sinfo", "-h", "-N", "-o", "%t").split() != ["idle"] * len(names):
        if time.monotonic() > deadline:
            raise RuntimeError("Slurm did not start: " + (folder / "slurmctld.log").read_text()[-2000:])
        time.sleep(0.5)
