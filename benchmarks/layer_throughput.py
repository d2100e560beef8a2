"""Step time and memory by frozen prefix, on public measurements (BERT, YOLOv3, CIFAR networks).

`python -m benchmarks.layer_throughput --data DIR`, where DIR has throughput.csv, arch_info.csv and
memory.csv. Whole values of the frozen prefix, whole batch sizes and whole models are held out; no setting is
chosen on held-out rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.layer_fits.calibrate import MeasuredGraph, calibrate, predicted_s
from benchmarks.layer_fits.fit import LayerTimeModel, Rows
from benchmarks.layer_fits.memory_fit import MemoryModel, MemoryShape
from benchmarks.layer_fits.profile import LayerProfile
from benchmarks.record import record
from predictor.examples.featurizer import shared_featurizer
from profiling.devices import get_device
from profiling.workload import Workload

# Zoo name, and number of kernels that update one tensor: AdamW for BERT, SGD with momentum and weight decay
# for
# YOLOv3.
GRAPHS = {"bert-mlm-wikitext2": ("bert-base-wikitext2", 12.0), "yolov3-voc": ("yolov3-voc", 4.0)}
# Zoo name, and whether activation functions work in place (among the published CIFAR models, only in VGG).
MEMORY = {
    "cifar10-ResNet18": ("resnet18-cifar", False),
    "cifar10-ResNet50": ("resnet50-cifar", False),
    "cifar10-VGG19": ("vgg19-cifar", True),
}


def summary(errors: list[np.ndarray]) -> dict[str, float]:
    every = np.abs(np.concatenate(errors)) * 100.0
    return {
        "n": len(every),
        "mape_percent": round(float(every.mean()), 3),
        "max_percent": round(float(every.max()), 2),
    }


def profile(arch: pd.DataFrame, model: str) -> LayerProfile:
    """Published shares.

    BERT's FLOPs are reconstructed from 12 blocks of 8 atomic layers from index 4 on, and the matrices of the
    head.
    """
    rows = arch[arch.model == model].sort_values("frozen_layers")
    parameters = rows.rem_param_frac.to_numpy(dtype=float)
    flops = rows.rem_flop_frac.to_numpy(dtype=float)
    if model.startswith("bert"):
        inside = -np.diff(flops)[4:12]
        blocks, head = 12.0 * (parameters[12] - parameters[20]), parameters[100]
        per_layer = np.zeros(len(flops))
        for block in range(12):
            per_layer[4 + 8 * block : 12 + 8 * block] = (
                inside / inside.sum() * blocks / 12.0 / (blocks + head)
            )
        per_layer[100:] = head / (blocks + head) / len(per_layer[100:])
        flops = 1.0 - np.append(0.0, np.cumsum(per_layer))[:-1]
    return LayerProfile.from_shares(model, flops, rows.rem_act_frac.to_numpy(dtype=float), parameters)


def warm_up(frame: pd.DataFrame) -> np.ndarray:
    """YOLOv3 on one GPU with nothing frozen at batch sizes 4 and 24: the first runs of the campaign."""
    marked = (frame.model == "yolov3-voc") & (frame.num_gpus == 1) & (frame.frozen_layers == 0)
    return (marked & frame.local_bsz.isin([4, 24])).to_numpy()


def held_out(arch: pd.DataFrame, frame: pd.DataFrame, model: str) -> dict[str, Any]:
    """Errors with each value of k, each batch size, and each pair of both held out of the fit."""
    shape = profile(arch, model)
    own = frame[(frame.model == model) & ~warm_up(frame)]
    rows = Rows.of(own.frozen_layers, own.local_bsz, own.step_time_s, own.num_gpus, own.num_nodes)
    one_gpu = rows.gpus == 1
    summaries: dict[str, Any] = {}

    def errors(fit: np.ndarray, test: np.ndarray) -> np.ndarray:
        made, wanted = LayerTimeModel.fit(shape, rows.where(fit)), rows.where(test)
        times = made.step_time_s(wanted.frozen_prefix, wanted.batch_size, wanted.gpus, wanted.nodes)
        return times / wanted.step_time_s - 1.0

    for name in ("frozen_prefix", "batch_size"):
        values = getattr(rows, name)
        present = np.unique(values[one_gpu])
        summaries[f"one_gpu_held_out_{name}"] = summary(
            [errors(one_gpu & (values != v), one_gpu & (values == v)) for v in present]
        )
        if name == "batch_size":
            summaries["one_gpu_held_out_batch_size_each"] = {
                f"{v:g}": summary([errors(one_gpu & (values != v), one_gpu & (values == v))])["mape_percent"]
                for v in present
            }
        summaries[f"several_gpus_held_out_{name}"] = summary(
            [errors(values != v, ~one_gpu & (values == v)) for v in np.unique(values)]
        )
    k, b = rows.frozen_prefix, rows.batch_size
    cells = [
        errors(one_gpu & (k != i) & (b != j), one_gpu & (k == i) & (b == j))
        for i in np.unique(k[one_gpu])
        for j in np.unique(b[one_gpu])
        if (one_gpu & (k == i) & (b == j)).any()
    ]
    summaries["one_gpu_held_out_both"] = summary(cells)
    generator = np.random.default_rng(0)
    folds = []
    for _ in range(5):
        fold = generator.integers(0, 5, size=len(rows))
        folds += [errors(one_gpu & (fold != f), one_gpu & (fold == f)) for f in range(5)]
    summaries["one_gpu_held_out_cells_5_fold_5_seeds"] = summary(folds)
    return summaries


def measured_graphs(frame: pd.DataFrame, model: str) -> list[MeasuredGraph]:
    name, kernels = GRAPHS[model]
    own = frame[(frame.model == model) & (frame.num_gpus == 1)]
    if model == "yolov3-voc":  # a speedup is relative to k = 0
        own = own[~own.local_bsz.isin([4, 24])]
    return [
        MeasuredGraph(
            shared_featurizer().graph(Workload(name, batch_size=int(g.local_bsz.iloc[0]))),
            Rows.of(g.frozen_layers, g.local_bsz, g.step_time_s),
            kernels,
        )
        for _, g in own.sort_values("frozen_layers").groupby("local_bsz")
    ]


def unseen_model(frame: pd.DataFrame) -> dict[str, Any]:
    """Calibrate on one model and predict the other's speedup over no freezing from its graph alone."""
    device = get_device("v100")
    graphs = {model: measured_graphs(frame, model) for model in GRAPHS}
    summaries: dict[str, Any] = {}
    for fit, test in (("bert-mlm-wikitext2", "yolov3-voc"), ("yolov3-voc", "bert-mlm-wikitext2")):
        settings = calibrate(graphs[fit], device)
        errors, later, step = [], [], []
        for measured in graphs[test]:
            made, real = predicted_s(measured, device, settings), measured.rows.step_time_s
            errors.append((made[0] / made[1:]) / (real[0] / real[1:]) - 1.0)
            later.append((made[1] / made[2:]) / (real[1] / real[2:]) - 1.0)
            step.append(made / real - 1.0)
        summaries[f"{fit} -> {test}"] = {
            "speedup_over_k0": summary(errors),
            "speedup_over_first_frozen": summary(later),
            "step_time": summary(step),
        }
    return summaries


