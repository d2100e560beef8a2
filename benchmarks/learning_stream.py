"""Learning during use, measured for real: a stream of random pairs of zoo models on one CPU core.

    python -m benchmarks.learning_stream plan plan.json
    cotenant campaign run plan.json -o stream && cotenant campaign export stream -o stream-tables
    python -m benchmarks.learning_stream replay stream-tables

`replay` predicts each of the 60 sets, in the order of the plan, before observing both members' step times. It
uses the shipped predictor, which was trained on these networks on a core of another machine at other batch
sizes; of the jobs in the stream it knows only the graphs. `benchmarks/results/learning_stream/` gets the
tables, their data card and a plot of the error by number of observed sets, with and without observations.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.observed_sets import ERROR, by_block, streamed
from benchmarks.record import RESULTS, record

SETS, SEED, WINDOW = 60, 0, 10
JOBS = (
    "resnet18-cifar:batch_size=8",
    "vgg11-cifar:batch_size=8",
    "mobilenetv2-cifar:batch_size=4",
    "efficientnetb0-cifar:batch_size=4",
    "mobilenetv3small-imagenet:batch_size=4",
    "shufflenetv2-imagenet:batch_size=4",
    "lstm-wikitext2:batch_size=4",
    "transformer-multi30k:batch_size=4,sequence_length=12",
    "neumf-ml1m:batch_size=256",
    "autoencoder-ml20m:batch_size=32",
    "pointnet-2500:batch_size=4",
    "dcgan-64:batch_size=4",
)
NAME = "learning_stream"
TABLES = ("colocation.parquet", "CARD.md")


def make_plan(path: Path) -> None:
    """Write the plan of the stream: distinct random pairs in random order."""
    from profiling.campaign.plan import CampaignPlan, PlannedRun
    from profiling.measure.request import RunRequest
    from profiling.measure.settings import MeasureSettings
    from profiling.workload import Workload

    rng = np.random.default_rng(SEED)
    pairs = [(i, j) for i in range(len(JOBS)) for j in range(i)]
    chosen = rng.permutation(len(pairs))[:SETS]
    runs = tuple(
        PlannedRun(
            RunRequest("colocation", tuple(Workload.parse(JOBS[k]) for k in pairs[number])), 12.0, "stream"
        )
        for number in chosen
    )
    settings = MeasureSettings(repeats=3, window_s=0.6, alone_window_s=0.2, min_steps=3, max_warmup_s=5.0)
    print(CampaignPlan(NAME.replace("_", "-"), "cpu", runs, settings).save(path))


def replay(tables: Path, plan: Path) -> dict[str, Any]:
    """Predict, then observe, set by set; mean absolute errors of step times with and without previous
    observations, and their intervals."""
    import pandas as pd

    from predictor import load_predictor
    from profiling.campaign.plan import CampaignPlan
    from profiling.workload import ColocationSet, Workload

    predictor = load_predictor()
    rows = pd.read_parquet(tables / "colocation.parquet").sort_values(["set_id", "member"])
    by_jobs = {tuple(as_planned(w) for w in part["workload"]): part for _, part in rows.groupby("set_id")}
    sets, skipped = [], 0
    for run in CampaignPlan.load(plan).runs:
        names = tuple(str(w) for w in run.request.workloads)
        part = by_jobs.get(names, by_jobs.get(names[::-1]))
        if part is None or part["step_time_s"].isna().any():
            skipped += 1
            continue
        asked = ColocationSet("cpu", tuple(Workload.parse(w) for w in part["workload"]))
        sets.append((asked, part["step_time_s"].to_numpy(dtype=float)))
    seen = streamed(predictor, sets)
    return {
        "model": predictor.version,
        "sets": len(sets),
        "sets_without_measurement": skipped,
        "jobs": list(JOBS),
        "by_ten_sets": {
            way: by_block([members[k : k + WINDOW] for k in range(0, len(sets), WINDOW)])
            for way, members in seen.items()
        },
        "log_errors": {
            way: [float(np.mean([member[ERROR] for member in one])) for one in members]
            for way, members in seen.items()
        },
    }


def as_planned(spec: str) -> str:
    """A measured job as the plan names it: rows say that the batch stayed on the device, plans do not."""
    from profiling.workload import Workload

    return str(replace(Workload.parse(spec), data_on_device=False))


def plot(figures: dict[str, Any], path: Path) -> None:
    """Mean error of the last ten sets by number of observed sets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    labels = {"alone": "predictor alone", "observed": "corrected by earlier observations"}
    for name, values in figures["log_errors"].items():
        rolling = [np.mean(values[max(0, k - WINDOW + 1) : k + 1]) for k in range(len(values))]
        axes.plot(range(1, len(values) + 1), [100 * (math.exp(v) - 1) for v in rolling], label=labels[name])
        axes.scatter(range(1, len(values) + 1), [100 * (math.exp(v) - 1) for v in values], s=6, alpha=0.4)
    axes.set(
        xlabel="sets observed",
        ylabel=f"error of the step time, % (mean of {WINDOW} sets)",
        ylim=(0, None),
        title="One CPU core, 12 models",
    )
    axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    planned = commands.add_parser("plan", help="write the stream's plan")
    planned.add_argument("path", type=Path, help="file to write")
    replayed = commands.add_parser("replay", help="predict and observe the measurements")
    replayed.add_argument(
        "tables",
        type=Path,
        nargs="?",
        default=RESULTS / NAME,
        help="folder of the measured tables (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.command == "plan":
        make_plan(arguments.path)
        return
    folder = RESULTS / NAME
    folder.mkdir(exist_ok=True)
    if arguments.tables.resolve() != folder.resolve():
        for name in TABLES:
            shutil.copy(arguments.tables / name, folder / name)
    make_plan(folder / "plan.json")
    figures = replay(folder, folder / "plan.json")
    plot(figures, folder / "error.svg")
    print(figures["by_ten_sets"])
    record(NAME, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
