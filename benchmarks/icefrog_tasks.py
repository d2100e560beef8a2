"""Real training tasks (digits with a small CNN, text with an LSTM from scratch or pre-trained), and one run
of a task."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from scheduling.elastic.tracker import GradientNormTracker, TrackerConfig

UNMEASURED = TrackerConfig(measure_every=10**9, probe_every=10**9)


@dataclass(frozen=True)
class Task:
    """A small training task; `layers` are the atomic layers of `model` in order."""

    name: str
    build: Callable[[], tuple[nn.Module, list[nn.Module]]]
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    batch_size: int
    iterations: int
    learning_rate: float


class CharLSTM(nn.Module):
    """Character-level classifier: embedding, three LSTM layers, linear layer."""

    def __init__(self, characters: int, classes: int, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.recurrent = nn.ModuleList(
            nn.LSTM(32 if i == 0 else hidden, hidden, batch_first=True) for i in range(3)
        )
        self.head = nn.Linear(hidden, classes)

    def states(self, text: torch.Tensor) -> torch.Tensor:
        """[B, T, hidden] outputs of the last recurrent layer."""
        x = self.embedding(text)
        for layer in self.recurrent:
            x, _ = layer(x)
        return x

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(text).mean(1))


class PooledLSTM(CharLSTM):
    """`CharLSTM` set up like a language model for fine-tuning.

    Embeddings start within 0.1, and the concatenation of last, maximum and mean state is classified. Howard
    and Ruder, "Universal Language Model Fine-tuning for Text Classification", ACL 2018.
    """

    def __init__(self, characters: int, classes: int, hidden: int = 64) -> None:
        super().__init__(characters, classes, hidden)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.head = nn.Linear(3 * hidden, classes)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.states(text)
        return self.head(torch.cat([x[:, -1], x.max(1).values, x.mean(1)], dim=1))


def digits() -> Task:
    """The 1,797 digits of scikit-learn, with a quarter held out."""
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
PRETRAINING = 800


def lines(seed: int, counts: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Lines of 32 characters in eight languages, with their language; each language is a random Markov chain.

    All languages of all seeds have part of their chains in common, as natural languages share letters and
    sounds.
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
    """Classify lines by language (eight), from scratch or starting from a model trained on eight other
    languages."""
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


def pretrained_text() -> Task:
    """The same lines, with a model pre-trained to predict their next character (training lines, without
    labels)."""
    weights: dict[str, torch.Tensor] = {}

    def build() -> tuple[nn.Module, list[nn.Module]]:
        model = PooledLSTM(CHARACTERS, LANGUAGES)
        if weights:
            model.load_state_dict({**model.state_dict(), **weights})
        return model, [model.embedding, *model.recurrent, model.head]

    data: Any = lines(11, (8000, 4000))
    task = Task("lstm-pretrained", build, data, batch_size=64, iterations=800, learning_rate=2e-3)
    torch.manual_seed(99)
    model = PooledLSTM(CHARACTERS, LANGUAGES)
    weights.update(next_character_weights(model, 64, data[0], task.batch_size, 3e-3))
    return task


def next_character_weights(
    model: Any, width: int, text: torch.Tensor, batch_size: int, learning_rate: float
) -> dict[str, torch.Tensor]:
    """Pre-train `model`, whose `states` are [B, T, width], on the next character of `text`; return its
    weights without the head."""
    decoder, order = nn.Linear(width, CHARACTERS), torch.Generator().manual_seed(99)
    optimizer = torch.optim.Adam([*model.parameters(), *decoder.parameters()], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PRETRAINING)
    for _ in range(PRETRAINING):
        batch = text[torch.randint(len(text), (batch_size,), generator=order)]
        optimizer.zero_grad(set_to_none=True)
        predicted = decoder(model.states(batch[:, :-1]))
        nn.functional.cross_entropy(predicted.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        schedule.step()
    return {k: v.clone() for k, v in model.state_dict().items() if "head" not in k}


@dataclass
class Run:
    """A training run in progress."""

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
        """Run one training step and return the learning rate, which falls with effective progress
        (cosine)."""
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
        """Accuracy on held-out samples in percent."""
        self.model.eval()
        with torch.no_grad():
            x, y = self.task.data[2:]
            return 100.0 * float((self.model(x).argmax(1) == y).float().mean())