def memory(frame: pd.DataFrame) -> dict[str, Any]:
    """Calibrate on two CIFAR networks and predict the third from its graph; k > 0 and all rows separately."""
    data: dict[str, tuple[Any, ...]] = {}
    for model, (name, inplace) in MEMORY.items():
        own = frame[frame.model == model]
        shape = MemoryShape.from_graph(shared_featurizer().graph(Workload(name, batch_size=64)), inplace)
        data[model] = (
            shape,
            own.frozen_layers.to_numpy(),
            own.local_bsz.to_numpy(),
            own.peak_mem_bytes.to_numpy(),
        )
    summaries: dict[str, Any] = {}
    for test in MEMORY:
        others = [
            tuple(v if i == 0 else v[data[m][1] > 0] for i, v in enumerate(data[m]))
            for m in MEMORY
            if m != test
        ]
        shape, k, b, peak = data[test]
        error = MemoryModel.fit(others).bytes(shape, k, b) / peak - 1.0
        summaries[test] = {
            "frozen": summary([error[k > 0]]),
            "unfrozen_with_workspace": summary([error[k == 0]]),
        }
    return summaries


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the three CSV files")
    options = parser.parse_args()
    arch, rows, peaks = (
        pd.read_csv(options.data / f"{n}.csv") for n in ("arch_info", "throughput", "memory")
    )
    figures: dict[str, Any] = {model: held_out(arch, rows, model) for model in GRAPHS}
    figures["unseen_model"] = unseen_model(rows)
    figures["memory_unseen_model"] = memory(peaks)
    for name, value in figures.items():
        print(name)
        for key, entry in value.items():
            print("   ", key, entry)
    record("layer_throughput", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
