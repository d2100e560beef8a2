"""Decoders, experts, T5 and Swin at small sizes: which inputs affect which outputs."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from profiling.zoo.decoder import Decoder, DecoderConfig, Experts
from profiling.zoo.swin import Swin, shift_mask, unwindow, windows
from profiling.zoo.t5 import T5, buckets

SMALL = DecoderConfig(50, 32, 2, 4, 2, 64, head_width=8, qkv_bias=True)


def test_decoder_is_causal() -> None:
    torch.manual_seed(0)
    model = Decoder(SMALL)
    tokens = torch.randint(50, (2, 10))
    later = tokens.clone()
    later[:, 6] = (later[:, 6] + 1) % 50
    with torch.no_grad():
        first, second = model(tokens), model(later)
    assert torch.allclose(first[:, :6], second[:, :6], atol=1e-5)
    assert not torch.allclose(first[:, 6:], second[:, 6:], atol=1e-3)


def test_decoder_distinguishes_positions() -> None:
    torch.manual_seed(0)
    model = Decoder(SMALL)
    with torch.no_grad():
        scores = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))
    assert not torch.allclose(scores[0, -1], scores[1, -1], atol=1e-4)


def test_balanced_experts_equal_per_token_experts() -> None:
    torch.manual_seed(0)
    layer = Experts(width=4, inner=8, experts=4, chosen=1)
    with torch.no_grad():
        layer.router.weight.copy_(10 * torch.eye(4))
    tokens = torch.eye(4).repeat(3, 1)[torch.randperm(12)]
    weights, expert = layer.router(tokens).softmax(-1).max(-1)
    assert expert.bincount().tolist() == [3, 3, 3, 3]
    expected = torch.stack(
        [
            w * ((F.silu(x @ layer.gate[e]) * (x @ layer.up[e])) @ layer.down[e])
            for x, w, e in zip(tokens, weights, expert, strict=True)
        ]
    )
    assert torch.allclose(layer(tokens.view(2, 6, 4)).view(12, 4), expected, atol=1e-5)


def test_experts_accept_indivisible_token_counts() -> None:
    torch.manual_seed(0)
    layer = Experts(width=4, inner=8, experts=4, chosen=2)
    x = torch.randn(1, 5, 4, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(-1) > 0).all(), "every token is seen"


def test_t5_buckets_and_causality() -> None:
    both = buckets(200, True, torch.device("cpu"))
    assert set(both.unique().tolist()) == set(range(32)) - {16}, "16 is 0 positions ahead"
    assert both[5, 5] == 0
    assert both[5, 6] == 17
    back = buckets(200, False, torch.device("cpu"))
    assert back.max() == 31
    assert (back.triu(1) == 0).all()
    torch.manual_seed(0)
    model = T5(16, 32, 4, 1)
    source, target = torch.randint(100, (1, 6)), torch.randint(100, (1, 5))
    later = target.clone()
    later[:, 3] += 1
    with torch.no_grad():
        first, second = model(source, target), model(source, later)
    assert torch.allclose(first[:, :3], second[:, :3], atol=1e-5)
    assert not torch.allclose(first[:, 3:], second[:, 3:], atol=1e-5)


def test_swin_windows() -> None:
    x = torch.randn(2, 14, 14, 3)
    assert torch.equal(unwindow(windows(x), 2, 14), x)
    mask = shift_mask(14, 3, torch.device("cpu"))
    assert mask.shape == (4, 49, 49)
    assert not mask[0].any(), "the first window wraps around no edge"
    assert mask[3].any()
    model = Swin(8, (2, 2), (2, 2), 5)
    assert model(torch.randn(1, 3, 56, 56)).shape == (1, 5)
