"""ISACPP on traces of measured pairs: how much of an oracle's gain the predictor gets.

    python -m benchmarks.isacpp_claim --data DIR [--source lucid|gavel] [--model default] [--seeds 5]

`--data` is a folder of imported tables; they are the ground truth. The oracle is the same policy with the true table.
Only pairs are measured, so sets have two members at most.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import record
from profiling.errors import CotenantError
from profiling.workload import SoloProfile, Workload
from scheduling.policies import get_policy
from scheduling.policies.api import Policy
from scheduling.sets import SetCache
from scheduling.simulator.engine import simulate
from scheduling.simulator.job import Job
from scheduling.simulator.truth import SetTruth
from scheduling.snapshot import ClusterSnapshot
from scheduling.table import NoisyPredictor, TablePredictor

# jobs and GPUs; with all jobs within an hour the GPUs are asked for about twice over
SIZES = ((51, 8), (100, 12), (200, 24), (400, 48))
BASELINES = ("exclusive", "blind", "horus", "lucid")
# figure -> the objective that is meant for it: completion times by `jct`, the tail and the end by `makespan`
FIGURES = {"mean_jct_s": "", "p99_jct_s": "-makespan", "makespan_s": "-makespan"}


def traces(table: TablePredictor, device: str, jobs: int, seed: int) -> list[Job]:
    """`jobs` jobs over the workloads of which every pair was measured as often as possible, within an hour."""
    rng = np.random.default_rng(seed)
    workloads = [with_solo(table, device, w) for w in table.workloads(device) if _measured(table, device, w)]
    arrival = np.sort(rng.uniform(0, 3600.0, jobs))
    duration = rng.lognormal(np.log(1800.0), 0.8, jobs)
    picks = rng.integers(0, len(workloads), jobs)
    return [
        Job(
            f"job-{k}",
            workloads[picks[k]],
            float(duration[k]) / table.solo[device, workloads[picks[k]].without_solo()].step_time_s,
            float(arrival[k]),
        )
        for k in range(jobs)
    ]


def _measured(table: TablePredictor, device: str, workload: Workload) -> bool:
    return any(d == device and workload in members for d, members in table.ratios)


def with_solo(table: TablePredictor, device: str, workload: Workload) -> Workload:
    """The workload as a user would submit it: with what it did alone."""
    solo = table.solo[device, workload]
    return replace(
        workload,
        solo=SoloProfile(
            solo.step_time_s, solo.memory_bytes or None, min(solo.utilization_ratio, 1.0) or None
        ),
    )


def run(
    table: TablePredictor, device: str, belief: Any, jobs: list[Job], gpus: int
) -> dict[str, dict[str, Any]]:
    """Every policy on one trace."""
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "node", "count": -(-gpus // 4), "gpus": [{"device": device, "count": 4}]}]}
    )
    found = {}
    isacpp = get_policy("isacpp")
    entries: list[tuple[str, Policy, Any]] = [(name, get_policy(name), table) for name in BASELINES]
    entries += [("oracle", isacpp, table), ("isacpp", isacpp, belief)]
    makespan = get_policy("isacpp-makespan")
    entries += [("oracle-makespan", makespan, table), ("isacpp-makespan", makespan, belief)]
    for name, policy, seen in entries:
        truth = SetTruth(SetCache(table))
        found[name] = simulate(jobs, cluster, policy, truth, SetCache(seen)).to_json()
    return found


def gain_shares(results: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds; the oracle's gain over each baseline, and the part of it that the predictor gets."""
    mean = {name: {f: float(np.mean([r[name][f] for r in results])) for f in FIGURES} for name in results[0]}
    gains: dict[str, dict[str, Any]] = {}
    for base in BASELINES:
        for figure, objective in FIGURES.items():
            oracle = mean[base][figure] - mean["oracle" + objective][figure]
            ours = mean[base][figure] - mean["isacpp" + objective][figure]
            gains.setdefault(base, {})[figure] = {
                "oracle_gain_percent": 100 * oracle / mean[base][figure],
                "isacpp_gain_percent": 100 * ours / mean[base][figure],
                "share_of_oracle_percent": 100 * ours / oracle if oracle > 0 else None,
            }
    return {"mean": mean, "gains": gains}


def load_tables(data: Path, source: str | None) -> dict[str, tuple[str, TablePredictor]]:
    """One table per campaign and device of the folder."""
    from datasets.tables import read_table
    from profiling.devices import get_device

    solo, pairs = read_table(data, "solo"), read_table(data, "colocation")
    if source is not None:
        solo, pairs = solo[solo.source == source], pairs[pairs.source == source]
    found = {}
    for (campaign, device), rows in pairs.groupby(["campaign", "device"]):
        alone = solo[(solo.campaign == campaign) & (solo.device == device)]
        memory = {str(device): get_device(str(device)).memory_bytes}
        found[f"{campaign} {device}"] = (str(device), TablePredictor.from_frames(alone, rows, memory))
    return found


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--source")
    parser.add_argument(
        "--model", default="default", help="a predictor, or `noisy` for the table with 30 %% error"
    )
    parser.add_argument(
        "--table", default="", help="only tables whose name contains this, e.g. `gavel-2020 v100`"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes, smallest first")
    parser.add_argument("--name", default="isacpp_claim", help="name of the file of results")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"model": arguments.model}
    for name, (device, table) in load_tables(arguments.data, arguments.source).items():
        if arguments.table not in name:
            continue
        belief: Any
        if arguments.model == "noisy":
            belief = NoisyPredictor(table, 0.3, 1)
        else:
            from predictor import load_predictor

            try:
                belief = load_predictor(arguments.model)
            except CotenantError as error:
                raise SystemExit(f"isacpp_claim: {error.message}") from None
        for jobs, gpus in SIZES[: arguments.sizes]:
            results = [
                run(table, device, belief, traces(table, device, jobs, seed), gpus)
                for seed in range(arguments.seeds)
            ]
            figures[f"{name}, {jobs} jobs on {gpus} GPUs"] = report = gain_shares(results)
            _print(f"{name}: {jobs} jobs, {gpus} GPUs, {arguments.seeds} seeds", report)
    record(arguments.name, figures)


def _print(title: str, report: dict[str, Any]) -> None:
    print(f"\n{title}")
    for base in BASELINES:
        texts = [
            f"{figure[:-2]} {g['oracle_gain_percent']:+6.1f} %" for figure, g in report["gains"][base].items()
        ]
        print(f"  oracle's gain over {base:10s} " + "  ".join(texts))
    for name, values in report["mean"].items():
        print(f"  {name:10s} " + "  ".join(f"{f[:-2]} {v:8.0f}" for f, v in values.items()))
    for base in BASELINES:
        texts = [
            f"{figure[:-2]} {g['share_of_oracle_percent']:5.0f} %"
            if g["share_of_oracle_percent"] is not None
            else f"{figure[:-2]}     -"
            for figure, g in report["gains"][base].items()
        ]
        print(f"  share of it that the predictor gets, {base:10s} " + "  ".join(texts), flush=True)


if __name__ == "__main__":
    main()
