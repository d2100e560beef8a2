"""ISACPP on traces of measured pairs: how much of an oracle's gain the predictor gets.

    python -m benchmarks.isacpp_claim --data DIR [--data DIR ...] [--model default|DIR|noisy] [--folds 5]

`--data` are folders of imported tables; they are the ground truth. The oracle is the same policy with the true table.
Only pairs are measured, so sets have two members at most, and every policy is told which pairs there are: another one
has no truth. A model may have learned from these very sets; how many is printed. `--folds K` asks predictors of the same
configuration that were fitted without the pair of models they are asked about (and with the bundled measurements).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.left_out import left_out_predictor
from benchmarks.record import record
from predictor.types import SetPredictor
from profiling.errors import CotenantError
from profiling.workload import ColocationSet, SoloProfile, Workload
from scheduling.beliefs.table import NoisyPredictor, Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.simulator.engine import simulate

# jobs and GPUs; with all jobs within an hour the GPUs are asked for about twice over
SIZES = ((51, 8), (100, 12), (200, 24), (400, 48))
BASELINES = ("exclusive", "blind", "horus", "lucid")
# figure -> the objective that is meant for it: completion times by `jct`, the tail and the end by `makespan`
FIGURES = {"mean_jct_s": "", "p99_jct_s": "-makespan", "makespan_s": "-makespan"}
# ours: with the belief as it is, and with one that learns from the step times it sees
OURS = {"isacpp": "", "online": "-online"}


def traces(table: TablePredictor, device: str, jobs: int, seed: int) -> list[TraceJob]:
    """`jobs` jobs over the workloads of which every pair was measured as often as possible, within an hour."""
    rng = np.random.default_rng(seed)
    workloads = list(measured_workloads(table, device))
    arrival = np.sort(rng.uniform(0, 3600.0, jobs))
    duration = rng.lognormal(np.log(1800.0), 0.8, jobs)
    picks = rng.integers(0, len(workloads), jobs)
    return [
        TraceJob(
            f"job-{k}",
            workloads[picks[k]],
            float(duration[k]) / table.solo[device, workloads[picks[k]].without_solo()].step_time_s,
            float(arrival[k]),
        )
        for k in range(jobs)
    ]


def measured_workloads(table: TablePredictor, device: str) -> Iterator[Workload]:
    """Those that some pair has, as a user would submit them: with what they did alone."""
    paired = {w for d, members in table.ratios for w in members if d == device}
    for workload in table.workloads(device):
        if workload in paired:
            solo = table.solo[device, workload]
            measured = SoloProfile(
                solo.step_time_s, solo.memory_bytes or None, min(solo.utilization_ratio, 1.0) or None
            )
            yield replace(workload, solo=measured)


def believed(belief: SetPredictor, table: TablePredictor, device: str) -> TablePredictor:
    """What `belief` says of every job and every measured pair of `table`, asked once for all traces.

    A pair that it says does not fit has throughput 0, as one that ran out of memory.
    """
    submitted = {w.without_solo(): w for w in measured_workloads(table, device)}
    alone = belief.predict_arrays([ColocationSet(device, (w,)) for w in submitted.values()])
    solo = {
        (device, plain): Solo(float(step), float(memory), float(use))
        for plain, step, memory, use in zip(
            submitted,
            alone.step_time_s[:, 0],
            alone.memory_bytes[:, 0],
            alone.utilization_ratio[:, 0],
            strict=True,
        )
    }
    pairs = [members for d, members in table.ratios if d == device and len(members) == 2]
    answer = belief.predict_arrays(
        [ColocationSet(device, tuple(submitted[m] for m in members)) for members in pairs]
    )
    ratios = {
        (device, members): tuple(1.0 / slowdown[:2]) if fits else (0.0, 0.0)
        for members, slowdown, fits in zip(pairs, answer.slowdown, answer.fits, strict=True)
    }
    return TablePredictor(solo, ratios)


def run(
    table: TablePredictor, device: str, belief: TablePredictor, jobs: int, gpus: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Every policy on one trace."""
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "node", "count": -(-gpus // 4), "gpus": [{"device": device, "count": 4}]}]}
    )
    trace = traces(table, device, jobs, seed)
    entries: list[tuple[str, str, TablePredictor]] = [(name, name, table) for name in BASELINES]
    for objective in ("", "-makespan"):
        entries.append((f"oracle{objective}", f"isacpp{objective}", table))
        entries += [(f"{o}{objective}", f"isacpp{objective}{suffix}", belief) for o, suffix in OURS.items()]
    return {
        name: simulate(
            trace, cluster, get_policy(policy), SetTruth(SetCache(table)), SetCache(seen)
        ).to_json()
        for name, policy, seen in entries
    }


