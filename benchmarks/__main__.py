"""`python -m benchmarks`: run every long measurement that needs no outside data; `--list` only names them all."""

from __future__ import annotations

import argparse
import subprocess
import sys

# Those that need more than the checkout are run by themselves: somebody's measurements, another program, or root.
SELF_CONTAINED = (
    "predict",
    "kept_memory",
    "capture",
    "graph_dataset",
    "kill_campaign",
    "serve_kill",
    "placement",
    "decision",
    "queue_order",
    "slices_plan",
    "rings",
    "icefrog_training",
    "learning",
    "pipeline_training",
    "pipeline_steps",
    "plausibility",
    "pollux_sizes",
)
WITH_DATA = {
    "protocols": "TABLES: the evaluation protocols on imported tables",
    "ablation": "TABLES: what each part of the predictor is worth",
    "interval_groups": "TABLES: coverage and width of intervals with and without groups",
    "utilization_forest": "TABLES: what the teacher of utilisation knows of unseen models",
    "isacpp_claim": "--data TABLES [--folds 5]: the placement policy against an oracle on measured pairs",
    "sia": "--data CLONE: Sia's workloads",
    "slices_simulation": "--data MISO: simulated MISO controllers against their reference runs",
    "policies": "--data TABLES: every policy on the same traces, jobs rigid, elastic and with tunable batches",
    "realism": "--data TABLES: what each thing that a real cluster has does to the policies",
    "philly": "a trace of 82,000 jobs",
    "layer_throughput": "--data CLONE: layer freezing",
    "icefrog_simulation": "--trace CSV: layer-elastic scheduling",
    "pipeline": "--profiles CLONE: pipeline plans",
    "gavel": "--data CLONE of Sia: Gavel as Sia's artifact runs it",
    "sharing_sums": "--data TABLES: sums of relative speeds by sharing mode, measured and predicted",
    "occupancy": "--data TABLES: how full operators keep a GPU, predicted and measured",
    "memory_constants": "--data TABLES: constants of a process's memory, and their errors",
    "residuals": "--data TABLES: what trees can tell of the errors of the cost model",
    "graph_correction": "--data TABLES: graph networks over operators beside the cost model without",
    "learning_stream": "plan PLAN | replay TABLES: the posterior on a stream of pairs measured on one core",
    "graph_agreement": "--data TABLES: stored graphs against what publishers state",
    "member_scale": "TABLES: what distances between jobs are measured in",
    "slices_measured": "--data TABLES: plans of MIG slices against measured ones",
    "share_mixes": "--data TABLES: steps of mixes under caps of SM shares, predicted and measured",
    "serve": "the service under load, with wrk",
    "siege": "the service under attack",
    "overload": "the service at twice its rated load, with wrk",
    "refusals": "what refusing a request costs, with wrk",
    "fuzz": "requests made up from the OpenAPI document, with Schemathesis",
    "stored": "placements on the stored cluster of a service",
    "campaign_on_ray": "a campaign on three Ray nodes, with the extra `ray`",
    "sweep_on_ray": "a sweep of simulations on three Ray nodes, with the extra `ray`",
    "ray_integration": "--service URL: placements from Ray, with the extra `ray`",
    "slurm_integration": "as root: a real Slurm",
    "reality": "pairs|run POLICY|compare, as root: jobs of the zoo through a real Slurm, and simulated",
    "ring_link": "as root: rings over links that are really shared",
}


def main() -> int:
    """Run them one after another; the first failure is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    if parser.parse_args().list:
        for name in SELF_CONTAINED:
            print(f"{name:20} python -m benchmarks.{name}")
        for name, needs in WITH_DATA.items():
            print(f"{name:20} python -m benchmarks.{name} {needs}")
        return 0
    failed = 0
    for name in SELF_CONTAINED:
        print(f"\n=== {name}", flush=True)
        failed = failed or subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
