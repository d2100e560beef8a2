"""Level 2: encoded workloads that share a device become slowdowns, memory and utilisation."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from models.e_ggat import EGGATLayer, start_at_zero
from models.features import DEVICE_FEATURES, EDGE_FEATURES, OTHERS_WIDTH, SOLO_FEATURES, WORKLOAD_FEATURES
from models.prior import ContentionPrior, bounded_excess
from models.workload_encoder import EncoderConfig
from profiling.errors import InputError
from profiling.workload import SHARING_MODES


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Size and form of the co-location network.

    Attributes:
        width: channels of a member's state.
        heads: attention heads.
        layers: E-GGAT layers; one is enough where all members see each other.
        form: form of the layer, see `EGGATLayer`.
        use_edge: whether pairwise demands are seen (ablation).
        use_device: whether the device's numbers are seen (ablation).
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
        for name in ("width", "heads", "layers"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InputError(
                    f"network.{name} is out of range", expected="an integer from 1", got=getattr(self, name)
                )
        if not 0 <= self.dropout < 1:
            raise InputError(
                "network.dropout is out of range", expected="a number from 0, below 1", got=self.dropout
            )


@dataclass(frozen=True, slots=True)
class SetTensors:
    """S co-location sets with T members in all, side by side.

    Attributes:
        member: [T, member_width] per-member features (embedding, workload, solo, device), standardised.
        others: [T, OTHERS_WIDTH] what the neighbours want together.
        setting: [T, settings] one-hot sharing mode and campaign.
        edge_index: [2, E] between the members of a set, self edges included.
        edges: [E, len(EDGE_FEATURES)]; zero on self edges.
        set_index: [T] which set a member belongs to.
    """

    member: Tensor
    others: Tensor
    setting: Tensor
    edge_index: Tensor
    edges: Tensor
    set_index: Tensor


@dataclass(frozen=True, slots=True)
class SetOutput:
    """Per member [T]: log of latent slowdown (>= 0), log of the baseline factor of its source, and its part in what the
    set's utilisation differs by from that of members that keep independent phases (the mean of the parts counts).
    """

    log_slowdown: Tensor
    log_baseline: Tensor
    utilization: Tensor


def member_width(config: NetworkConfig) -> int:
    """Channels of `SetTensors.member`."""
    return config.encoder.embedding + len(WORKLOAD_FEATURES) + len(SOLO_FEATURES) + len(DEVICE_FEATURES)


class ColocationNetwork(nn.Module):
    """E-GGAT over the members of a set; heads are physical.

    The excess of the slowdown over 1 is softplus(prior + residual) with the prior in the same units, so a network that
    has learned nothing answers the prior, and nothing it learns can make a slowdown fall below 1, or rise above what the
    neighbours' measured utilisation allows. A member without neighbours has slowdown 1 exactly. The factor by which a campaign's solo baselines were off sees only the member itself.

    Args:
        config: sizes and switches.
        campaigns: names of the campaigns that were trained on; the setting has one more column for any other.
    """

    def __init__(self, config: NetworkConfig, campaigns: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.campaigns = config, campaigns
        settings = len(SHARING_MODES) + len(campaigns) + 1
        width = config.width
        self.drop = nn.Dropout(config.dropout)
        self.enter = nn.Linear(member_width(config) + settings, width)
        self.enter_others = nn.Linear(OTHERS_WIDTH, width, bias=False)
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
        source, target = sets.edge_index
        count = sets.member.shape[0]
        member = sets.member
        if not self.config.use_device:
            member = torch.cat(
                [member[:, : -len(DEVICE_FEATURES)], torch.zeros_like(member[:, -len(DEVICE_FEATURES) :])], 1
            )
        own = torch.cat([member, sets.setting], 1)
        state = torch.tanh(self.enter(self.drop(own)) + self.enter_others(sets.others))
        for block in self.blocks:
            state = block(state, sets.edge_index, sets.edges)
        between = source != target
        neighbours = member.new_zeros(count).index_add(
            0, target[between], member.new_ones(int(between.sum()))
        )
        if self.config.use_prior:
            prior = self.prior(sets.edges[between], sets.setting[target[between]], target[between], count)
        else:
            prior = 0.1 * neighbours
        start = prior.clamp_min(1e-3)
        # softplus^-1, so that a zero residual gives back the prior.
        raw = start + torch.log(-torch.expm1(-start))
        excess = nn.functional.softplus(raw + self.slow(state).squeeze(1)) * (neighbours > 0)
        excess = bounded_excess(excess, sets.others[:, -1])
        usage = torch.tanh(self.usage(state).squeeze(1)) * (neighbours > 0)
        return SetOutput(torch.log1p(excess), self.baseline(own).squeeze(1), usage)
