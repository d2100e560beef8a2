"""Modules and losses whose control flow reads values of tensors."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from profiling.capture import capture_module
from profiling.errors import InputError
from profiling.workload import Workload

LABELS = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: F.gaussian_nll_loss(out, torch.zeros_like(out), out.exp()),
        lambda out: F.multi_margin_loss(out, LABELS.to(out.device)),
        lambda out: F.multilabel_margin_loss(out, LABELS.to(out.device)[:, None].expand(3, 5)),
        lambda out: F.cosine_embedding_loss(out, out.flip(0), torch.ones(3)),
        lambda out: (
            -Normal(out, out.exp()).rsample().mean()
            + kl_divergence(Normal(out, out.exp()), Normal(0.0, 1.0)).mean()
        ),
        lambda out: -Categorical(logits=out).log_prob(Categorical(logits=out).sample()).mean(),
    ],
    ids=["gaussian", "margin", "multilabel-margin", "cosine", "normal", "categorical"],
)
def test_losses_that_check_or_make_values(loss: Callable[[Tensor], Tensor]) -> None:
    assert capture_module(nn.Linear(8, 5), torch.randn(3, 8), loss=loss).gradient_bytes == 4 * (8 * 5 + 5)


class Averaged(nn.Module):
    """The mean of a sequence's outputs up to its length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        is_inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return (self.layer(x) * is_inside[..., None]).sum(1) / lengths[:, None]


def test_a_mask_may_compare_two_tensors() -> None:
    graph = capture_module(Averaged(), (torch.randn(4, 6, 8), torch.full((4,), 6)))
    assert graph.forward_flops == 2 * 4 * 6 * 8 * 8


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 16, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor | list[int]) -> Tensor:
        if isinstance(lengths, Tensor):
            lengths, steps = lengths.cpu(), int(lengths.max())
            x = x[:, :steps]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("lengths", [[3, 6, 2, 5], torch.tensor([3, 6, 2, 5])], ids=["list", "tensor"])
def test_packed_sequences_of_any_order(lengths: list[int] | Tensor) -> None:
    graph = capture_module(Packed(), (torch.randn(4, 9, 8), lengths))
    layer = next(op for op in graph.operators if op.kind == "recurrent")
    assert layer.forward_flops == 2 * 16 * 3 * 16 * (8 + 16)  # 16 positions
    assert any(op.output_shape == (4, 6, 16) for op in graph.operators)


def test_lengths_changed_in_place_are_unknown() -> None:
    class Longer(Packed):
        def forward(self, x: Tensor, lengths: Tensor | list[int]) -> Tensor:
            return super().forward(x, lengths.add_(1))  # type: ignore[union-attr]

    with pytest.raises(InputError, match="made with device='cpu'"):
        capture_module(Longer(), (torch.randn(4, 9, 8), torch.tensor([3, 6, 2, 5])))


class Reentrant(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_of_inputs_are_computed_if_asked_for(precision: str) -> None:
    layers, x = (nn.Linear(16, 64), nn.Linear(64, 16)), torch.randn(8, 16, requires_grad=True)
    options = Workload("net", precision=precision)
    graph = capture_module(nn.Sequential(*layers), x, workload=options)
    assert graph.backward_flops == 2 * graph.forward_flops == 2 * 2 * 8 * 2 * 16 * 64
    # Without it, nothing before a reentrant checkpoint could be trained.
    graph = capture_module(Reentrant(*layers), x, workload=options)
    assert graph.backward_flops == 3 * graph.forward_flops
    assert graph.gradient_bytes == graph.parameter_bytes


class Checked(nn.Module):
    """Looks for padding, as language models without a mask do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.slow = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.table(tokens)
        return self.slow(out) if 3 in tokens[:, [-1, 0]] else out


def test_a_batch_has_no_padding() -> None:
    with pytest.warns(UserWarning, match=r"net: assumed not to be in the batch: 3 \(`in` of a tensor\)"):
        graph = capture_module(Checked(), torch.ones(4, 6, dtype=torch.long), name="net")
    assert not any(op.kind == "linear" for op in graph.operators)
    assert 1 in torch.ones(2)  # elsewhere, torch answers


class Finite(nn.Module):
    """Counts what is not a number, as quantised models do of their ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        assert out.isnan().sum() == 0
        return out


def test_nothing_is_not_a_number() -> None:
    assert capture_module(Finite(), torch.randn(4, 8)).forward_flops == 2 * 4 * 8 * 8
