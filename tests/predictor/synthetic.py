"""Small synthetic models and measurements: nothing is captured or downloaded, and a fit takes a second."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pandas as pd

from datasets.tables import make_table
from models.colocation_network import NetworkConfig
from models.workload_encoder import EncoderConfig
from predictor.config import TrainingConfig
from profiling.errors import UnknownNameError
from profiling.graph import ComputationGraph, Operator, TensorEdge
from profiling.workload import Workload

# name: (FLOPs of an operator per sample, bytes per sample, operators)
MODELS = {
    "alpha": (4e8, 1e6, 4),
    "beta": (2e6, 8e6, 6),
    "gamma": (5e7, 5e5, 12),
    "delta": (1e5, 2e4, 20),
}
DEVICES = ("v100", "p100")
NETWORK = NetworkConfig(width=4, heads=2, encoder=EncoderConfig(width=8, heads=2, layers=1, embedding=4))
TRAINING = TrainingConfig(
    ensemble=1,
    encoder_steps=10,
    encoder_batch=4,
    epochs=15,
    mixed_sets=40,
    synthetic_batches=2,
    teacher_trees=8,
    shared_sets=0,
    inferred_sets=0,
)


def graph_source(workload: Workload) -> ComputationGraph:
    """A chain with one skip connection; kinds, sizes and layers differ by model."""
    if workload.model not in MODELS:
        raise UnknownNameError("no such model", expected="one of " + ", ".join(MODELS), got=workload.model)
    flops, size, count = MODELS[workload.model]
    batch = workload.batch_size or 32
    kinds = ("conv2d", "batch_norm", "relu", "linear")
    operators = tuple(
        Operator(
            f"op{i}",
            kinds[i % len(kinds)],
            forward_flops=flops * batch / (1 + i % 3),
            backward_flops=2 * flops * batch / (1 + i % 3),
            bytes_read=size * batch,
            bytes_written=size * batch,
            backward_bytes=2 * size * batch,
            parameter_bytes=4e5 * (i % 2),
            saved_activation_bytes=size * batch,
            layer_index=i // 2,
            kernel_count=3,
            tensor_core=i % 4 == 0,
        )
        for i in range(count)
    )
    edges = (*(TensorEdge(i, i + 1, size * batch) for i in range(count - 1)), TensorEdge(0, 2, size))
    held = 4e5 * (count // 2)
    return ComputationGraph(
        workload.model,
        operators,
        edges,
        layers=tuple(f"layer{i}" for i in range((count + 1) // 2)),
        batch_size=batch,
        parameter_count=int(held / 4),
        parameter_bytes=held,
        gradient_bytes=held,
        optimizer_state_bytes=held,
        optimizer_bytes=4 * held,
        optimizer_kernels=count / 2,
        activation_bytes=size * batch * count,
        host_input_bytes=1e4 * batch,
    )


def _solo_step_s(model: str, device: str) -> float:
    return (0.01 + 0.01 * list(MODELS).index(model)) * (1.0 if device == "v100" else 1.7)


def _busy(model: str) -> float:
    return 0.9 - 0.2 * list(MODELS).index(model)


def _origin() -> dict[str, str]:
    return {"source": "synthetic", "campaign": "by-hand", "licence": "Apache-2.0", "origin": "measured"}


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """`colocation` (all pairs, two devices) and `solo`; slowdowns grow with the partner's utilisation."""
    solo = [
        {
            **_origin(),
            "device": device,
            "workload": f"{model}:batch_size=32",
            "architecture": model,
            "batch_size": 32,
            "precision": "fp32",
            "step_time_s": _solo_step_s(model, device),
            "memory_bytes": 1.5e9,
            "utilization_ratio": _busy(model),
            "gpus": 1,
        }
        for model in MODELS
        for device in DEVICES
    ]
    rows = []
    for device in DEVICES:
        for pair in combinations_with_replacement(MODELS, 2):
            for member, (own, other) in enumerate((pair, pair[::-1])):
                ratio = 1 / (1 + _busy(own) * _busy(other))
                alone = _solo_step_s(own, device)
                rows.append(
                    {
                        **_origin(),
                        "set_id": f"{device}/{'+'.join(pair)}",
                        "member": member,
                        "device": device,
                        "sharing": "time-slice",
                        "workload": f"{own}:batch_size=32",
                        "architecture": own,
                        "batch_size": 32,
                        "precision": "fp32",
                        "throughput_ratio": ratio,
                        "step_time_s": alone / ratio,
                        "solo_step_time_s": alone,
                        "set_memory_bytes": 3.02e9,
                        "set_utilization_ratio": 1 - (1 - _busy(pair[0])) * (1 - _busy(pair[1])),
                        "censored": False,
                        "is_target": True,
                    }
                )
    return make_table("colocation", rows), make_table("solo", solo)


def of_device(device: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of `tables` of one device."""
    colocation, solo = (table[table.device == device].reset_index(drop=True) for table in tables())
    return colocation, solo
