"""Six real trainings on a CPU that freeze a prefix by their own gradient norms, compared with no freezing.

`python -m benchmarks.icefrog_training [--seeds 5] [--only vit-digits ...]` writes accuracy, time (processor
time of one thread, which equals wall time on an idle machine) and penalties to
`benchmarks/results/icefrog_training.json`, a plot next to it, and the norm curves that
`benchmarks.icefrog_simulation` reads to `scheduling/elastic/gradient_norms.json`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.command_line import benchmark_parser, run_benchmark, several
from benchmarks.icefrog_tasks import UNMEASURED, Run, Task, digits, pretrained_text, text
from benchmarks.icefrog_transformers import gpt, vit
from benchmarks.record import RESULTS, record, record_part, stored_figures
from profiling.files import read_json, write_json
from scheduling.elastic.controller import FreezingController
from scheduling.elastic.curves import NORM_CURVES
from scheduling.elastic.penalty import FreezingGuards
from scheduling.elastic.tracker import GradientNormTracker

TASKS: dict[str, Callable[[], Task]] = {
    "cnn-digits": digits,
    "lstm-scratch": partial(text, fine_tuned=False),
    "lstm-fine-tuned": partial(text, fine_tuned=True),
    "lstm-pretrained": pretrained_text,
    "vit-digits": vit,
    "gpt-fine-tuned": gpt,
}
GRID = np.linspace(0.0, 1.0, 21)
KAPPAS = (1.0, 1.5, 2.0, 3.0)


def prefix_throughput(task: Task) -> np.ndarray:
    """[L] samples/s with each frozen prefix: medians of timed steps of a disposable copy."""
    run = Run.start(task, 0)
    speeds = []
    for prefix in range(len(run.layers)):
        run.tracker.freeze(prefix)
        times = []
        for _ in range(12):
            begin = time.process_time()
            run.step(0.5)
            times.append(time.process_time() - begin)
        speeds.append(task.batch_size / float(np.median(times[2:])))
    return np.maximum.accumulate(np.array(speeds))


def train(task: Task, seed: int, speeds: np.ndarray, guards: FreezingGuards | None) -> dict[str, Any]:
    """Train to effective progress 1; without guards, nothing is frozen and no gradient norms are measured."""
    run = Run.start(task, seed, measure=guards is not None)
    controller = FreezingController(speeds, task.iterations, guards or FreezingGuards())
    prefixes: list[int] = []
    step_s: list[float] = []
    iterations = 0
    while controller.progress < 1.0 - 1e-9 and iterations < 2 * task.iterations:
        begin = time.process_time()
        run.step(controller.progress)
        iterations += 1
        if guards is None:
            controller.progress = iterations / task.iterations
        else:
            norm_shares = run.tracker.norm_shares
            controller.advance(1.0, norm_shares)
            if iterations % 10 == 0:
                prefix = controller.decide(run.tracker.freezable_shares)
                if prefix != run.tracker.frozen_prefix:
                    run.tracker.freeze(prefix)
        step_s.append(time.process_time() - begin)
        prefixes.append(run.tracker.frozen_prefix)
    return {
        "seed": seed,
        "seconds": undisturbed_s(np.array(step_s), np.array(prefixes)),
        "seconds_as_measured": float(np.sum(step_s)),
        "accuracy_percent": run.accuracy(),
        "iterations": iterations,
        "debt": controller.debt,
        "expected_seconds": float(np.sum(task.batch_size / speeds[prefixes])),
        "mean_frozen_prefix": float(np.mean(prefixes)),
        "prefix_changes": int(np.sum(np.diff(prefixes) != 0)),
    }


def undisturbed_s(step_s: np.ndarray, prefixes: np.ndarray) -> float:
    """Sum of step times, each clipped to twice the median of its prefix to exclude other load on the
    machine."""
    total = 0.0
    for prefix in np.unique(prefixes):
        own = step_s[prefixes == prefix]
        total += float(np.minimum(own, 2.0 * np.median(own)).sum())
    return total


def norm_curve(task: Task, seed: int) -> np.ndarray:
    """[2, 21, L + 1] S_k of an unfrozen training run on a grid of progress, and whether each prefix had
    settled (0 or 1)."""
    run = Run.start(task, seed)
    shares, settled = [], []
    for iteration in range(task.iterations):
        run.step(iteration / task.iterations)
        shares.append(run.tracker.norm_shares)
        settled.append(run.tracker.settled.astype(float))
    at = np.arange(1, task.iterations + 1) / task.iterations
    return np.array(
        [[np.interp(GRID, at, column) for column in np.array(rows).T] for rows in (shares, settled)]
    ).transpose(0, 2, 1)


def real_penalties(task: Task, seed: int, horizon: int) -> list[dict[str, float]]:
    """Measured loss of progress by freezing: 1 - (decrease of the loss when frozen) / (when unfrozen), same
    batches."""
    rows = []
    run = Run.start(task, 1000 + seed)
    marks = [int(task.iterations * p) for p in (0.15, 0.3, 0.5)]
    for iteration in range(max(marks) + 1):
        if iteration in marks:
            progress = iteration / task.iterations
            before, state = run.loss(), run.order.get_state()
            shares = run.tracker.norm_shares
            falls = []
            for prefix in range(len(run.layers)):
                branch = Run(task, *_copied(run), GradientNormTracker([nn.Identity()]), torch.Generator())
                branch.order.set_state(state)
                branch.tracker = GradientNormTracker(branch.layers, UNMEASURED)
                branch.tracker.freeze(prefix)
                for _ in range(horizon):
                    branch.step(progress)
                falls.append(before - branch.loss())
            if falls[0] > 0:
                rows += [
                    {
                        "progress": progress,
                        "frozen_prefix": k,
                        "norm_share": float(shares[k]),
                        "penalty": 1.0 - falls[k] / falls[0],
                    }
                    for k in range(1, len(falls))
                ]
        run.step(iteration / task.iterations)
    return rows


def _copied(run: Run) -> tuple[nn.Module, list[nn.Module], torch.optim.Optimizer]:
    model, layers = run.task.build()
    model.load_state_dict(copy.deepcopy(run.model.state_dict()))
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=run.task.learning_rate)
    optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    return model, layers, optimizer


def compared(task: Task, plain: list[dict[str, Any]], frozen: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy and time of trainings that freeze layers against those that do not."""
    base, ice = (np.array([r["accuracy_percent"] for r in runs]) for runs in (plain, frozen))

    def saved_percent(key: str) -> float:
        fast_s, slow_s = (np.sum([r[key] for r in runs]) for runs in (frozen, plain))
        return round(100.0 * float(1.0 - fast_s / slow_s), 2)

    more = float(np.mean([r["iterations"] for r in frozen])) / task.iterations - 1.0
    return {
        "accuracy_unfrozen_percent": [round(float(base.mean()), 3), round(float(base.std(ddof=1)), 3)],
        "accuracy_icefrog_percent": [round(float(ice.mean()), 3), round(float(ice.std(ddof=1)), 3)],
        "accuracy_difference_points": round(float((ice - base).mean()), 3),
        "time_saved_percent": saved_percent("seconds"),
        "time_saved_by_prefix_speedups_percent": saved_percent("expected_seconds"),
        "iterations_more_percent": round(100.0 * more, 2),
    }


