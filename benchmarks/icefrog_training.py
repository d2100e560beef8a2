"""Three real trainings on a CPU whose prefix is frozen by their own gradient norms, against the same without freezing.

`python -m benchmarks.icefrog_training [--seeds 5]` writes accuracy, time (of the processor, one thread: what the wall
shows on an idle machine) and penalties to
`benchmarks/results/icefrog_training.json`, a picture beside it, and the norm curves that
`benchmarks.icefrog_simulation` reads to `benchmarks/inputs/gradient_norms.json`.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.record import RESULTS, record
from profiling.files import write_json
from scheduling.elastic.controller import FreezingController
from scheduling.elastic.penalty import FreezingGuards
from scheduling.elastic.tracker import GradientNormTracker, TrackerConfig

CURVES = Path(__file__).parent / "inputs" / "gradient_norms.json"
GRID = np.linspace(0.0, 1.0, 21)
KAPPAS = (1.0, 1.5, 2.0, 3.0)
UNMEASURED = TrackerConfig(measure_every=10**9, probe_every=10**9)


@dataclass(frozen=True)
class Task:
    """A small training: `layers` are the atomic layers of `model` in order."""

    name: str
    build: Callable[[], tuple[nn.Module, list[nn.Module]]]
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    batch_size: int
    iterations: int
    learning_rate: float


class CharLSTM(nn.Module):
    """Characters to a class: embedding, three LSTM layers, linear."""

    def __init__(self, characters: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.recurrent = nn.ModuleList(
            nn.LSTM(32 if i == 0 else hidden, hidden, batch_first=True) for i in range(3)
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embedding(text)
        for layer in self.recurrent:
            x, _ = layer(x)
        return self.head(x.mean(1))


def digits() -> Task:
    """The 1,797 digits of scikit-learn, a quarter of them held out."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x.reshape(-1, 1, 8, 8) / 16.0, y, test_size=0.25, random_state=0, stratify=y)
    x_train, x_test, y_train, y_test = parts

    def build() -> tuple[nn.Module, list[nn.Module]]:
        sizes = [1, 32, 32, 64, 64, 96, 96]
        blocks: list[nn.Module] = [
            nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1, stride=2 if i in (2, 4) else 1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(),
            )
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]
        head = nn.Linear(96, 10)
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head), [*blocks, head]

    data = (
        torch.tensor(x_train, dtype=torch.float32),
        torch.tensor(y_train),
        torch.tensor(x_test, dtype=torch.float32),
        torch.tensor(y_test),
    )
    return Task("cnn-digits", build, data, batch_size=64, iterations=420, learning_rate=2e-3)


CHARACTERS, LANGUAGES, LINE = 20, 8, 32