def gain_shares(results: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds; the oracle's gain over each baseline, and the part of it that the predictor gets.

    `better` is the better of exclusive and blind in each figure.
    """
    mean = {name: {f: float(np.mean([r[name][f] for r in results])) for f in FIGURES} for name in results[0]}
    mean["better"] = {f: min(mean["exclusive"][f], mean["blind"][f]) for f in FIGURES}
    gains: dict[str, dict[str, Any]] = {}
    for base in (*BASELINES, "better"):
        for figure, objective in FIGURES.items():
            oracle = mean[base][figure] - mean["oracle" + objective][figure]
            entry: dict[str, Any] = {"oracle_gain_percent": 100 * oracle / mean[base][figure]}
            for ours in OURS:
                gain = mean[base][figure] - mean[ours + objective][figure]
                entry[f"{ours}_gain_percent"] = 100 * gain / mean[base][figure]
                entry[f"{ours}_share_of_oracle_percent"] = 100 * gain / oracle if oracle > 0 else None
            gains.setdefault(base, {})[figure] = entry
    return {"mean": mean, "gains": gains}


def markdown(figures: dict[str, Any]) -> str:
    """The table of `docs/scheduling.md`.

    The oracle's gain in mean completion time over each baseline; then gains over the better of exclusive and blind in
    mean completion time, p99 and makespan, with the part of the oracle's that ours get.
    """
    lines = [
        "| trace | oracle over " + ", ".join(BASELINES) + " | oracle | " + " | ".join(OURS) + " |",
        "|---" * 5 + "|",
    ]
    for name, report in figures.items():
        if not isinstance(report, dict):
            continue
        gains = report["gains"]
        first = ", ".join(f"{gains[base]['mean_jct_s']['oracle_gain_percent']:.1f}" for base in BASELINES)
        cells = [first, ", ".join(f"{g['oracle_gain_percent']:.1f}" for g in gains["better"].values())]
        for ours in OURS:
            values = ", ".join(f"{g[f'{ours}_gain_percent']:.1f}" for g in gains["better"].values())
            shares = [g[f"{ours}_share_of_oracle_percent"] for g in gains["better"].values()]
            told = ", ".join("-" if share is None else f"{share:.0f}" for share in shares)
            cells.append(f"{values} ({told} %)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def load_tables(data: Path, source: str | None) -> dict[str, tuple[str, TablePredictor, set[str]]]:
    """One table per campaign and device of the folder: the device, the table, the ids of its sets."""
    from datasets.tables import read_table
    from profiling.devices import get_device

    solo, pairs = read_table(data, "solo"), read_table(data, "colocation")
    if source is not None:
        solo, pairs = solo[solo.source == source], pairs[pairs.source == source]
    found = {}
    for (campaign, device), rows in pairs.groupby(["campaign", "device"]):
        alone = solo[(solo.campaign == campaign) & (solo.device == device)]
        memory = {str(device): get_device(str(device)).memory_bytes}
        table = TablePredictor.from_frames(alone, rows, memory)
        found[f"{campaign} {device}"] = (str(device), table, set(rows.set_id.astype(str)))
    return found


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, action="append")
    parser.add_argument("--source")
    parser.add_argument(
        "--model", default="default", help="a predictor, or `noisy` for the table with 30 %% error"
    )
    parser.add_argument("--folds", type=int, default=0, help="ask predictors that never saw the pair")
    parser.add_argument(
        "--table", default="", help="only tables whose name contains this, e.g. `gavel-2020 v100`"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes, smallest first")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--name", default="isacpp_claim", help="name of the file of results")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"model": arguments.model, "left_out_folds": arguments.folds}
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        cases: dict[str, tuple[str, TablePredictor, TablePredictor]] = {}
        for data in arguments.data:
            model, seen = _model(arguments, data, pool)
            for name, (device, table, set_ids) in load_tables(data, arguments.source).items():
                if arguments.table in name:
                    belief = believed(model or NoisyPredictor(table, 0.3, 1), table, device)
                    cases[name] = (device, table, belief)
                    share = len(set_ids & seen) / len(set_ids)
                    figures[f"{name}: part of its sets that the model learned from"] = round(share, 3)
                    print(f"{name}: the model learned from {100 * share:.0f} % of its sets")
        # small traces of all tables first, and written after each size: who stops early has whole rows
        for jobs, gpus in SIZES[: arguments.sizes]:
            for name, (device, table, belief) in cases.items():
                seeds = range(arguments.seeds)
                futures = [pool.submit(run, table, device, belief, jobs, gpus, seed) for seed in seeds]
                report = gain_shares([future.result() for future in futures])
                figures[f"{name}, {jobs} jobs on {gpus} GPUs"] = report
                _print(f"{name}: {jobs} jobs, {gpus} GPUs, {arguments.seeds} seeds", report)
            record(arguments.name, figures)
    print(markdown(figures))


def _model(
    arguments: argparse.Namespace, data: Path, pool: ProcessPoolExecutor
) -> tuple[SetPredictor | None, set[str]]:
    """The predictor to ask (None: noise on the truth), and the ids of the sets that it learned from."""
    if arguments.model == "noisy":
        return None, set()
    from predictor import load_predictor

    try:
        model = load_predictor(arguments.model)
    except CotenantError as error:
        raise SystemExit(f"isacpp_claim: {error.message}") from None
    if arguments.folds:
        return left_out_predictor(arguments.model, data, arguments.folds, pool), set()
    return model, set(model.fitted_.manifest.set_ids)


def _print(title: str, report: dict[str, Any]) -> None:
    print(f"\n{title}")
    for base, gains in report["gains"].items():
        texts = [f"{figure[:-2]} {g['oracle_gain_percent']:+6.1f} %" for figure, g in gains.items()]
        print(f"  oracle's gain over {base:10s} " + "  ".join(texts))
    for name, values in report["mean"].items():
        print(f"  {name:16s} " + "  ".join(f"{f[:-2]} {v:8.0f}" for f, v in values.items()))
    for ours in OURS:
        for base, gains in report["gains"].items():
            shares = [(f[:-2], g[f"{ours}_share_of_oracle_percent"]) for f, g in gains.items()]
            texts = [f"{f} {s:5.0f} %" if s is not None else f"{f}     -" for f, s in shares]
            print(f"  part of it that {ours:6s} gets, {base:10s} " + "  ".join(texts), flush=True)


if __name__ == "__main__":
    main()
