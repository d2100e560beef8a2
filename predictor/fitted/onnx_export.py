"""ONNX files of a predictor's networks, for other runtimes. A file that disagrees with torch is discarded.

The process that answers alongside the networks is not exported: it looks up a table of the jobs it has seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.colocation_network import ColocationNetwork, SetTensors, member_width
from models.features import (
    DEMAND_WIDTH,
    DEVICE_FEATURES,
    OCCUPANCY,
    PACE_FEATURES,
    RESOURCES,
    SOLO_FEATURES,
    SUMMED_WIDTH,
    WORKLOAD_FEATURES,
)
from models.graph_tensors import NODE_FEATURES, TENSOR_FEATURES, GraphTensors
from models.workload_encoder import WorkloadEncoder
from predictor.fitted.model import CotenantModel, Scaler
from predictor.predictor import Predictor
from profiling.errors import InputError, UnavailableError
from profiling.files import write_json, write_whole
from profiling.operators import KINDS
from profiling.workload import SHARING_MODES

TOLERANCE = 1e-5
MOST_MEMBERS = 8


class WholeSets(nn.Module):
    """The ensemble over sets of M members each, all of them present, from unscaled features.

    Inputs: member [S, M, F] unscaled features, demand [S, M, DEMAND_WIDTH], setting [S, K] one-hot.
    Outputs: slowdown [S, M] (latent, at least 1), ratio [S, M] (observed co-located / solo throughput),
    utilization_residual [S] (the set's utilisation minus that of members with independent phases).
    """

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, networks: Sequence[ColocationNetwork], scaler: Scaler) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        for name in ("mean", "scale", "low", "high"):
            self.register_buffer(name, torch.tensor(getattr(scaler, name), dtype=torch.float32))
        # As in `Scaler.demand`: bounds of slowdowns follow from occupancy.
        free = len(scaler.mean) + OCCUPANCY
        self.low[free], self.high[free] = -torch.inf, torch.inf

    def forward(self, member: Tensor, demand: Tensor, setting: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = member.shape[-1]
        member = torch.clamp(member, self.low[:width], self.high[:width])
        scaled = ((member - self.mean) / self.scale).clamp(-4.0, 4.0)
        demand = torch.clamp(demand, self.low[width:], self.high[width:])
        sets = SetTensors(scaled, demand, setting, torch.ones_like(demand[..., 0], dtype=torch.bool))
        answers = [network(sets) for network in self.networks]
        slow = torch.stack([a.log_slowdown for a in answers]).mean(0)
        ratio = torch.stack([a.log_baseline - a.log_slowdown for a in answers]).mean(0)
        return slow.exp(), ratio.exp(), torch.stack([a.utilization for a in answers]).mean((0, 2))


class OneGraph(nn.Module):
    """The workload encoder for one graph on one device; inputs as in `models.graph_tensors.GraphTensors`.

    Outputs: job_embedding [1, E], solo_step_time_s [1] (the cost model's, whose logarithm is `log_step_s`).
    """

    def __init__(self, encoder: WorkloadEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        kind: Tensor,
        nodes: Tensor,
        edge_index: Tensor,
        edges: Tensor,
        busy_s: Tensor,
        workload: Tensor,
        device: Tensor,
        log_step_s: Tensor,
    ) -> tuple[Tensor, Tensor]:
        graph = GraphTensors(kind, nodes, edge_index, edges, busy_s, torch.zeros_like(kind), 1)
        result = self.encoder(graph, workload, device, log_step_s)
        return result.embedding, log_step_s.exp()


def export(predictor: Predictor, folder: Path | str, members: int = 2) -> dict[str, Any]:
    """Write `encoder.onnx`, `set_network_M.onnx` and `export.json` (names and order of the inputs' columns).

    Returns:
        `folder`, `model_version`, and per part its file and the largest difference from torch.

    Raises:
        InputError: `members` is out of range, the form has no export, or a file differs from torch by more than 1e-5;
            nothing is written then.
        UnavailableError: the predictor has not been fitted.
    """
    if not 1 <= members <= MOST_MEMBERS:
        raise InputError("members is out of range", expected=f"1 to {MOST_MEMBERS}", got=members)
    if not hasattr(predictor, "fitted_"):
        raise UnavailableError("the predictor has not been fitted", hint="call fit() or load a checkpoint")
    model = predictor.fitted_.model
    model.config.check_whole()
    set_body, set_worst = _set_network(model, members)
    encoder_body, encoder_worst = _encoder(model.encoder)
    target = Path(folder)
    name = f"set_network_{members}.onnx"
    write_whole(target / "encoder.onnx", encoder_body)
    write_whole(target / name, set_body)
    result = {
        "model_version": predictor.version,
        "encoder": {"file": "encoder.onnx", "largest_difference": encoder_worst},
        "set_network": {"file": name, "members": members, "largest_difference": set_worst},
    }
    left_out = model.process is not None
    write_json(target / "export.json", {**result, "inputs": input_names(model), "process_left_out": left_out})
    return {"folder": str(target), **result}


def input_names(model: CotenantModel) -> dict[str, dict[str, list[str]]]:
    """Part to input to what its positions stand for: columns, rows of `edge_index` and `busy_s`, values of `kind`."""
    embedding = [f"embedding_{number + 1}" for number in range(model.config.encoder.embedding)]
    return {
        "encoder": {
            "kind": [*KINDS, "unknown"],
            "nodes": [*NODE_FEATURES],
            "edge_index": ["source", "target"],
            "edges": [*TENSOR_FEATURES],
            "busy_s": ["forward", "backward"],
            "workload": [*WORKLOAD_FEATURES],
            "device": [*DEVICE_FEATURES],
            "log_step_s": ["cost_model"],
        },
        "set_network": {
            "member": [*embedding, *WORKLOAD_FEATURES, *SOLO_FEATURES, *DEVICE_FEATURES],
            "demand": [*RESOURCES, "memory_capacity_ratio", "occupancy", *PACE_FEATURES],
            "setting": [*SHARING_MODES, *model.campaigns, "another campaign"],
        },
    }


def _set_network(model: CotenantModel, members: int) -> tuple[bytes, float]:
    networks = [network.eval() for network in model.networks]
    whole = WholeSets(networks, model.scaler).eval()
    settings, width = networks[0].prior.raw.shape[0], member_width(model.config)
    rng = np.random.default_rng(0)

    def sample(sets: int) -> list[Tensor]:
        spread = np.where(np.isfinite(model.scaler.scale), model.scaler.scale, 1.0)
        member = model.scaler.mean + spread * rng.normal(size=(sets, members, width))
        demand = rng.random((sets, members, DEMAND_WIDTH))
        demand[..., SUMMED_WIDTH:] = rng.normal(size=(sets, members, DEMAND_WIDTH - SUMMED_WIDTH))
        setting = np.zeros((sets, settings))
        setting[:, [0, settings - 1]] = 1.0
        return [torch.tensor(values, dtype=torch.float32) for values in (member, demand, setting)]

    names = ["member", "demand", "setting"]
    batch = torch.export.Dim("sets", min=1, max=1_000_000)
    body = _to_onnx(
        whole,
        sample(3),
        names,
        ["slowdown", "ratio", "utilization_residual"],
        {name: {0: batch} for name in names},
    )
    cases = []
    for sets in (1, 17):
        inputs = sample(sets)
        with torch.no_grad():
            cases.append(([i.numpy() for i in inputs], [o.numpy() for o in whole(*inputs)]))
    return body, _checked("set network", body, names, cases)


def _encoder(encoder: WorkloadEncoder) -> tuple[bytes, float]:
    single = OneGraph(encoder.eval()).eval()
    generator = torch.Generator().manual_seed(0)
    features = encoder.enter.in_features - encoder.kind.embedding_dim
    edge_width: int = encoder.blocks[0].edge_width  # type: ignore[assignment]

    def sample(operators: int, tensors: int) -> list[Tensor]:
        loops = torch.arange(operators).repeat(2, 1)
        pairs = torch.randint(0, operators, (2, tensors), generator=generator)
        return [
            torch.randint(0, encoder.kind.num_embeddings, (operators,), generator=generator),
            torch.rand(operators, features, generator=generator),
            torch.cat([pairs, loops], 1),
            torch.rand(operators + tensors, edge_width, generator=generator),
            torch.rand(2, operators, generator=generator) * 1e-3,
            torch.rand(1, len(WORKLOAD_FEATURES), generator=generator),
            torch.rand(1, len(DEVICE_FEATURES), generator=generator),
            torch.full((1,), -3.0),
        ]

    names = ["kind", "nodes", "edge_index", "edges", "busy_s", "workload", "device", "log_step_s"]
    operators = torch.export.Dim("operators", min=2, max=10_000_000)
    tensors = torch.export.Dim("tensors", min=2, max=10_000_000)
    shapes: dict[str, Any] = {
        "kind": {0: operators}, "nodes": {0: operators}, "edge_index": {1: tensors}, "edges": {0: tensors},
        "busy_s": {1: operators}, "workload": None, "device": None, "log_step_s": None,
    }  # fmt: skip
    body = _to_onnx(single, sample(7, 11), names, ["job_embedding", "solo_step_time_s"], shapes)
    cases = []
    for size in ((5, 4), (60, 90)):
        inputs = sample(*size)
        with torch.no_grad():
            cases.append(([i.numpy() for i in inputs], [o.numpy() for o in single(*inputs)]))
    return body, _checked("encoder", body, names, cases)


def _to_onnx(
    module: nn.Module, inputs: list[Tensor], names: list[str], outputs: list[str], shapes: dict[str, Any]
) -> bytes:
    import contextlib
    import io
    import logging
    import warnings

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        path = Path(folder) / "part.onnx"
        torch.onnx.export(
            module, tuple(inputs), path, input_names=names, output_names=outputs, dynamic_shapes=shapes,
            dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
        return path.read_bytes()


def _checked(
    what: str,
    body: bytes,
    names: list[str],
    cases: Sequence[tuple[Sequence[np.ndarray], Sequence[np.ndarray]]],
) -> float:
    """Largest difference from torch, relative where values exceed 1.

    Raises:
        InputError: it is larger than 1e-5.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    worst = 0.0
    for inputs, expected in cases:
        given = {
            name: value.astype(np.float32) if value.dtype.kind == "f" else value
            for name, value in zip(names, inputs, strict=True)
        }
        for got, right in zip(session.run(None, given), expected, strict=True):
            worst = max(worst, float((np.abs(got - right) / np.maximum(np.abs(right), 1.0)).max()))
    if not worst <= TOLERANCE:
        raise InputError(
            f"exported {what} and torch disagree",
            expected=f"equal answers to {TOLERANCE:g}",
            got=f"{worst:.1e}",
        )
    return worst
