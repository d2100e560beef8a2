"""`cotenant compare --ray` on real Ray: three node processes here, one killed while the sweep runs.

    python -m benchmarks.sweep_on_ray [--seeds 20] [--nodes N]

Loads .5, .7 and .9. Checks that no run is lost, that the file of partial results is complete at every moment,
and that the figures equal those of one process. Without Ray, it says so and exits successfully.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.ray_cluster import is_installed, ray_cluster
from benchmarks.record import record
from profiling.files import read_json
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.simulator.sweep import run_all

TRACE, CLUSTER, POLICIES, LOADS = (
    "synthetic:rate=30,jobs=40",
    "small-mixed",
    ("fifo", "isacpp"),
    (0.5, 0.7, 0.9),
)
PATIENCE_S = 3600.0
KILL_AFTER = 12  # runs


def carry_out(cluster: Any, seeds: int, out: Path) -> dict[str, Any]:
    """Run the command, and kill a node by SIGKILL once some runs are stored."""
    command = [
        str(Path(sys.executable).with_name("cotenant")), "compare", "--trace", TRACE, "--cluster", CLUSTER,
        "--policies", ",".join(POLICIES), "--ray", "--seeds", str(seeds),
        "--loads", ",".join(str(load) for load in LOADS), "-o", str(out), "--json",
    ]  # fmt: skip
    seen: list[int] = []
    began, killed_s, at_kill = time.monotonic(), 0.0, 0
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    with (out.parent / "stdout").open("w") as answer, (out.parent / "stderr").open("w") as errors:
        process = subprocess.Popen(command, stdout=answer, stderr=errors, env=environment)
        while process.poll() is None and time.monotonic() - began < PATIENCE_S:
            done = len(read_json(out / "results.json")["runs"]) if (out / "results.json").exists() else 0
            if not seen or done > seen[-1]:
                seen.append(done)
            if done >= KILL_AFTER and not killed_s:
                cluster.remove_node(cluster.others[0], allow_graceful=False)
                killed_s, at_kill = time.monotonic() - began, done
            time.sleep(0.5)
        process.wait(60)
    runs = read_json(out / "results.json")["runs"]
    return {
        "exit_code": process.returncode,
        "stderr": (out.parent / "stderr").read_text()[-300:] if process.returncode else "",
        "runs_stored_when_the_node_was_killed": at_kill,
        "killed_after_s": round(killed_s, 1),
        "seconds": round(time.monotonic() - began, 1),
        "runs_seen_stored": seen[:: max(1, len(seen) // 10)],
        "runs_stored": len(runs),
        "runs_failed": sum("error" in run for run in runs),
        "table": [
            {key: body.get(key) for key in ("policy", "load", "mean_jct_s", "p99_jct_s")}
            | {
                "seeds": len(body.get("seeds", ())),
                "standard_error_s": body.get("standard_error", {}).get("mean_jct_s"),
            }
            for body in read_json(out / "results.json")["policies"]
        ],
        "runs": runs,
    }


def differences(runs: list[dict[str, Any]]) -> int:
    """Number of runs of the first two seeds that differ from those of one process."""
    alone = run_all(ScenarioSpec(TRACE, CLUSTER), POLICIES, seeds=2, loads=LOADS)
    known = {(run["policy"], run["seed"], run["load"]): run["mean_jct_s"] for run in runs}
    return sum(
        run.result is None or known[run.policy, run.seed, run.load] != run.result.to_json()["mean_jct_s"]
        for run in alone
    )


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=20, help="seeds of each run (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="Ray nodes (default: %(default)s)")
    options = parser.parse_args()
    if not is_installed():
        return
    import ray

    with ray_cluster(options.nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        figures = carry_out(cluster, options.seeds, Path(folder) / "out")
    figures["runs_that_differ_from_one_process"] = differences(figures.pop("runs"))
    figures |= {"ray": ray.__version__, "nodes": options.nodes, "seeds": options.seeds}
    print(json.dumps(figures, indent=1))
    record("sweep_on_ray", figures)
    expected = options.seeds * len(POLICIES) * len(LOADS)
    if figures["exit_code"] or figures["runs_stored"] < expected or figures["runs_failed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_benchmark(__file__, main)
