"""A zoo model split in two by the planner and trained in two processes, compared with one process.

    python -m benchmarks.pipeline_training [--minibatches 60]

scikit-learn's digits, enlarged to 32 x 32. Writes docs/images/pipeline_training.svg: 1F1B with stashed
weights, its single-process emulation, and plain SGD on the same minibatches.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.pipeline_runtime import (
    Training,
    emulate_asynchronous,
    train_asynchronously,
    train_synchronously,
)
from benchmarks.record import record
from profiling.capture import graph_for
from profiling.files import write_whole
from profiling.workload import Workload
from scheduling.pipeline.cluster import PipelineCluster
from scheduling.pipeline.plan import plan

SPEC = "vgg11-cifar:batch_size=16"
PICTURE = Path("docs/images/pipeline_training.svg")


def model(spec: str) -> nn.Module:
    from profiling.zoo import build

    torch.manual_seed(0)
    return build(Workload.parse(spec)).model


def digits(minibatches: int, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Minibatches of (images [N, 3, 32, 32], labels [N]), cycling through the data set as often as needed."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    images = nn.functional.interpolate(images, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    labels = torch.tensor(data.target)
    draw = torch.Generator().manual_seed(0)
    chosen = [torch.randint(len(labels), (batch_size,), generator=draw) for _ in range(minibatches)]
    return [(images[rows].contiguous(), labels[rows]) for rows in chosen]


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--minibatches", type=int, default=60, help="minibatches to train on (default: %(default)s)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graph = graph_for(Workload.parse(SPEC))
    split = plan(graph, PipelineCluster((2,), (12e9,)), microbatches=4, device="v100", depth=2).split_points
    batches = digits(arguments.minibatches, 16)
    training = Training(partial(model, SPEC), batches, split, learning_rate=0.02, microbatches=4)
    print(f"split at {split}", flush=True)
    runs = {
        "1F1B, stashed weights (2 processes)": train_asynchronously(training),
        "emulation (1 process)": emulate_asynchronous(training),
        "plain SGD (1 process)": emulate_asynchronous(training, delays=[0, 0]),
    }
    real, emulated, plain = runs.values()
    synchronous = train_synchronously(training)
    alone, losses = _alone(training)
    figures = {
        "model": SPEC,
        "split_points": split,
        "minibatches": arguments.minibatches,
        "synchronous_largest_weight_difference": _difference(synchronous.weights, alone),
        "synchronous_largest_loss_difference": max(
            abs(a - b) for a, b in zip(synchronous.losses, losses, strict=True)
        ),
        "asynchronous_largest_weight_difference": _difference(real.weights, emulated.weights),
        "asynchronous_largest_loss_difference": max(
            abs(a - b) for a, b in zip(real.losses, emulated.losses, strict=True)
        ),
        "mean_loss_of_last_10": {name: fmean(run.losses[-10:]) for name, run in runs.items()},
        "largest_weight_difference_from_plain_sgd": _difference(real.weights, plain.weights),
    }
    for name, value in figures.items():
        print(f"{name}: {value}")
    _draw({name: run.losses for name, run in runs.items()})
    record("pipeline_training", figures)


def _alone(training: Training) -> tuple[dict[str, Tensor], list[float]]:
    """Ordinary training in one process, gradients summed over microbatches."""
    net = training.build()
    optimizer = torch.optim.SGD(net.parameters(), lr=training.learning_rate)
    losses = []
    for inputs, target in training.batches:
        optimizer.zero_grad()
        total = 0.0
        parts = zip(inputs.chunk(training.microbatches), target.chunk(training.microbatches), strict=True)
        for part, labels in parts:
            loss = training.loss(net(part), labels) / training.microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return dict(net.named_parameters()), losses


def _difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return max(float((left[name] - right[name]).detach().abs().max()) for name in right)


def _draw(curves: dict[str, list[float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        axes.plot(losses, style, label=name)
    axes.set_xlabel("minibatch")
    axes.set_ylabel("loss")
    axes.set_yscale("log")
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    write_whole(PICTURE, buffer.getvalue())


if __name__ == "__main__":
    run_benchmark(__file__, main)