def penalty_fit(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Exponent that fits the measured penalties, clipped to 0..1, best by least squares; mean errors of `KAPPAS`."""
    share = np.array([r["norm_share"] for r in rows])
    real = np.clip([r["penalty"] for r in rows], 0.0, 1.0)
    grid = np.arange(0.5, 6.01, 0.05)
    return {
        "fitted_kappa": float(grid[int(np.argmin([np.mean((share**k - real) ** 2) for k in grid]))]),
        "penalty_mean_error_by_kappa": {f"{k:g}": round(float(np.mean(share**k - real)), 4) for k in KAPPAS},
    }


def plot(penalties: dict[str, list[dict[str, float]]], curves: dict[str, Any]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    line = np.linspace(0, 1, 50)
    for kappa in KAPPAS:
        axes[0].plot(line, line**kappa, lw=0.8, label=f"S^{kappa:g}")
    for name, rows in penalties.items():
        axes[0].scatter([r["norm_share"] for r in rows], [r["penalty"] for r in rows], s=9, label=name)
        shares = np.array(curves[name]["norm_shares"])
        axes[1].plot(np.linspace(0, 1, shares.shape[1]), shares[[4, 10, 18]].T, lw=0.7)
        axes[1].plot(np.linspace(0, 1, shares.shape[1]), shares.mean(0), lw=2, label=name)
    axes[0].set(
        xlabel="share of squared gradient norm in the prefix, S", ylabel="progress lost", ylim=(-0.5, 1.5)
    )
    axes[1].set(xlabel="frozen share of layers, k / L", ylabel="S (mean, and at progress 0.2, 0.5, 0.9)")
    for axis in axes:
        axis.legend(fontsize=7)
    path = RESULTS / "icefrog_training.svg"
    path.parent.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    return path


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--seeds", type=several, default=5, help="trainings of each task (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=TASKS, help="only these; the others keep their figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    penalties: dict[str, list[dict[str, float]]] = {}
    for name in options.only or TASKS:
        task = TASKS[name]()
        speeds = prefix_throughput(task)
        plain, frozen = [], []
        for seed in range(options.seeds):  # interleaved, so that other load slows both alike
            plain.append(train(task, seed, speeds, None))
            frozen.append(train(task, seed, speeds, FreezingGuards()))
        shares, settled = np.mean([norm_curve(task, seed) for seed in range(options.seeds)], axis=0)
        curves[task.name] = {
            "layers": shares.shape[1] - 1,
            "norm_shares": np.round(shares, 6).tolist(),
            "settled_ratio": np.round(settled, 3).tolist(),
        }
        horizon = task.iterations // 10
        penalties[task.name] = [
            row for seed in range(min(3, options.seeds)) for row in real_penalties(task, seed, horizon)
        ]
        figures[task.name] = {
            "train_samples": len(task.data[0]),
            "test_samples": len(task.data[2]),
            "prefix_speedup": np.round(speeds / speeds[0], 3).tolist(),
            **compared(task, plain, frozen),
            **penalty_fit(penalties[task.name]),
            "runs": {"unfrozen": plain, "icefrog": frozen},
            "penalties": penalties[task.name],
        }
        print({k: v for k, v in figures[task.name].items() if k not in ("runs", "penalties")})
    if options.only:  # read as late as possible, because two of these may run at the same time
        stored = stored_figures("icefrog_training")
        curves = read_json(NORM_CURVES)["curves"] | curves
        penalties = {name: figure["penalties"] for name, figure in stored.items()} | penalties
    write_json(NORM_CURVES, {"progress": np.round(GRID, 3).tolist(), "curves": curves})
    print(f"picture: {plot(penalties, curves).name}; curves: {NORM_CURVES.name}")
    (record_part if options.only else record)("icefrog_training", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
