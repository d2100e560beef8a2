"""Speed of predictions: batched pairs, one set, encoding a graph, and a full answer with reasons."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record

if TYPE_CHECKING:
    from profiling.workload import ColocationSet, Workload

MODELS = ("resnet18-cifar", "lstm-wikitext2", "transformer-multi30k", "vgg11-cifar", "neumf-ml1m", "dcgan-64")


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of one call, after a warm-up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def all_pairs() -> list[ColocationSet]:
    """Every pair of six models at three batch sizes on a V100."""
    from profiling.workload import ColocationSet

    jobs = _jobs((16, 32, 64))
    return [ColocationSet("v100", pair) for pair in product(jobs, jobs)]


def different_pairs() -> list[ColocationSet]:
    """101,025 distinct pairs on a V100, of six models at 75 batch sizes."""
    from profiling.workload import ColocationSet

    jobs = _jobs(range(8, 83))
    pairs = [ColocationSet("v100", pair) for pair in combinations(jobs, 2)]
    random.Random(0).shuffle(pairs)
    return pairs


def _jobs(batch_sizes: Iterable[int]) -> list[Workload]:
    from profiling.workload import Workload

    return [Workload.parse(f"{name}:batch_size={size}") for name in MODELS for size in batch_sizes]


def main() -> None:
    """Print and record the figures of the default predictor."""
    benchmark_parser(__file__, __doc__).parse_args()
    import torch

    from predictor import load_predictor
    from predictor.fitted.model import encoder_input
    from profiling.workload import Workload

    torch.set_num_threads(1)
    predictor = load_predictor("default")
    pairs = all_pairs()
    rows = predictor.rows(pairs)
    rng = np.random.default_rng(0)
    figures: dict[str, float] = {}
    for size in (1, 1_000, 100_000):
        chosen = rows[rng.integers(0, len(rows), size)]
        figures[f"pairs_{size}_s"] = _seconds(
            partial(predictor.predict_rows, chosen, "time-slice"), 20 if size > 1000 else 200
        )
    figures["pairs_per_s_at_100000"] = 100_000 / figures["pairs_100000_s"]
    different = predictor.rows(different_pairs())
    figures["different_pairs_per_s"] = len(different) / _seconds(
        partial(predictor.predict_rows, different, "time-slice"), 20
    )
    fours = np.concatenate([different, rng.permutation(different)], 1)[:20_000]
    figures["sets_of_4_per_s"] = len(fours) / _seconds(
        partial(predictor.predict_rows, fours, "time-slice"), 5
    )
    figures["answer_with_reasons_s"] = _seconds(lambda: predictor.predict(pairs[1]), 100)
    model = predictor.fitted_.model
    for name, spec in (
        ("resnet50", "resnet50-imagenet:batch_size=32"),
        ("efficientnet_l2", "timm/tf_efficientnet_l2"),
    ):
        job = model.featurizer.job(Workload.parse(spec), "v100")
        with torch.no_grad():
            encode = partial(model.encoder, *encoder_input([job], model.featurizer))
            figures[f"encode_{name}_s"] = _seconds(encode, 20)
        figures[f"{name}_operators"] = float(len(job.graph.operators))
    for name, value in figures.items():
        print(f"{name:28} {value:,.6g}")
    record("predict", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
