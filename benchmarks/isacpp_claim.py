"""Gain of interference-aware placement on traces of measured pairs, and how much of it each belief achieves.

    python -m benchmarks.isacpp_claim --data DIR [--data DIR ...] [--model default|DIR|noisy] [--folds 5]

`--data` are folders of imported tables, which are the ground truth. Simple rules: whole GPUs (`exclusive`,
`sjf`, `srtf`), blind packing by submission and shortest first, and the same placement with a belief that
ignores interference: every member of every pair keeps .65 of its speed, or the table's mean. The oracle is
the same placement with the true table. Headline figures are gains over the best simple rule for each figure.
Only pairs were measured, so sets have at most two members, and every belief is told which pairs exist.
Beliefs that learn during the run read the jobs' graphs. A model may have been trained on these very sets; the
output says on how many. `--folds K` uses predictors of the same configuration trained without the pair of
models in question (and with the bundled measurements); `--new-models` predicts every job by one that never
saw its model.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, names_of, record_name, run_benchmark
from benchmarks.left_out import left_out_predictor, new_models_predictor
from benchmarks.pair_traces import believed, load_tables, pair_trace
from benchmarks.record import record, record_part
from predictor.examples.featurizer import shared_featurizer
from predictor.gaussian_process.set_process import SetProcess
from predictor.types import SetPredictor
from profiling.ending import end_with_parent
from profiling.errors import InputError
from scheduling.beliefs.constant import ConstantPredictor
from scheduling.beliefs.posterior import PosteriorLearner
from scheduling.beliefs.table import NoisyPredictor, TablePredictor
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.policies import get_policy
from scheduling.policies.online import learning
from scheduling.simulator.engine import simulate

# jobs and GPUs; with all jobs arriving within an hour, the GPUs are oversubscribed about twice
SIZES = ((51, 8), (100, 12), (200, 24), (400, 48))
SIMPLE = ("exclusive", "blind", "sjf", "blind-sjf", "srtf")
PEERS = ("horus", "lucid")
# figure -> the objective meant for it: `jct` for completion times, `makespan` for the tail and the end
FIGURES = {"mean_jct_s": "", "p99_jct_s": "-makespan", "makespan_s": "-makespan"}
# beliefs of `isacpp` -> whether it learns during the run
BELIEFS = {
    "oracle": False,
    "constant": False,
    "mean": False,
    "predictor": False,
    "predictor-online": True,
    "constant-online": True,
    "predictor-exploring": True,
}
# Only on request, with these standard deviations of optimism.
EXPLORING, EXPLORATION = "predictor-exploring", 0.5
ASKED = tuple(name for name in BELIEFS if name != EXPLORING)
CONSTANT = 0.65
# `isacpp` with its default objective should not lose to these on any figure.
FLOOR = ("sjf", "blind-sjf")


def mean_ratio(table: TablePredictor, device: str) -> float:
    """Mean throughput ratio over the members of the device's pairs, without those that ran out of memory."""
    ratios = [min(r, 1.0) for (d, _), pair in table.ratios.items() if d == device for r in pair if r > 0]
    return float(np.mean(ratios))


def run(
    table: TablePredictor,
    device: str,
    belief: TablePredictor,
    jobs: int,
    gpus: int,
    seed: int,
    names: Sequence[str] = ASKED,
    floor: bool = False,
    model: str = "",
) -> dict[str, dict[str, Any]]:
    """Run every simple policy on one trace, and `isacpp` with the beliefs in `names`; with `floor`, no
    `isacpp-makespan`; `model` is the predictor behind `belief`, if it is one."""
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": "node", "count": -(-gpus // 4), "gpus": [{"device": device, "count": 4}]}]}
    )
    trace = pair_trace(table, device, jobs, seed)
    constant = believed(ConstantPredictor(table, CONSTANT), table, device)
    mean = believed(ConstantPredictor(table, mean_ratio(table, device)), table, device)
    beliefs = {"oracle": table, "constant": constant, "mean": mean, "predictor": belief}
    entries = [(name, get_policy(name), table) for name in (*SIMPLE, *PEERS)]
    for objective in ("",) if floor else ("", "-makespan"):
        for name in names:
            policy = get_policy(f"isacpp{objective}")
            if BELIEFS[name]:
                exploration = EXPLORATION if name == EXPLORING else 0.0
                known = _training_sets(model) if model and not name.startswith("constant") else None
                make = partial(
                    PosteriorLearner,
                    exploration=exploration,
                    featurizer=shared_featurizer(),
                    training_sets=known,
                )
                policy = learning(policy, make=make)
            entries.append((name + objective, policy, beliefs[name.rpartition("-")[0] or name]))
    return {
        name: simulate(trace, cluster, policy, SetTruth(SetCache(table)), SetCache(seen)).to_json()
        for name, policy, seen in entries
    }


