"""The Slurm integration on a real Slurm: a controller, slurmd with synthetic GPUs, the service.

Checks where Slurm alone puts a job; where it goes with the integration, on nodes with one GPU and on a node
whose card is partitioned by MIG; and what happens without the service, and also without the controller. Needs
root and Debian's slurmctld, slurmd, slurm-client, munge; without them, it says so and exits successfully.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.processes import end, output, start, start_service
from benchmarks.record import record
from benchmarks.slurm_cluster import SlurmNode, missing, start_slurm
from profiling.devices import get_device
from scheduling.clusters.importers.slurm import split_type
from serving.integrations.slurm_state import read_comment

NODES = [SlurmNode("node-a", ("k80",)), SlurmNode("node-b", ("v100",)), SlurmNode("node-c", ("v100",))]
# One card as 3g + 2g + 1g + 1g, and one slice on a separate Slurm node.
MIG_NODES = [
    SlurmNode("cut", ("a100_1g.5gb", "a100_1g.5gb", "a100_2g.10gb", "a100_3g.20gb"), shards=2),
    SlurmNode("single", ("a100_2g.10gb",), shards=2),
]
JOBS = (
    "cotenant:resnet18-cifar:batch_size=64,iterations=20000",
    "cotenant:resnet50-imagenet:batch_size=64,iterations=20000",
    "cotenant:lstm-wikitext2:batch_size=20,iterations=20000",
)


def main() -> None:
    benchmark_parser(__file__, __doc__).parse_args()
    absent = missing()
    if absent:
        print("skipped: needs " + ", ".join(absent))
        return
    figures: dict[str, Any] = {"slurm": output("slurmctld", "-V")}
    for name, look in (("whole GPUs", whole_gpus), ("slices", slices)):
        with tempfile.TemporaryDirectory(prefix="cotenant-slurm-") as folder, ExitStack() as stack:
            figures[name] = look(Path(folder), stack)
    print(json.dumps(figures, indent=1))
    record("slurm_integration", figures)


def whole_gpus(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """One GPU per node; all daemons end with `stack`."""
    start_slurm(folder, stack, NODES)
    figures: dict[str, Any] = {"nodes": {node.name: node.gpus for node in NODES}}
    figures["slurm alone"] = [job("")]
    url, service = start_service(folder, stack)
    meet(url, NODES)
    controller = start(
        stack, sys.executable, "-m", "serving.cli.main", "controller", "slurm", "--service", url
    )
    time.sleep(8)
    figures["with the integration"] = [job(comment) for comment in JOBS]
    end(service)
    figures["service down"] = [job(JOBS[0])]
    end(controller)
    figures["service and controller down"] = [job(JOBS[0])]
    return figures


def slices(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """A card partitioned by MIG: jobs with a slice of their own, then jobs that share."""
    start_slurm(folder, stack, MIG_NODES)
    figures: dict[str, Any] = {"nodes": {node.name: node.gpus for node in MIG_NODES}}
    figures["slurm alone"] = [job("", gres="gpu:1")]
    url, _ = start_service(folder, stack)
    meet(url, MIG_NODES)
    start(stack, sys.executable, "-m", "serving.cli.main", "controller", "slurm", "--service", url)
    time.sleep(8)
    figures["a slice each (gpu:1)"] = [job(comment, gres="gpu:1") for comment in JOBS]
    figures["a type of their own (gpu:a100_1g.5gb:1)"] = [job(JOBS[2], gres="gpu:a100_1g.5gb:1")]
    output("scancel", "--user=root")
    while output("squeue", "-h"):
        time.sleep(0.5)
    figures["shared slices (shard:1)"] = [job(comment) for comment in (*JOBS, *JOBS)]
    placed = [
        row for rows in figures.values() if isinstance(rows, list) for row in rows if " node=" in row["told"]
    ]
    figures["on the slice that the service named"] = (
        f"{sum(row['as_told'] for row in placed)} of {len(placed)}"
    )
    return figures


def meet(url: str, nodes: list[SlurmNode]) -> None:
    """Let the service capture the jobs' models, so that a busy machine does not delay the first answers."""
    for gpu in {gpu for node in nodes for gpu in node.gpus}:
        card, profile = split_type(gpu)
        device = get_device(f"{card}:mig={profile}" if profile else card).name
        for comment in JOBS:
            request = read_comment(comment)
            assert request is not None
            body = {"device": device, "jobs": [request.job]}
            httpx.post(f"{url}/v1/predict", json=body, timeout=120, trust_env=False).raise_for_status()


def job(comment: str, gres: str = "shard:1") -> dict[str, Any]:
    """Submit a job that sleeps; return where and how late it started, the controller's message, and whether
    Slurm followed it."""
    started = time.monotonic()
    extra = [f"--comment={comment}"] if comment else []
    number = output(
        "sbatch",
        "--parsable",
        "-n1",
        f"--gres={gres}",
        "--mem=1",
        "-o",
        "/dev/null",
        *extra,
        "--wrap",
        "sleep 600",
    )
    while time.monotonic() - started < 90:
        job = next(j for j in json.loads(output("squeue", "--json"))["jobs"] if str(j["job_id"]) == number)
        if job["job_state"] == "RUNNING":
            seconds = round(time.monotonic() - started, 1)
            if not comment:
                output("scancel", number)
            told = re.search(r"node=(\S+) gpu=(\d+)", job["admin_comment"])
            index = re.search(r"IDX:(\d+)", job["gres_detail"][0])
            return {
                "comment": comment,
                "gres": gres,
                "node": job["nodes"],
                "gres_detail": job["gres_detail"],
                "told": job["admin_comment"],
                "as_told": bool(told and index and told.groups() == (job["nodes"], index[1])),
                "start_after_s": seconds,
            }
        if "ask_s=" in job["admin_comment"]:
            output("scancel", number)
            return {"comment": comment, "gres": gres, "told": "waiting is predicted better"}
        time.sleep(0.2)
    raise RuntimeError(f"job {number} did not start")


if __name__ == "__main__":
    run_benchmark(__file__, main)