def lines(seed: int, counts: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Lines of 32 characters in eight languages, and which one each is in; a language is a random chain.

    All languages of all seeds share a part of their chains, as natural ones share letters and sounds.
    """
    base = np.random.default_rng(7).dirichlet(np.full(CHARACTERS, 1.0), size=CHARACTERS)
    generator = np.random.default_rng(seed)
    own = generator.dirichlet(np.full(CHARACTERS, 0.3), size=(LANGUAGES, CHARACTERS))
    table = np.cumsum(0.25 * base + 0.75 * own, axis=2)
    parts: list[torch.Tensor] = []
    for count in counts:
        labels = generator.integers(LANGUAGES, size=count)
        current = generator.integers(CHARACTERS, size=count)
        written = [current]
        for draw in generator.random((LINE - 1, count)):
            current = np.minimum((table[labels, current] < draw[:, None]).sum(1), CHARACTERS - 1)
            written.append(current)
        parts += [torch.tensor(np.stack(written, axis=1)), torch.tensor(labels)]
    return tuple(parts)


def text(fine_tuned: bool) -> Task:
    """Which of eight languages a line is in: from scratch, or from a model that has learnt eight other languages."""
    weights: dict[str, torch.Tensor] = {}

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = CharLSTM(CHARACTERS, LANGUAGES)
        if weights:
            model.load_state_dict({**weights, **{k: v for k, v in model.state_dict().items() if "head" in k}})
        return model, [model.embedding, *model.recurrent, model.head]

    data: Any = lines(11, (8000, 4000))
    name = "lstm-fine-tuned" if fine_tuned else "lstm-scratch"
    task = Task(name, build, data, batch_size=64, iterations=400, learning_rate=3e-3)
    if fine_tuned:
        other: Any = lines(12, (8000, 100))
        before = Run.start(Task("other languages", build, other, 64, 500, 4e-3), 99, measure=False)
        for iteration in range(500):
            before.step(iteration / 500)
        weights.update(before.model.state_dict())
    return task


@dataclass
class Run:
    """One training under way."""

    task: Task
    model: nn.Module
    layers: list[nn.Module]
    optimizer: torch.optim.Optimizer
    tracker: GradientNormTracker
    order: torch.Generator

    @classmethod
    def start(cls, task: Task, seed: int, measure: bool = True) -> Run:
        torch.manual_seed(seed)
        model, layers = task.build()
        optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
        tracker = GradientNormTracker(
            layers, TrackerConfig(0.9, measure_every=5, probe_every=25) if measure else UNMEASURED
        )
        return cls(task, model, layers, optimizer, tracker, torch.Generator().manual_seed(seed))

    def step(self, progress: float) -> float:
        """One training step; the learning rate falls with effective progress (cosine). Returns the rate."""
        x, y = self.task.data[:2]
        batch = torch.randint(len(x), (self.task.batch_size,), generator=self.order)
        rate = self.task.learning_rate * 0.5 * (1.0 + float(np.cos(np.pi * min(progress, 1.0))))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self.tracker.step():
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x[batch]), y[batch]).backward()
        self.optimizer.step()
        return rate

    def loss(self) -> float:
        """Cross entropy of up to 2,000 training samples, in evaluation mode."""
        modes = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        with torch.no_grad():
            x, y = (v[:2000] for v in self.task.data[:2])
            value = float(nn.functional.cross_entropy(self.model(x), y))
        for module, mode in modes:
            module.training = mode
        return value

    def accuracy(self) -> float:
        """Percent of held-out samples."""
        self.model.eval()
        with torch.no_grad():
            x, y = self.task.data[2:]
            return 100.0 * float((self.model(x).argmax(1) == y).float().mean())


def prefix_throughput(task: Task, repeats: int = 12) -> np.ndarray:
    """[L] samples/s with each frozen prefix: medians of timed steps of a throw-away copy."""
    run = Run.start(task, 0)
    speeds = []
    for prefix in range(len(run.layers)):
        run.tracker.freeze(prefix)
        times = []
        for _ in range(repeats):
            begin = time.process_time()
            run.step(0.5)
            times.append(time.process_time() - begin)
        speeds.append(task.batch_size / float(np.median(times[2:])))
    return np.maximum.accumulate(np.array(speeds))


def train(task: Task, seed: int, speeds: np.ndarray, guards: FreezingGuards | None) -> dict[str, Any]:
    """Train to effective progress 1; without guards nothing is frozen and no gradient norm is measured."""
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
    """Sum of step times with those beyond twice the median of their prefix cut to it: other work on the machine."""
    total = 0.0
    for prefix in np.unique(prefixes):
        own = step_s[prefixes == prefix]
        total += float(np.minimum(own, 2.0 * np.median(own)).sum())
    return total


def norm_curve(task: Task, seed: int) -> np.ndarray:
    """[2, 21, L + 1] S_k of an unfrozen training on a grid of progress, and whether each prefix had settled (0 or 1)."""
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
    """Loss of progress that freezing causes in fact: 1 - (fall of the loss frozen) / (fall unfrozen), same batches."""
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


def fitted_kappa(rows: list[dict[str, float]]) -> float:
    """Exponent that fits the real penalties best, by least squares on penalties clipped to 0..1."""
    share = np.array([r["norm_share"] for r in rows])
    real = np.clip([r["penalty"] for r in rows], 0.0, 1.0)
    grid = np.arange(0.5, 6.01, 0.05)
    return float(grid[int(np.argmin([np.mean((share**k - real) ** 2) for k in grid]))])


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


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    penalties: dict[str, list[dict[str, float]]] = {}
    for task in (digits(), text(fine_tuned=False), text(fine_tuned=True)):
        speeds = prefix_throughput(task)
        plain, frozen = [], []
        for seed in range(options.seeds):  # interleaved, so that a busy machine slows both alike
            plain.append(train(task, seed, speeds, None))
            frozen.append(train(task, seed, speeds, FreezingGuards()))
        shares, settled = np.mean([norm_curve(task, seed) for seed in range(options.seeds)], axis=0)
        curves[task.name] = {
            "layers": shares.shape[1] - 1,
            "norm_shares": np.round(shares, 6).tolist(),
            "settled_ratio": np.round(settled, 3).tolist(),
        }
        horizon = task.iterations // 10
        penalties[task.name] = [row for seed in range(3) for row in real_penalties(task, seed, horizon)]
        base, ice = (np.array([r["accuracy_percent"] for r in runs]) for runs in (plain, frozen))
        slow, fast = (np.array([r["seconds"] for r in runs]) for runs in (plain, frozen))
        figures[task.name] = {
            "train_samples": len(task.data[0]),
            "test_samples": len(task.data[2]),
            "prefix_speedup": np.round(speeds / speeds[0], 3).tolist(),
            "accuracy_unfrozen_percent": [round(float(base.mean()), 3), round(float(base.std(ddof=1)), 3)],
            "accuracy_icefrog_percent": [round(float(ice.mean()), 3), round(float(ice.std(ddof=1)), 3)],
            "accuracy_difference_points": round(float((ice - base).mean()), 3),
            "time_saved_percent": round(100.0 * float(1.0 - fast.sum() / slow.sum()), 2),
            "time_saved_by_prefix_speedups_percent": round(
                100.0
                * float(
                    1.0
                    - np.sum([r["expected_seconds"] for r in frozen])
                    / np.sum([r["expected_seconds"] for r in plain])
                ),
                2,
            ),
            "iterations_more_percent": round(
                100.0 * (float(np.mean([r["iterations"] for r in frozen])) / task.iterations - 1.0), 2
            ),
            "fitted_kappa": fitted_kappa(penalties[task.name]),
            "penalty_mean_error_by_kappa": {
                f"{k:g}": round(
                    float(
                        np.mean(
                            [r["norm_share"] ** k - np.clip(r["penalty"], 0, 1) for r in penalties[task.name]]
                        )
                    ),
                    4,
                )
                for k in KAPPAS
            },
            "runs": {"unfrozen": plain, "icefrog": frozen},
            "penalties": penalties[task.name],
        }
        print({k: v for k, v in figures[task.name].items() if k not in ("runs", "penalties")})
    write_json(CURVES, {"progress": np.round(GRID, 3).tolist(), "curves": curves})
    print(f"picture: {plot(penalties, curves).name}; curves: {CURVES.name}")
    record("icefrog_training", figures)
    return figures


if __name__ == "__main__":
    main()
