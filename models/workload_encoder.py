"""Level 1: an operator graph on a device becomes an embedding, per-operator times and a solo step time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from models.e_ggat import FORMS, EGGATLayer, start_at_zero
from models.features import DEVICE_FEATURES, WORKLOAD_FEATURES
from models.graph_tensors import KIND_COUNT, NODE_FEATURES, TENSOR_FEATURES, GraphTensors
from models.known_jobs import KnownJobs
from models.prior import StepTimePrior
from profiling.errors import InputError

# Largest log corrections of an operator's time and of a whole step's. The few models that anyone has measured teach little of
# others: the wider these are, the worse a model that was left out is predicted.
OPERATOR_BOUND, STEP_BOUND = 0.3, 0.05


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Size and form of the workload encoder.

    Attributes:
        width: channels of an operator's state.
        heads: attention heads of each layer.
        layers: E-GGAT layers.
        embedding: channels of a workload's embedding.
        kind_width: channels that stand for the operator's kind.
        form: form of the layer, see `EGGATLayer`.
        use_edge: whether tensors between operators are seen (ablation).
        use_graph: whether the operator graph is read at all (ablation: features of the whole only).
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
        for name in ("width", "heads", "layers", "embedding", "kind_width"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(
                    f"encoder.{name} is out of range", expected="an integer from 1", got=getattr(self, name)
                )
        if self.form not in FORMS:
            raise InputError(
                "encoder.form is not known", expected="one of " + ", ".join(FORMS), got=self.form
            )


@dataclass(frozen=True, slots=True)
class Encoding:
    """What the encoder says of G workloads.

    Attributes:
        embedding: [G, embedding].
        log_step_s: [G] log of the predicted solo step time.
        log_graph_step_s: [G] the same as if no job had been measured that is like it.
        operator_s: [2, N] predicted forward and backward seconds per graph node.
    """

    embedding: Tensor
    log_step_s: Tensor
    log_graph_step_s: Tensor
    operator_s: Tensor


class WorkloadEncoder(nn.Module):
    """E-GGAT over operators; every operator corrects its roofline time, and what they sum to is the device's busy time.

    The step time is what `StepTimePrior` makes of busy time and launch time, corrected by a head that sees embedding, totals
    and device. Corrections are bounded, so that a graph unlike all others still gets about what the prior says; `KnownJobs`
    adds what jobs like this one were off by.
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
        self.prior, self.known = StepTimePrior(), KnownJobs(len(WORKLOAD_FEATURES) + len(DEVICE_FEATURES))
        self.step = nn.Sequential(nn.Linear(wide, 32), nn.SiLU(), nn.Linear(32, 1))
        start_at_zero(self.correct, self.step[2])

    def forward(self, graphs: GraphTensors, workload: Tensor, device: Tensor, launch_s: Tensor) -> Encoding:
        """Args: `graphs` of G workloads; workload [G, len(WORKLOAD_FEATURES)]; device [G, len(DEVICE_FEATURES)];
        launch_s [G] time that the host needs to launch a step's kernels.
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
        share = whole / scatter(whole, graphs.graph, 0, count, reduce="sum").clamp_min(1e-12)[graphs.graph]
        mean = scatter(state * share.unsqueeze(1), graphs.graph, 0, count, reduce="sum")
        plain = scatter(state, graphs.graph, 0, count, reduce="mean")
        embedding = torch.tanh(self.embed(torch.cat([mean, plain], 1)))
        if not self.config.use_graph:
            embedding = torch.zeros_like(embedding)
        busy_s = scatter(operator_s.sum(0), graphs.graph, 0, count, reduce="sum")
        totals = torch.cat([workload, device], 1)
        correction = bounded(self.step(torch.cat([embedding, totals], 1)).squeeze(1), STEP_BOUND)
        log_step_s = self.prior(busy_s, launch_s, device) + correction
        return Encoding(embedding, log_step_s + self.known(totals), log_step_s, operator_s)


def bounded(values: Tensor, bound: float) -> Tensor:
    """`values` where they are small, never beyond `bound` either way."""
    return bound * torch.tanh(values / bound)
