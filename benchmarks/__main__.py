"""`python -m benchmarks`: run the benchmarks that need no outside data; `--list` lists all instead."""

from __future__ import annotations

import argparse
import subprocess
import sys

from profiling.command_line import errors_as_lines

# Name -> what it measures.
SELF_CONTAINED = {
    "predict": "speed of predictions",
    "kept_memory": "effect of keeping freed memory on large calls",
    "capture": "time and memory of captures, up to 100,000 operators",
    "graph_dataset": "loading 5,000 co-location sets with their graphs",
    "kill_campaign": "no measurement lost when a campaign is killed 200 times",
    "serve_kill": "no write lost when the service is killed",
    "placement": "one job among 10,000 GPUs, and 100 jobs on 100 GPUs",
    "decision": "one placement decision after one change of the cluster",
    "queue_order": "queue orders for ISACPP, on synthetic pairs",
    "slices_plan": "time to plan MIG slices",
    "rings": "schedulers for ring-all-reduce jobs on the paper's mix",
    "icefrog_training": "real trainings that freeze layers by their gradient norms",
    "learning": "cost of an observation and of a corrected prediction",
    "pipeline_training": "a model trained in two processes compared with one",
    "pipeline_steps": "planned pipeline steps against measured ones",
    "plausibility": "predicted throughputs against published ones",
    "pollux_sizes": "loss of Pollux's allocation over powers of two",
}
# Run individually, because they need other measurements, another program, or root.
# Name -> arguments and what else it needs, then what it measures.
WITH_DATA = {
    "protocols": ("TABLES", "the evaluation protocols on imported tables"),
    "ablation": ("TABLES", "contribution of each part of the predictor"),
    "pretraining": ("TABLES", "an encoder that first learned step times of a thousand other networks"),
    "solo_utilization": ("TABLES", "utilisation of jobs alone, from their graphs"),
    "utilization_forest": ("TABLES", "accuracy of the utilisation teacher on unseen models"),
    "isacpp_claim": (
        "--data TABLES [--folds 5 | --new-models]",
        "the placement policy against an oracle on measured pairs",
    ),
    "sia": ("--data CLONE", "Sia's workloads against published figures"),
    "slices_simulation": ("--data MISO", "simulated MISO controllers against their reference runs"),
    "policies": (
        "--data TABLES",
        "every policy on the same traces: rigid, elastic and tunable jobs",
    ),
    "realism": ("--data TABLES", "effect of each realistic disturbance on the policies"),
    "philly": ("--data TABLES --trace CSV", "the Philly trace of 82,000 jobs on 2,000 GPUs"),
    "layer_throughput": ("--data CLONE", "step time and memory of jobs with frozen layers"),
    "icefrog_simulation": ("--trace CSV", "scheduling with layer freezing on the Philly trace"),
    "pipeline": ("--profiles CLONE", "pipeline plans of PipeDream's profiles, and the time to make them"),
    "gavel": ("--data SIA", "Gavel as Sia's artifact runs it"),
    "observed_alone": ("--data TABLES", "sets before and after each job was observed alone"),
    "observed_sets": ("--data TABLES", "intervals as more and more sets of a campaign are observed"),
    "synthetic_triples": ("", "sets of two and three on synthetic clusters as some are observed"),
    "new_job": ("--data TABLES", "what a few sets of a new job tell among thousands of others"),
    "sharing_sums": ("--data TABLES", "measured and predicted total speed by sharing mode"),
    "occupancy": ("--data TABLES", "predicted and measured occupancy of operators"),
    "memory_constants": ("--data TABLES", "constants of the memory model, and their errors"),
    "residuals": ("--data TABLES", "whether trees can predict the cost model's errors"),
    "graph_correction": ("--data TABLES", "the cost model with and without graph networks"),
    "learning_stream": (
        "plan PLAN | replay TABLES",
        "the posterior on a stream of pairs measured on one core",
    ),
    "graph_agreement": ("--data TABLES", "stored graphs against published figures"),
    "member_scale": ("TABLES", "scale of distances between jobs"),
    "slices_measured": ("--data TABLES", "plans of MIG slices against the measured best"),
    "share_mixes": ("--data TABLES", "predicted and measured steps of mixes under SM shares"),
    "serve": ("", "the service under load, with wrk"),
    "siege": ("", "the service under attack"),
    "overload": ("", "the service at twice its rated load, with wrk"),
    "refusals": ("", "cost of refusing a request, with wrk"),
    "fuzz": ("", "fuzzing from the OpenAPI document, with Schemathesis"),
    "stored": ("", "placements on the stored cluster of a service"),
    "campaign_on_ray": ("", "a campaign on three Ray nodes, with the extra `ray`"),
    "sweep_on_ray": ("", "a sweep of simulations on three Ray nodes, with the extra `ray`"),
    "ray_integration": ("--service URL", "placements from Ray, with the extra `ray`"),
    "kubernetes_integration": ("", "where a real Kubernetes scheduler puts pods"),
    "slurm_integration": ("", "where a real Slurm puts jobs; as root"),
    "reality": (
        "pairs|run POLICY|compare",
        "zoo jobs on a real Slurm compared with their simulation; as root",
    ),
    "ring_link": ("", "rings over real shared links; as root"),
}


def main() -> int:
    """Run the self-contained benchmarks in turn; the first failure sets the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list all benchmarks and exit")
    if parser.parse_args().list:
        for name, what in SELF_CONTAINED.items():
            print(f"python -m benchmarks.{name}\n    {what}")
        for name, (arguments, what) in WITH_DATA.items():
            print(f"python -m benchmarks.{name} {arguments}".rstrip() + f"\n    {what}")
        return 0
    failed = 0
    for name in SELF_CONTAINED:
        print(f"\n=== {name}", flush=True)
        ended = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
        failed = failed or ended
    return failed


if __name__ == "__main__":
    with errors_as_lines("benchmarks"):
        raise SystemExit(main())
