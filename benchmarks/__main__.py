"""`python -m benchmarks`: run every long measurement that needs no outside data; `--list` only names them all."""

from __future__ import annotations

import argparse
import subprocess
import sys

# Name -> what it measures.
SELF_CONTAINED = {
    "predict": "how fast predictions are",
    "kept_memory": "what keeping freed memory is worth for large questions",
    "capture": "time and memory of captures, up to 100,000 operators",
    "graph_dataset": "loading 5,000 co-location sets with their graphs",
    "kill_campaign": "a measurement campaign killed 200 times",
    "serve_kill": "the service killed in the middle of writes",
    "placement": "one job among 10,000 GPUs, and 100 jobs on 100 GPUs",
    "decision": "one placement decision after one change of the cluster",
    "queue_order": "the order in which ISACPP looks at its queue, on synthetic pairs",
    "slices_plan": "how long plans of MIG slices take",
    "rings": "schedulers of ring-all-reduce jobs on the paper's mix",
    "icefrog_training": "real trainings that freeze layers by their gradient norms",
    "learning": "what an observation and a corrected answer cost",
    "pipeline_training": "a model trained over two processes against one",
    "pipeline_steps": "planned pipeline steps beside measured ones",
    "plausibility": "predicted throughputs beside published ones",
    "pollux_sizes": "what Pollux's allocation over powers of two loses",
}
# Those that need more than the checkout are run by themselves: somebody's measurements, another program, or root.
# Name -> arguments and what else it needs, then what it measures.
WITH_DATA = {
    "protocols": ("TABLES", "the evaluation protocols on imported tables"),
    "ablation": ("TABLES", "what each part of the predictor is worth"),
    "interval_groups": ("TABLES", "coverage and width of intervals with and without groups"),
    "utilization_forest": ("TABLES", "what the teacher of utilisation knows of unseen models"),
    "isacpp_claim": ("--data TABLES [--folds 5]", "the placement policy against an oracle on measured pairs"),
    "sia": ("--data CLONE", "Sia's workloads against published figures"),
    "slices_simulation": ("--data MISO", "simulated MISO controllers against their reference runs"),
    "policies": (
        "--data TABLES",
        "every policy on the same traces, jobs rigid, elastic and with tunable batches",
    ),
    "realism": ("--data TABLES", "what each thing that a real cluster has does to the policies"),
    "philly": ("--data TABLES --trace CSV", "the Philly trace of 82,000 jobs on 2,000 GPUs"),
    "layer_throughput": ("--data CLONE", "layer freezing"),
    "icefrog_simulation": ("--trace CSV", "layer-elastic scheduling"),
    "pipeline": ("--profiles CLONE", "pipeline plans"),
    "gavel": ("--data SIA", "Gavel as Sia's artifact runs it"),
    "sharing_sums": ("--data TABLES", "sums of relative speeds by sharing mode, measured and predicted"),
    "occupancy": ("--data TABLES", "how full operators keep a GPU, predicted and measured"),
    "memory_constants": ("--data TABLES", "constants of a process's memory, and their errors"),
    "residuals": ("--data TABLES", "what trees can tell of the errors of the cost model"),
    "graph_correction": ("--data TABLES", "graph networks over operators beside the cost model without"),
    "learning_stream": (
        "plan PLAN | replay TABLES",
        "the posterior on a stream of pairs measured on one core",
    ),
    "graph_agreement": ("--data TABLES", "stored graphs against what publishers state"),
    "member_scale": ("TABLES", "what distances between jobs are measured in"),
    "slices_measured": ("--data TABLES", "plans of MIG slices against measured ones"),
    "share_mixes": ("--data TABLES", "steps of mixes under caps of SM shares, predicted and measured"),
    "serve": ("", "the service under load, with wrk"),
    "siege": ("", "the service under attack"),
    "overload": ("", "the service at twice its rated load, with wrk"),
    "refusals": ("", "what refusing a request costs, with wrk"),
    "fuzz": ("", "requests made up from the OpenAPI document, with Schemathesis"),
    "stored": ("", "placements on the stored cluster of a service"),
    "campaign_on_ray": ("", "a campaign on three Ray nodes, with the extra `ray`"),
    "sweep_on_ray": ("", "a sweep of simulations on three Ray nodes, with the extra `ray`"),
    "ray_integration": ("--service URL", "placements from Ray, with the extra `ray`"),
    "slurm_integration": ("", "where jobs go on a real Slurm; as root"),
    "reality": ("pairs|run POLICY|compare", "jobs of the zoo through a real Slurm, and simulated; as root"),
    "ring_link": ("", "rings over links that are really shared; as root"),
}


def main() -> int:
    """Run them one after another; the first failure is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    if parser.parse_args().list:
        for name, what in SELF_CONTAINED.items():
            print(f"python -m benchmarks.{name}\n    {what}")
        for name, (arguments, what) in WITH_DATA.items():
            print(f"python -m benchmarks.{name} {arguments}".rstrip() + f"\n    {what}")
        return 0
    failed = 0
    for name in SELF_CONTAINED:
        print(f"\n=== {name}", flush=True)
        failed = failed or subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
