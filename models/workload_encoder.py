"""Level 1: encodes an operator graph on a device as an embedding, per-operator times and a solo step time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.e_ggat import MOST_CHANNELS, MOST_LAYERS, EGGATLayer, check_layer, start_at_zero
from models.features import DEVICE_FEATURES, WORKLOAD_FEATURES
from models.graph_tensors import KIND_COUNT, NODE_FEATURES, TENSOR_FEATURES, GraphTensors
from models.segments import segment_mean, segment_sum
from profiling.checked_fields import check_fields

# Largest log corrections of an operator's time and of a step time while the embedding is learned.
OPERATOR_BOUND, STEP_BOUND = 0.3, 0.5


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Size and form of the workload encoder.

    Attributes:
        width: channels of an operator's state.
        heads: attention heads of each layer.
        layers: E-GGAT layers.
        embedding: channels of a workload's embedding.
        kind_width: channels that encode the operator's kind.
        form: form of the layer, see `EGGATLayer`.
        use_edge: whether to use the tensors between operators (ablation).
        use_graph: whether to use the operator graph at all (ablation: only features of the whole).
    """

    width: int = 32
    heads: int = 4
    layers: int = 2
    embedding: int = 4
    kind_width: int = 8
    form: str = "gatv2"
    use_edge: bool = True
    use_graph: bool = True

    def __post_init__(self) -> None:
        check_fields(
            "encoder",
            self,
            positive=("width", "heads", "layers", "embedding", "kind_width"),
            most={"layers": MOST_LAYERS, "embedding": MOST_CHANNELS, "kind_width": MOST_CHANNELS},
        )
        check_layer("encoder", self.width, self.heads, self.form)


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoder output for G workloads.

    Attributes:
        embedding: [G, embedding].
        log_step_s: [G] log of the solo step time with the encoder's corrections. It only serves to learn the
            embedding; answers use the cost model's step time.
        operator_s: [2, N] corrected forward and backward seconds per graph node.
    """

    embedding: Tensor
    log_step_s: Tensor
    operator_s: Tensor


class WorkloadEncoder(nn.Module):
    """E-GGAT over operators; their states correct the cost model's times and are pooled into the embedding.

    It is trained on solo step times: the cost model's step time, scaled by the corrected over the uncorrected
    busy time of the device, and by a correction from a head that sees embedding, workload features and
    device.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.kind = nn.Embedding(KIND_COUNT, config.kind_width)
        self.enter = nn.Linear(config.kind_width + len(NODE_FEATURES), config.width)
        self.blocks = nn.ModuleList(
            EGGATLayer(config.width, len(TENSOR_FEATURES), config.heads, config.form, config.use_edge)
            for _ in range(config.layers)
        )
        self.correct = nn.Linear(config.width + len(DEVICE_FEATURES), 2)
        self.embed = nn.Linear(2 * config.width, config.embedding)
        wide = config.embedding + len(WORKLOAD_FEATURES) + len(DEVICE_FEATURES)
        self.step = nn.Sequential(nn.Linear(wide, 32), nn.SiLU(), nn.Linear(32, 1))
        start_at_zero(self.correct, self.step[2])

    def forward(self, graphs: GraphTensors, workload: Tensor, device: Tensor, log_step_s: Tensor) -> Encoding:
        """Encode G workloads.

        Args:
            graphs: their graphs.
            workload: [G, len(WORKLOAD_FEATURES)].
            device: [G, len(DEVICE_FEATURES)].
            log_step_s: [G] from the cost model.
        """
        count, busy = graphs.count, graphs.busy_s
        state = self.enter(torch.cat([self.kind(graphs.kind), graphs.nodes], 1))
        if self.config.use_graph:
            for block in self.blocks:
                state = block(state, graphs.edge_index, graphs.edges)
        else:
            state = torch.zeros_like(state)
        factor = bounded(self.correct(torch.cat([state, device[graphs.graph]], 1)), OPERATOR_BOUND)
        operator_s = busy * factor.t().exp()
        whole = busy.sum(0)
        share = whole / segment_sum(whole, graphs.graph, count).clamp_min(1e-12)[graphs.graph]
        mean = segment_sum(state * share.unsqueeze(1), graphs.graph, count)
        plain = segment_mean(state, graphs.graph, count)
        embedding = torch.tanh(self.embed(torch.cat([mean, plain], 1)))
        if not self.config.use_graph:
            embedding = torch.zeros_like(embedding)
        busy_s = segment_sum(operator_s.sum(0), graphs.graph, count)
        totals = torch.cat([workload, device], 1)
        correction = bounded(self.step(torch.cat([embedding, totals], 1)).squeeze(1), STEP_BOUND)
        before = segment_sum(whole, graphs.graph, count).clamp_min(1e-12)
        log_step_s = log_step_s + torch.log(busy_s.clamp_min(1e-12) / before) + correction
        return Encoding(embedding, log_step_s, operator_s)


def bounded(values: Tensor, bound: float) -> Tensor:
    """`values` if small, and never beyond `bound` in either direction."""
    return bound * torch.tanh(values / bound)
