"""`cotenant campaign run --ray` on real Ray: three node processes here, one killed while it measures.

    python -m benchmarks.campaign_on_ray [--runs N] [--nodes N] [--tables DIR]

With tables, it also fits a protocol's folds with `cotenant benchmark run --ray` on the remaining nodes and in
this process; the scores must be equal.

The runs are real but short, on the CPU: the test is that no run is lost or stored twice. Without Ray, it says
so and exits successfully.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.ray_cluster import is_installed, ray_cluster
from benchmarks.record import record
from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.slices import read_results, slice_files
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.workload import Workload

JOB = "neumf-ml1m"
QUICK = MeasureSettings(
    repeats=1,
    window_s=0.2,
    alone_window_s=0.2,
    min_steps=2,
    max_warmup_s=1.0,
    least_cpu_ratio=0.01,
    retries=0,
)
PATIENCE_S = 1500.0
PROTOCOL, PREDICTORS = "gavel2019-by-model", ("additive", "trees-solo")


def plan_of(runs: int) -> CampaignPlan:
    """Solo runs of one job at different batch sizes."""
    requests = (RunRequest("solo", (Workload(JOB, batch_size=16 * (i + 1)),)) for i in range(runs))
    return CampaignPlan("on-ray", "cpu", tuple(PlannedRun(r, 1.0, "solo") for r in requests), QUICK)


def carry_out(cluster: Any, plan: Path, folder: Path) -> dict[str, Any]:
    """Run the command, kill a node by SIGKILL once its first run is stored, then run the same command
    again."""
    command = [
        str(Path(sys.executable).with_name("cotenant")),
        "campaign",
        "run",
        str(plan),
        "-o",
        str(folder),
    ]
    command += ["--ray", cluster.address, "--json"]
    began = time.monotonic()
    with (folder.parent / "stderr").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        done_at_kill = 0
        while process.poll() is None and time.monotonic() - began < PATIENCE_S:
            done_at_kill = len(read_results([folder]).records) if folder.exists() else 0
            if done_at_kill:
                break
            time.sleep(0.5)
        cluster.remove_node(cluster.others[0], allow_graceful=False)
        killed_s = time.monotonic() - began
        answer, _ = process.communicate(timeout=PATIENCE_S)
    first_s = time.monotonic() - began
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    ids = Counter(stored_runs(folder))
    return {
        "exit_code": process.returncode,
        "answer": json.loads(answer) if answer.strip() else (folder.parent / "stderr").read_text()[-500:],
        "runs_stored_when_the_node_was_killed": done_at_kill,
        "killed_after_s": round(killed_s, 1),
        "seconds": round(first_s, 1),
        "runs_stored": len(ids),
        "runs_stored_twice": sum(count > 1 for count in ids.values()),
        "same_command_again": json.loads(again.stdout),
    }


def fit_folds(cluster: Any, tables: Path, folder: Path) -> dict[str, Any]:
    """MAPE by predictor of one protocol, with folds fitted on the cluster and in one process."""
    scores = {}
    for where, options in (("on_ray", ["--ray", cluster.address]), ("in_one_process", [])):
        command = [
            str(Path(sys.executable).with_name("cotenant")),
            *("benchmark", "run", PROTOCOL, "--data", str(tables), "--predictors", ",".join(PREDICTORS)),
            *("--out", str(folder / where), "--json", *options),
        ]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
        predictors = json.loads(answer.stdout)["predictors"]
        scores[where] = {name: predictors[name]["metrics"]["mape_percent"] for name in PREDICTORS}
    return {"protocol": PROTOCOL, **scores, "equal": scores["on_ray"] == scores["in_one_process"]}


def stored_runs(folder: Path) -> list[str]:
    """Ids of all stored runs; a run that was stored twice appears twice."""
    lines = [line for path in slice_files(folder) for line in path.read_text().splitlines() if line]
    bodies = [json.loads(line.partition(" ")[2]) for line in lines]
    return [body["value"]["id"] for body in bodies if body["type"] == "run"]


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--runs", type=int, default=9, help="runs of the campaign (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="Ray nodes (default: %(default)s)")
    parser.add_argument("--tables", type=Path, help="folder of imported tables with Gavel's")
    options = parser.parse_args()
    if not is_installed():
        return
    import ray

    with ray_cluster(options.nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        plan = plan_of(options.runs).save(Path(folder) / "plan.json")
        figures = carry_out(cluster, plan, Path(folder) / "campaign")
        if options.tables is not None:
            figures["folds"] = fit_folds(cluster, options.tables, Path(folder))
    figures |= {"ray": ray.__version__, "nodes": options.nodes, "runs": options.runs, "job": JOB}
    print(json.dumps(figures, indent=1))
    record("campaign_on_ray", figures)
    if figures["exit_code"] or figures["runs_stored"] < options.runs or figures["runs_stored_twice"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_benchmark(__file__, main)