@cache
def _training_sets(model: str) -> SetProcess | None:
    """The process of a predictor's training sets."""
    from predictor import load_predictor

    return load_predictor(model).fitted_.model.process


def report(results: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds with standard errors, and gains over the best simple rule of each figure.

    `gain_percent` of a belief is its gain over that rule, by the ratio of the means over the seeds, and
    `gain_standard_error` that of this ratio; `over_constant_percent` is the part of the oracle's gain over the
    constant belief that it achieves, None if the oracle gains less than a standard error. `floor_percent` is the gain of `isacpp` with its default objective, on any figure, over the better of
    `FLOOR`.
    """
    figures: dict[str, Any] = {}
    for figure, objective in FIGURES.items():
        values = {name: np.array([r[name][figure] for r in results]) for name in results[0]}
        best = min(SIMPLE, key=lambda name: float(values[name].mean()))
        body: dict[str, Any] = {
            "best_simple": best,
            "mean": {name: float(v.mean()) for name, v in values.items()},
            "standard_error": {name: _error(v) for name, v in values.items()},
            "gain_percent": {},
            "gain_standard_error": {},
            "over_constant_percent": {},
            "floor_percent": {},
        }
        floor = min(float(values[name].mean()) for name in FLOOR)
        for peer in PEERS:
            body["gain_percent"][peer] = 100 * float(1 - values[peer].mean() / values[best].mean())
        names = [name for name in BELIEFS if name in values]
        unknown = np.zeros(len(results))
        over = values.get("constant" + objective, unknown) - values.get("oracle" + objective, unknown)
        for name in names:
            own = values.get(name + objective, values[name])
            body["gain_percent"][name] = 100 * float(1 - own.mean() / values[best].mean())
            body["floor_percent"][name] = 100 * float(1 - values[name].mean() / floor)
            body["gain_standard_error"][name] = 100 * _ratio_error(own, values[best])
            known = {"constant", "oracle"} <= set(names) and len(results) > 1 and over.mean() > _error(over)
            part = float((values["constant" + objective] - own).mean() / over.mean()) if known else 0.0
            body["over_constant_percent"][name] = 100 * part if known else None
        figures[figure] = body
    return figures


def _error(values: np.ndarray[Any, Any]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _ratio_error(over: np.ndarray[Any, Any], under: np.ndarray[Any, Any]) -> float:
    """Standard error of the ratio of the means of paired values, to first order (Cochran, Sampling Techniques, 1977,
    section 2.11)."""
    return _error(over - over.mean() / under.mean() * under) / float(under.mean())


def markdown(figures: dict[str, Any], names: Sequence[str] = ASKED) -> str:
    """The table of `docs/scheduling-results.md`: one line per trace and figure."""
    lines = [
        "| trace | figure | best simple rule | "
        + " | ".join(names)
        + " | of the oracle's gain over the constant |",
        "|---" * (4 + len(names)) + "|",
    ]
    for name, trace in figures.items():
        if not isinstance(trace, dict):
            continue
        for figure, body in trace.items():
            gains = [f"{body['gain_percent'][b]:+.1f} ({body['gain_standard_error'][b]:.1f})" for b in names]
            part = [body["over_constant_percent"].get(b) for b in ("predictor", "predictor-online")]
            told = ", ".join("-" if p is None else f"{p:.0f} %" for p in part)
            control = f"{body['best_simple']} {body['mean'][body['best_simple']]:,.0f} s"
            lines.append(f"| {name} | {figure[:-2]} | {control} | " + " | ".join(gains) + f" | {told} |")
    return "\n".join(lines)


def floor_markdown(figures: dict[str, Any], names: Sequence[str]) -> str:
    """The second table: `isacpp` alone in all three figures, over the better of `FLOOR`."""
    lines = [
        "| trace | " + " | ".join(f"{b}: {', '.join(f[:-2] for f in FIGURES)}" for b in names) + " |",
        "|---" * (1 + len(names)) + "|",
    ]
    for name, trace in figures.items():
        if isinstance(trace, dict):
            cells = [", ".join(f"{trace[f]['floor_percent'][b]:+.1f}" for f in FIGURES) for b in names]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--data", type=Path, required=True, action="append", help="folder of imported tables; repeatable"
    )
    parser.add_argument("--source", help="only sets of this source")
    parser.add_argument(
        "--model", default="default", help="a predictor, or `noisy` for the table with 30 %% error"
    )
    unseen = parser.add_mutually_exclusive_group()
    unseen.add_argument("--folds", type=int, default=0, help="use predictors that never saw the pair")
    unseen.add_argument(
        "--new-models", action="store_true", help="use predictors that never saw the job's model"
    )
    parser.add_argument(
        "--table", default="", help="only tables whose name contains this, e.g. `gavel-2020 v100`"
    )
    parser.add_argument(
        "--beliefs",
        type=names_of(BELIEFS),
        default=list(ASKED),
        help=f"only these; without `predictor` no model is loaded. `{EXPLORING}` is one more",
    )
    parser.add_argument("--floor", action="store_true", help="`isacpp` alone in every figure")
    parser.add_argument("--seeds", type=int, default=5, help="traces of each size (default: %(default)s)")
    parser.add_argument("--sizes", type=int, default=2, help="number of sizes, smallest first")
    parser.add_argument(
        "--jobs",
        type=int,
        choices=[jobs for jobs, _ in SIZES],
        help="only traces of this many jobs; the others keep their figures",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="processes that simulate (default: %(default)s)",
    )
    add_name(parser)
    return parser


def main() -> None:
    """Run and record."""
    parser = _parser()
    arguments = parser.parse_args()
    stem = record_name(
        parser,
        arguments,
        "isacpp_claim",
        "source",
        "model",
        "folds",
        "new_models",
        "table",
        "beliefs",
        "floor",
    )
    names = [name for name in BELIEFS if name in arguments.beliefs]
    if not any(name.startswith("predictor") for name in names):
        arguments.model = "none"
    figures: dict[str, Any] = {
        "model": arguments.model, "left_out_folds": arguments.folds, "new_models": arguments.new_models,
    }  # fmt: skip
    sizes = SIZES[: arguments.sizes]
    if arguments.jobs:
        sizes = tuple(size for size in SIZES if size[0] == arguments.jobs)
    with ProcessPoolExecutor(arguments.workers, get_context("spawn"), end_with_parent) as pool:
        cases: dict[str, tuple[str, TablePredictor, TablePredictor]] = {}
        for data in arguments.data:
            model, seen = _model(arguments, data, pool)
            for name, (device, table, set_ids) in load_tables(data, arguments.source).items():
                if arguments.table in name:
                    own = model or NoisyPredictor(table, 0.3, 1)
                    belief = table if arguments.model == "none" else believed(own, table, device)
                    cases[name] = (device, table, belief)
                    share = len(set_ids & seen) / len(set_ids)
                    figures[f"{name}: part of its sets that the model learned from"] = round(share, 3)
                    print(f"{name}: the model learned from {100 * share:.0f} % of its sets")
        if not cases:
            raise InputError(
                "no table of that name", expected="part of `CAMPAIGN DEVICE`", got=arguments.table
            )
        several = arguments.folds or arguments.new_models or arguments.model in ("noisy", "none")
        behind = "" if several else arguments.model
        # small traces of all tables first, recorded after each, so that an early stop leaves complete rows
        for jobs, gpus in sizes:
            for name, (device, table, belief) in cases.items():
                seeds = range(arguments.seeds)
                futures = [
                    pool.submit(run, table, device, belief, jobs, gpus, seed, names, arguments.floor, behind)
                    for seed in seeds
                ]
                figures[f"{name}, {jobs} jobs on {gpus} GPUs"] = body = report([f.result() for f in futures])
                _print(f"{name}: {jobs} jobs, {gpus} GPUs, {arguments.seeds} seeds", body)
                (record_part if arguments.jobs else record)(stem, figures)
    print(markdown(figures, names))
    print(floor_markdown(figures, names))


def _model(
    arguments: argparse.Namespace, data: Path, pool: ProcessPoolExecutor
) -> tuple[SetPredictor | None, set[str]]:
    """The predictor to query (None: the truth with noise), and the ids of the sets in its training data."""
    if arguments.model in ("noisy", "none"):
        return None, set()
    from predictor import load_predictor

    model = load_predictor(arguments.model)
    if arguments.new_models:
        return new_models_predictor(arguments.model, data, pool), set()
    if arguments.folds:
        return left_out_predictor(arguments.model, data, arguments.folds, pool), set()
    return model, set(model.fitted_.manifest.set_ids)


def _print(title: str, figures: dict[str, Any]) -> None:
    print(f"\n{title}")
    for figure, body in figures.items():
        best = body["best_simple"]
        print(f"  {figure}: best simple rule {best}, {body['mean'][best]:.0f} s")
        for name in body["gain_percent"]:
            part = body["over_constant_percent"].get(name)
            if name in PEERS:
                continue
            print(
                f"    {name:16s} {body['gain_percent'][name]:+6.1f} % ({body['gain_standard_error'][name]:.1f})"
                + ("" if part is None else f", {part:.0f} % of the oracle's gain over the constant"),
                flush=True,
            )


if __name__ == "__main__":
    run_benchmark(__file__, main)
