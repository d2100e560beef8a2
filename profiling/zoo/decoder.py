"""Recent decoder-only language models: RMS norm, rotary positions, grouped-query attention, SwiGLU, experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder, as in its published config.json.

    Attributes:
        heads, groups: number of query heads, and of key and value heads.
        tied: whether the output projection shares the token embedding.
        qkv_bias: whether the query, key and value projections have biases (Qwen 2).
        experts, chosen: experts per feed-forward network, and experts per token; 0 for a dense network.
        qk_norm: whether queries and keys are normalised (OLMoE).
    """

    vocabulary: int
    width: int
    depth: int
    heads: int
    groups: int
    inner: int
    head_width: int = 128
    tied: bool = False
    qkv_bias: bool = False
    experts: int = 0
    chosen: int = 0
    qk_norm: bool = False


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Apply rotary positions (Su et al. 2021) to (batch, heads, length, width); angles are (length, width / 2)."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention (Ainslie et al. 2023)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.heads, config.groups, config.head_width
        queries, keys = config.heads * config.head_width, config.groups * config.head_width
        self.query = nn.Linear(config.width, queries, bias=config.qkv_bias)
        self.key = nn.Linear(config.width, keys, bias=config.qkv_bias)
        self.value = nn.Linear(config.width, keys, bias=config.qkv_bias)
        self.out = nn.Linear(queries, config.width, bias=False)
        self.query_norm = nn.RMSNorm(queries) if config.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(keys) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query = self.query_norm(self.query(x)).view(batch, length, self.heads, self.size).transpose(1, 2)
        key = self.key_norm(self.key(x)).view(batch, length, self.groups, self.size).transpose(1, 2)
        value = self.value(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        query, key = rotate(query, angles), rotate(key, angles)
        if self.groups != self.heads:
            key, value = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of SwiGLU experts as batched products, in which all experts get equally many tokens.

    This is what a balanced router achieves, and makes shapes independent of data. A token that exceeds the capacity
    of its expert goes to the next one.
    """

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, inner) * width**-0.5)
        self.up = nn.Parameter(torch.randn(experts, width, inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, expert = self.router(flat).softmax(-1).topk(self.chosen, dim=-1)
        room = -(-flat.shape[0] * self.chosen // self.experts)
        order = expert.flatten().argsort()
        # If the tokens do not divide evenly, the last expert gets some twice, with weight 0.
        spare = room * self.experts - order.shape[0]
        keep = torch.cat((torch.ones_like(order), torch.zeros_like(order[:spare])))
        order = torch.cat((order, order[:spare]))
        token = order // self.chosen
        inputs = flat[token].view(self.experts, room, -1)
        hidden = F.silu(torch.bmm(inputs, self.gate)) * torch.bmm(inputs, self.up)
        outputs = torch.bmm(hidden, self.down).flatten(0, 1)
        share = weights.flatten()[order] * keep
        mixed = torch.zeros_like(flat).index_add(0, token, outputs * share[:, None].to(outputs.dtype))
        return mixed.view_as(x)


class Block(nn.Module):
    """Pre-norm attention and feed-forward network."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.RMSNorm(config.width)
        self.feed: nn.Module = (
            Experts(config.width, config.inner, config.experts, config.chosen)
            if config.experts
            else GatedFeedForward(config.width, config.inner)
        )

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """Tokens (batch, length) to scores (batch, length, vocabulary)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.size = config.head_width
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        frequency = torch.arange(0, self.size, 2, device=tokens.device, dtype=torch.float32) / self.size
        angles = torch.outer(position, 10_000.0**-frequency)
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


def _entry(name: str, config: DecoderConfig, parameters: int, source: str) -> ZooEntry:
    def batch(batch_size: int, length: int) -> dict[str, Tensor]:
        return {
            "tokens": torch.randint(config.vocabulary, (batch_size, length)),
            "target": torch.randint(config.vocabulary, (batch_size * length,)),
        }

    def loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
        return F.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["target"])

    mixture = f", {config.chosen} of {config.experts} experts per token" if config.experts else ""
    return ZooEntry(
        name=name,
        family="decoder",
        model=lambda: Decoder(config),
        batch=batch,
        phases=(Phase(loss),),
        batch_size=1,
        sequence_length=1024,
        optimizer="adamw",
        parameters=parameters,
        source=source,
        description=f"decoder of {config.depth} layers of width {config.width}{mixture}",
    )


ENTRIES = (
    _entry(
        "llama-3.2-1b",
        DecoderConfig(128_256, 2048, 16, 32, 8, 8192, head_width=64, tied=True),
        1_235_814_400,
        "published weights of meta-llama/Llama-3.2-1B",
    ),
    _entry(
        "llama-3.2-3b",
        DecoderConfig(128_256, 3072, 28, 24, 8, 8192, tied=True),
        3_212_749_824,
        "published weights of meta-llama/Llama-3.2-3B",
    ),
    _entry(
        "llama-3-8b",
        DecoderConfig(128_256, 4096, 32, 32, 8, 14_336),
        8_030_261_248,
        "published weights of meta-llama/Meta-Llama-3-8B",
    ),
    _entry(
        "mistral-7b",
        DecoderConfig(32_000, 4096, 32, 32, 8, 14_336),
        7_241_732_096,
        "published weights of mistralai/Mistral-7B-v0.1 (Jiang et al. 2023)",
    ),
    _entry(
        "qwen2.5-1.5b",
        DecoderConfig(151_936, 1536, 28, 12, 2, 8960, tied=True, qkv_bias=True),
        1_543_714_304,
        "published weights of Qwen/Qwen2.5-1.5B",
    ),
    _entry(
        "qwen2.5-7b",
        DecoderConfig(152_064, 3584, 28, 28, 4, 18_944, qkv_bias=True),
        7_615_616_512,
        "published weights of Qwen/Qwen2.5-7B",
    ),
    _entry(
        "olmoe-1b-7b",
        DecoderConfig(50_304, 2048, 16, 16, 16, 1024, experts=64, chosen=8, qk_norm=True),
        6_919_161_856,
        "published weights of allenai/OLMoE-1B-7B-0924 (Muennighoff et al. 2024)",
    ),
)
