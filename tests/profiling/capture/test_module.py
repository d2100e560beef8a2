"""Modules as users write them, and factories that are wrong."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture import capture_module


class BiasedAttention(nn.Module):
    """Attention with a trained bias per score, as relative positions are."""

    def __init__(self, is_trained: bool) -> None:
        super().__init__()
        self.input = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.zeros(2, 5, 5), requires_grad=is_trained)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.input(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)


def test_a_trained_attention_bias_has_a_gradient() -> None:
    trained = capture_module(BiasedAttention(True), torch.randn(3, 5, 8))
    frozen = capture_module(BiasedAttention(False), torch.randn(3, 5, 8))
    bias_bytes = 4 * 2 * 5 * 5
    assert trained.gradient_bytes == trained.parameter_bytes == frozen.gradient_bytes + bias_bytes
    # Written for each sample, read and summed over them.
    assert trained.total("backward_bytes") >= frozen.total("backward_bytes") + 2 * 3 * bias_bytes
    assert trained.backward_flops == frozen.backward_flops
