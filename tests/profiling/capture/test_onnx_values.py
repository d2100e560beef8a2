"""ONNX: shapes that depend on arithmetic with sizes."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from profiling.capture import capture_module, capture_onnx
from profiling.errors import InputError


class Heads(nn.Module):
    """Attention whose widths are divided by the number of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            y.view(batch, length, 4, width // 4).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        mixed = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def export(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 10, 64),),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch", 1: "length"}},
        )
    return path


@pytest.mark.filterwarnings("error::UserWarning")
def test_divided_sizes_are_followed(tmp_path: Path) -> None:
    path = export(Heads(), tmp_path / "heads.onnx")
    graph = capture_onnx(path, batch_size=8, sequence_length=32)
    expected = capture_module(Heads(), torch.zeros(8, 32, 64))
    assert graph.forward_flops == expected.forward_flops
    assert graph.backward_flops == expected.backward_flops


def test_a_length_that_the_exporter_kept_is_refused(tmp_path: Path) -> None:
    class Library(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    path = export(Library(), tmp_path / "library.onnx")
    assert capture_onnx(path, batch_size=8, sequence_length=10).forward_flops == 2_826_240
    with pytest.raises(InputError, match=r"Reshape .*the inputs were read as x \(8, 32, 64\)"):
        capture_onnx(path, batch_size=8, sequence_length=32)
