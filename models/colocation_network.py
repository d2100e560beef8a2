"""Level 2: predicts slowdowns, memory and utilisation of encoded workloads that share a device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from models.e_ggat import MOST_LAYERS, EGGATLayer, check_layer, start_at_zero
from models.features import (
    DEVICE_FEATURES,
    EDGE_FEATURES,
    RESOURCES,
    SOLO_FEATURES,
    SUMMED_WIDTH,
    WORKLOAD_FEATURES,
)
from models.prior import ContentionPrior, bounded_excess
from models.workload_encoder import EncoderConfig
from profiling.checked_fields import check_fields
from profiling.errors import InputError
from profiling.workload import SHARING_MODES


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Size and form of the co-location network.

    Attributes:
        width: channels of a member's state.
        heads: attention heads.
        layers: E-GGAT layers; one is enough because all members see each other.
        form: form of the layer, see `EGGATLayer`.
        use_edge: whether to use pairwise demands (ablation).
        use_device: whether to use the device's features (ablation).
        use_prior: whether the analytic contention prior is the starting point (ablation).
        dropout: share of a member's input channels that is dropped in training.
        encoder: the workload encoder.
    """

    width: int = 32
    heads: int = 4
    layers: int = 1
    form: str = "gatv2"
    use_edge: bool = True
    use_device: bool = True
    use_prior: bool = True
    dropout: float = 0.05
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    def __post_init__(self) -> None:
        check_fields("network", self, positive=("width", "heads", "layers"), most={"layers": MOST_LAYERS})
        check_layer("network", self.width, self.heads, self.form)
        if self.dropout >= 1:
            raise InputError(
                "network.dropout is out of range", expected="a number from 0, below 1", got=self.dropout
            )

    def check_whole(self) -> None:
        """Check that no part is ablated: predictors answer, and ONNX is exported, with whole networks only.

        Raises:
            InputError: a part is missing.
        """
        if self.form != "gatv2" or not (self.use_edge and self.use_device and self.use_prior):
            raise InputError(
                "this network form is for ablation only",
                expected="network.form gatv2, with use_edge, use_device and use_prior",
                hint="`python -m benchmarks.ablation` scores the others",
            )


@dataclass(frozen=True, slots=True)
class SetTensors:
    """S co-location sets of up to M members, padded.

    Attributes:
        member: [S, M, member_width] per-member features (embedding, workload, solo, device), standardised.
        demand: [S, M, DEMAND_WIDTH] a member's demand on the device, see `models.features.edge_features`.
        setting: [S, settings] one-hot sharing mode and campaign.
        present: [S, M] mask of existing members.
    """

    member: Tensor
    demand: Tensor
    setting: Tensor
    present: Tensor


@dataclass(frozen=True, slots=True)
class SetOutput:
    """Output per member.

    Attributes:
        log_slowdown: [S, M] log of the latent slowdown, at least 0.
        log_baseline: [S, M] log of the factor by which the campaign's solo baseline was off.
        utilization: [S, M] the member's contribution to the deviation of the set's utilisation from that of
            members with independent phases; it is averaged over the members.
    """

    log_slowdown: Tensor
    log_baseline: Tensor
    utilization: Tensor


def edge_tensor(demand: Tensor, between: Tensor) -> Tensor:
    """[S, M, M, len(EDGE_FEATURES)] of target (second axis) and source, zero where `between` [S, M, M] is.

    The same as `models.features.edge_features`, for tensors [S, M, DEMAND_WIDTH].
    """
    target, source = demand.unsqueeze(2), demand.unsqueeze(1)
    count = len(RESOURCES)
    product = target[..., :count] * source[..., :count]
    excess = (target[..., :2] + source[..., :2] - 1.0).clamp_min(0.0)
    columns = [
        torch.stack([product[..., 0], excess[..., 0], product[..., 1], excess[..., 1]], -1),
        product[..., 2:],
        target[..., count : count + 1] + source[..., count : count + 1],
        (source[..., SUMMED_WIDTH:] - target[..., SUMMED_WIDTH:]) / 3.0,
    ]
    return torch.cat(columns, -1) * between.unsqueeze(-1)


def member_width(config: NetworkConfig) -> int:
    """Channels of `SetTensors.member`."""
    return config.encoder.embedding + len(WORKLOAD_FEATURES) + len(SOLO_FEATURES) + len(DEVICE_FEATURES)


class ColocationNetwork(nn.Module):
    """E-GGAT over the members of a set, with physical output heads.

    The excess of the slowdown over 1 is softplus(prior + residual) with the prior in the same units, so an
    untrained network returns the prior, and no slowdown falls below 1 or rises above the limit set by the
    neighbours' measured utilisation. A member without neighbours has slowdown exactly 1. The factor by which
    a campaign's solo baselines were off depends only on the member itself.

    Args:
        config: sizes and switches.
        campaigns: names of the training campaigns; the setting has one more column for any other.
    """

    def __init__(self, config: NetworkConfig, campaigns: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.campaigns = config, campaigns
        settings = len(SHARING_MODES) + len(campaigns) + 1
        width = config.width
        self.drop = nn.Dropout(config.dropout)
        self.enter = nn.Linear(member_width(config) + settings, width)
        self.enter_others = nn.Linear(SUMMED_WIDTH, width, bias=False)
        self.blocks = nn.ModuleList(
            EGGATLayer(width, len(EDGE_FEATURES), config.heads, config.form, config.use_edge)
            for _ in range(config.layers)
        )
        self.prior = ContentionPrior(len(SHARING_MODES) + len(campaigns) + 1)
        self.slow = nn.Linear(width, 1)
        self.baseline = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(member_width(config) + settings, 8),
            nn.Tanh(),
            nn.Linear(8, 1),
        )
        self.usage = nn.Linear(width, 1)
        start_at_zero(self.slow, self.usage, self.baseline[3])

    def forward(self, sets: SetTensors) -> SetOutput:
        """Outputs [S, M] of each member of S sets of up to M; see `SetTensors` and `SetOutput`."""
        member = sets.member
        if not self.config.use_device:
            known = member.shape[-1] - len(DEVICE_FEATURES)
            member = torch.cat([member[..., :known], torch.zeros_like(member[..., known:])], -1)
        size = member.shape[1]
        present = sets.present.to(member.dtype)
        between = present.unsqueeze(2) * present.unsqueeze(1) * (1.0 - torch.eye(size, device=member.device))
        demand = sets.demand * present.unsqueeze(-1)
        demands = demand[..., :SUMMED_WIDTH]
        others = demands.sum(1, keepdim=True) - demands
        edges = edge_tensor(demand, between)
        own = torch.cat([member, sets.setting.unsqueeze(1).expand(-1, size, -1)], -1)
        state = torch.tanh(self.enter(self.drop(own)) + self.enter_others(others))
        for block in self.blocks:
            assert isinstance(block, EGGATLayer)
            state = block.dense(state, edges, sets.present)
        neighbours = between.sum(2)
        prior = self.prior(edges, sets.setting, between) if self.config.use_prior else 0.1 * neighbours
        start = prior.clamp_min(1e-3)
        # softplus^-1, so that a zero residual gives back the prior.
        raw = start + torch.log(-torch.expm1(-start))
        shared = (neighbours > 0).to(member.dtype)
        excess = nn.functional.softplus(raw + self.slow(state).squeeze(-1)) * shared
        excess = bounded_excess(excess, others[..., -1])
        usage = torch.tanh(self.usage(state).squeeze(-1)) * shared
        return SetOutput(torch.log1p(excess), self.baseline(own).squeeze(-1), usage)
